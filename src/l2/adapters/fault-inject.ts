/**
 * `fault_inject`: another adapter, of whose loads a part is said to be missing. For tests of what
 * stands in front of it.
 *
 * Position i of a load of n keys is dropped if
 *   - i is in `gap_indices`, or
 *   - i = (1 − r)·(n − 1), rounded half to even, for an r of `gap_tail_ratios`, or
 *   - the bucket of its key, 0 … 999 999 by hash and `seed`, is below `rate`·1 000 000.
 * The same keys are dropped at every load, and by the peer with the same settings.
 */
import { KvdError } from '../../errors.ts';
import { GIB } from '../../units.ts';
import type {
  DeleteResult,
  L2Backend,
  L2BackendType,
  L2Object,
  LoadResult,
  LookupResult,
  StoreResult,
} from '../backend.ts';
import { blake2b } from '../blake2b.ts';
import { type ConfigValue, type ConfigValues, isObject } from '../config-keys.ts';
import { hexOf } from '../key-text.ts';
import type { ObjectKey } from '../object-key.ts';

const BUCKET_COUNT = 1_000_000;

export interface FaultPlan {
  readonly rate: number;
  readonly seed: number;
  readonly gapIndices: readonly number[];
  readonly gapTailRatios: readonly number[];
}

/** Positions of a load of these keys that are dropped. */
export function droppedPositions(keys: readonly ObjectKey[], plan: FaultPlan): Set<number> {
  const lastIndex = keys.length - 1;
  const gaps = new Set([
    ...plan.gapIndices,
    ...plan.gapTailRatios.map((ratio) => roundHalfEven((1 - ratio) * lastIndex)),
  ]);
  const bound = Math.floor(plan.rate * BUCKET_COUNT);
  return new Set(
    [...keys.keys()].filter(
      (index) => gaps.has(index) || bucketOf(keys[index] as ObjectKey, plan.seed) < bound,
    ),
  );
}

export function bucketOf(key: ObjectKey, seed: number): number {
  const { chunkHash, modelName, kvRank, objectGroupId, cacheSalt } = key;
  const text = [seed, hexOf(chunkHash), modelName, kvRank, objectGroupId, cacheSalt].join(':');
  const digest = blake2b(Buffer.from(text), 8);
  const hash = new DataView(digest.buffer, digest.byteOffset).getBigUint64(0);
  return Number(hash % BigInt(BUCKET_COUNT));
}

function roundHalfEven(value: number): number {
  const floor = Math.floor(value);
  if (value - floor === 0.5) return floor % 2 === 0 ? floor : floor + 1;
  return Math.round(value);
}

class FaultInjector implements L2Backend {
  readonly #inner: L2Backend;
  readonly #plan: FaultPlan;
  readonly list?: NonNullable<L2Backend['list']>;
  readonly acceptsSize?: NonNullable<L2Backend['acceptsSize']>;
  readonly chargedBytes?: NonNullable<L2Backend['chargedBytes']>;

  constructor(inner: L2Backend, plan: FaultPlan) {
    this.#inner = inner;
    this.#plan = plan;
    if (inner.list) this.list = inner.list.bind(inner);
    if (inner.acceptsSize) this.acceptsSize = inner.acceptsSize.bind(inner);
    if (inner.chargedBytes) this.chargedBytes = inner.chargedBytes.bind(inner);
  }

  store(objects: readonly L2Object[], signal: AbortSignal): Promise<readonly StoreResult[]> {
    return this.#inner.store(objects, signal);
  }

  lookup(keys: readonly ObjectKey[], signal: AbortSignal): Promise<readonly LookupResult[]> {
    return this.#inner.lookup(keys, signal);
  }

  async load(objects: readonly L2Object[], signal: AbortSignal): Promise<readonly LoadResult[]> {
    const results = await this.#inner.load(objects, signal);
    const keys = objects.map(({ key }) => key);
    const dropped = droppedPositions(keys, this.#plan);
    return results.map((result, index) => (dropped.has(index) ? 'missing' : result));
  }

  delete(keys: readonly ObjectKey[], signal: AbortSignal): Promise<readonly DeleteResult[]> {
    return this.#inner.delete(keys, signal);
  }

  status(): Record<string, unknown> {
    const { rate, seed, gapIndices, gapTailRatios } = this.#plan;
    const shown = {
      rate,
      seed,
      gap_indices: gapIndices.toSorted((a, b) => a - b),
      gap_tail_ratios: [...gapTailRatios],
    };
    return { ...this.#inner.status(), fault_inject: shown };
  }

  close(): Promise<void> {
    return this.#inner.close();
  }
}

export const backendType: L2BackendType = {
  typeName: 'fault_inject',
  about: 'Another adapter, some of whose loads miss; for tests.',
  keys: {
    inner: { kind: 'object', about: 'JSON of the adapter behind it.' },
    rate: { kind: 'number', fallback: 0, min: 0, max: 1, about: 'Part of all keys that misses.' },
    seed: { kind: 'integer', fallback: 0, about: 'Chooses which keys these are.' },
    gap_indices: { kind: 'list', fallback: [], about: 'Positions of a load that miss.' },
    gap_tail_ratios: {
      kind: 'list',
      fallback: [],
      about: 'The same, as parts of the length (0 to 1) counted from the end.',
    },
  },
  capacityBytes: ({ inner }) => capacityOf(inner),
  async open(values, context) {
    const plan = readPlan(values);
    return new FaultInjector(await context.openInner(values['inner']), plan);
  },
};

/** Of the inner adapter, whose keys its own type checks. */
function capacityOf(inner: ConfigValue | undefined): number {
  if (!isObject(inner)) return 0;
  const capacity = inner['max_capacity_gb'] ?? inner['max_size_gb'];
  return typeof capacity === 'number' && capacity > 0 ? Math.floor(capacity * GIB) : 0;
}

function readPlan(values: ConfigValues): FaultPlan {
  const isIndex = (value: unknown): value is number =>
    Number.isSafeInteger(value) && (value as number) >= 0;
  const isRatio = (value: unknown): value is number =>
    typeof value === 'number' && value >= 0 && value <= 1;
  return {
    rate: values['rate'] as number,
    seed: values['seed'] as number,
    gapIndices: checkedList(values, 'gap_indices', 'integers of at least 0', isIndex),
    gapTailRatios: checkedList(values, 'gap_tail_ratios', 'numbers from 0 to 1', isRatio),
  };
}

function checkedList(
  values: ConfigValues,
  name: string,
  expected: string,
  isGood: (value: unknown) => value is number,
): number[] {
  const list = values[name] as readonly ConfigValue[];
  if (list.every(isGood)) return [...list] as number[];
  const message = `"${name}" must be a list of ${expected}, got ${JSON.stringify(list)}`;
  throw new KvdError('ERR_CONFIG', message);
}
