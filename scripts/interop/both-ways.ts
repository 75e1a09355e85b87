/** What one side stores, the other one finds, reads back byte for byte, and the other way round. */
import type { L2Backend } from '../../src/l2/backend.ts';
import type { ObjectKey } from '../../src/l2/object-key.ts';
import { l2Key, SlotArena } from '../../test/support/l2-objects.ts';
import { contentOf, type ReferenceAdapter, type Sample } from './reference-adapter.ts';

/** Counts and prints. */
export type Check = (title: string, isRight: boolean, seen: unknown) => void;

const ARENA_BYTES = 64 << 20;
const SIZES = [4096, 1000, 100_003, 1 << 20];

export interface Sides {
  readonly title: string;
  readonly ours: L2Backend;
  readonly theirs: ReferenceAdapter;
  /** Of what this release of the reference can take. */
  readonly hasSalts: boolean;
  /** For stores in which the reference cannot delete. */
  readonly canDelete: boolean;
  /** Of the values of a batch. */
  readonly sizes?: readonly number[];
  /** Lookups believe what they saw before, so that only a load shows a deletion by the other. */
  readonly remembersSizes?: boolean;
}

const never = new AbortController().signal;

function samplesOf(firstIndex: number, { hasSalts, sizes = SIZES }: Sides): Sample[] {
  const kinds: Partial<ObjectKey>[] = [
    {},
    { modelName: 'opt', kvRank: 0x0805_0805, objectGroupId: 17 },
    ...(hasSalts ? [{ cacheSalt: 'tenant-a' }, { cacheSalt: 'sél.b:c' }] : []),
  ];
  return kinds.flatMap((rest, kind) =>
    sizes.map((sizeBytes, i) => {
      const seed = firstIndex + kind * sizes.length + i;
      return { key: l2Key(seed, rest), sizeBytes, seed };
    }),
  );
}

export async function checkBothWays(sides: Sides, check: Check): Promise<void> {
  const arena = await SlotArena.open(ARENA_BYTES);
  try {
    await checkTheirsToOurs(sides, arena, check);
    arena.reset();
    await checkOursToTheirs(sides, arena, check);
  } finally {
    await arena.close();
  }
}

async function checkTheirsToOurs(sides: Sides, arena: SlotArena, check: Check): Promise<void> {
  const { title, ours, theirs, canDelete } = sides;
  const samples = samplesOf(1000, sides);
  const keys = samples.map(({ key }) => key);
  check(`${title}: the reference stores`, (await theirs.store(samples)).stored, '');
  const sizes = await ours.lookup(keys, never);
  const isFound = samples.every(({ sizeBytes }, i) => accepts(ours, sizes[i], sizeBytes));
  check(`${title}: kvd finds it`, isFound, sizes);
  const targets = samples.map(({ key, sizeBytes }) => arena.object(key, sizeBytes));
  const results = await ours.load(targets, never);
  const isEqual = samples.every(
    (sample, i) =>
      results[i] === 'loaded' &&
      Buffer.compare(targets[i]?.bytes ?? new Uint8Array(), contentOf(sample)) === 0,
  );
  check(`${title}: kvd reads the same bytes`, isEqual, results);
  check(`${title}: nothing outside`, arena.guardsHold(targets.map(({ bytes }) => bytes)), '');
  const again = await ours.store(targets, never);
  check(
    `${title}: kvd stores it again`,
    again.every((result) => !(result instanceof Error)),
    again,
  );
  if (!canDelete) return;
  await theirs.delete(keys);
  const left = sides.remembersSizes
    ? await ours.load(targets, never)
    : await ours.lookup(keys, never);
  check(
    `${title}: the reference deletes`,
    left.every((result) => result === null || result === 'missing'),
    left,
  );
}

async function checkOursToTheirs(sides: Sides, arena: SlotArena, check: Check): Promise<void> {
  const { title, ours, theirs } = sides;
  const samples = samplesOf(2000, sides);
  const keys = samples.map(({ key }) => key);
  const objects = samples.map((sample) => arena.object(sample.key, contentOf(sample)));
  const stored = await ours.store(objects, never);
  check(
    `${title}: kvd stores`,
    stored.every((result) => !(result instanceof Error)),
    stored,
  );
  const found = await theirs.lookup(keys);
  check(`${title}: the reference finds it`, found.every(Boolean), found);
  const { loaded, equal } = await theirs.load(samples);
  const isEqual = loaded.every(Boolean) && equal.every(Boolean);
  check(`${title}: the reference reads the same bytes`, isEqual, { loaded, equal });
  check(`${title}: the reference stores it again`, (await theirs.store(samples)).stored, '');
  const deleted = await ours.delete(keys, never);
  check(
    `${title}: kvd deletes`,
    deleted.every((result) => result === 'deleted'),
    deleted,
  );
  const left = sides.remembersSizes
    ? (await theirs.load(samples)).loaded
    : await theirs.lookup(keys);
  check(`${title}: the reference finds nothing any more`, !left.some(Boolean), left);
}

function accepts(backend: L2Backend, stored: unknown, sizeBytes: number): boolean {
  if (typeof stored !== 'number') return false;
  return backend.acceptsSize?.(stored, sizeBytes) ?? stored === sizeBytes;
}
