/**
 * Records of a trace as calls that can be made. What cannot be is of two kinds, as in the
 * reference: a call that nobody knows, or arguments that cannot be decoded, are skipped; a known
 * call with other arguments than it has is a call that fails.
 */
import { type Arguments, readArguments } from '../observability/trace-file/frames.ts';
import {
  STORAGE_PREFIX,
  type StorageOperation,
} from '../observability/trace-file/storage-calls.ts';
import {
  type LayoutFields,
  type ObjectKeyFields,
  type TraceValue,
  TraceValueError,
} from '../observability/trace-file/values.ts';

export type ReplayCall =
  | {
      readonly operation: 'submit_prefetch_task';
      readonly keys: readonly ObjectKeyFields[];
      readonly layout: LayoutFields;
      /** Readers beside the first. */
      readonly extraCount: number;
      /** False: also what follows a gap is wanted. */
      readonly isPrefix: boolean;
      readonly skipsL2: boolean;
    }
  | {
      readonly operation: 'reserve_write';
      readonly keys: readonly ObjectKeyFields[];
      readonly layout: LayoutFields;
    }
  | {
      readonly operation:
        | 'finish_write'
        | 'read_prefetched_results.__enter__'
        | 'read_prefetched_results.__exit__';
      readonly keys: readonly ObjectKeyFields[];
    }
  | {
      readonly operation: 'finish_read_prefetched';
      readonly keys: readonly ObjectKeyFields[];
      readonly extraCount: number;
    };

/** A call that fails before it is made. */
export class CallError extends Error {
  override readonly name = 'CallError';
}

/** More readers of one lookup than there are ranks anywhere. */
const EXTRA_COUNT_MAX = 65_535;

/** Arguments of each call; those of `optional` may be missing. */
const PARAMETERS: Readonly<
  Record<StorageOperation, { required: readonly string[]; optional: readonly string[] }>
> = {
  reserve_write: { required: ['keys', 'layout_desc'], optional: ['mode'] },
  finish_write: { required: ['keys'], optional: [] },
  submit_prefetch_task: {
    required: ['keys', 'layout_desc'],
    optional: ['extra_count', 'external_request_id', 'policy', 'skip_l2'],
  },
  'read_prefetched_results.__enter__': { required: ['keys'], optional: [] },
  'read_prefetched_results.__exit__': { required: ['keys'], optional: [] },
  finish_read_prefetched: { required: ['keys'], optional: ['extra_count'] },
};

/** What a record says: `skipped` with the reason, or a call; throws `CallError`. */
export function readCall(record: {
  readonly qualname: string;
  readonly rawArguments: Readonly<Record<string, unknown>>;
}): ReplayCall | { readonly skipped: string } {
  const { qualname } = record;
  const name = qualname.startsWith(STORAGE_PREFIX) ? qualname.slice(STORAGE_PREFIX.length) : '';
  if (!Object.hasOwn(PARAMETERS, name)) return { skipped: 'no such call' };
  let args: Arguments;
  try {
    args = readArguments(record);
    for (const [place, value] of args) refuseOpaque(place, value);
  } catch (error) {
    if (!(error instanceof TraceValueError)) throw error;
    return { skipped: error.message };
  }
  return buildCall(name as StorageOperation, args);
}

function refuseOpaque(place: string, value: TraceValue): void {
  if (Array.isArray(value)) for (const entry of value) refuseOpaque(place, entry);
  else if (value instanceof Map) for (const entry of value.values()) refuseOpaque(place, entry);
  else if (typeof value === 'object' && value !== null && 'tag' in value) {
    if (value.tag === 'opaque') throw new TraceValueError(`${place}: unknown type ${value.name}`);
  }
}

function buildCall(operation: StorageOperation, args: Arguments): ReplayCall {
  const { required, optional } = PARAMETERS[operation];
  const missing = required.find((name) => !args.has(name));
  if (missing !== undefined) throw new CallError(`expected the argument ${missing}, got none`);
  const names = [...required, ...optional];
  const foreign = [...args.keys()].find((name) => !names.includes(name));
  if (foreign !== undefined) throw new CallError(`the call has no argument ${foreign}`);
  const keys = keysOf(args.get('keys'));
  switch (operation) {
    case 'submit_prefetch_task':
      return {
        ...{ operation, keys, layout: layoutOf(args), extraCount: extraCountOf(args) },
        isPrefix: policyOf(args) === 'PREFIX',
        skipsL2: args.get('skip_l2') === true,
      };
    case 'reserve_write':
      return { operation, keys, layout: layoutOf(args) };
    case 'finish_read_prefetched':
      return { operation, keys, extraCount: extraCountOf(args) };
    default:
      return { operation, keys };
  }
}

function keysOf(value: TraceValue | undefined): readonly ObjectKeyFields[] {
  const isTuple = isTyped(value) && (value.tag === 'tuple' || value.tag === 'set');
  const list = isTuple ? value.value : value;
  if (!Array.isArray(list)) throw new CallError('expected keys to be a list');
  return list.map((key: TraceValue) => {
    if (isTyped(key) && key.tag === 'ObjectKey') return key.value;
    throw new CallError('expected keys to be object keys');
  });
}

function layoutOf(args: Arguments): LayoutFields {
  const value = args.get('layout_desc');
  if (isTyped(value) && value.tag === 'MemoryLayoutDesc') return value.value;
  throw new CallError('expected layout_desc to be a memory layout');
}

function extraCountOf(args: Arguments): number {
  const value = args.get('extra_count') ?? 0;
  const isCount = typeof value === 'number' && Number.isInteger(value);
  if (isCount && value >= 0 && value <= EXTRA_COUNT_MAX) return value;
  throw new CallError(`expected extra_count from 0 to ${EXTRA_COUNT_MAX}`);
}

function policyOf(args: Arguments): string {
  const value = args.get('policy');
  if (value === undefined || value === null) return 'PREFIX';
  if (isTyped(value) && value.tag === 'TrimPolicy') return value.value;
  throw new CallError('expected policy to be a trim policy');
}

function isTyped(
  value: TraceValue | undefined,
): value is Extract<TraceValue, { readonly tag: string }> {
  return typeof value === 'object' && value !== null && 'tag' in value;
}
