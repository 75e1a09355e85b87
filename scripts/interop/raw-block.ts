/**
 * `raw_block`: one image under both servers in turn, because only one may have it at a time. The
 * reference runs on a stand-in for its native module (lmcache_rust_raw_block_io.py); index and
 * layout are its own code.
 */
import type { L2Backend } from '../../src/l2/backend.ts';
import type { ObjectKey } from '../../src/l2/object-key.ts';
import { KIB } from '../../src/units.ts';
import { l2Key, SlotArena } from '../../test/support/l2-objects.ts';
import { DeviceFile } from '../../test/support/raw-block-device.ts';
import type { Check } from './both-ways.ts';
import { contentOf, ReferenceAdapter, type Sample } from './reference-adapter.ts';

const SIZES = [4096, 1000, 100_003];
const SLOT_COUNT = 24;
const never = new AbortController().signal;

/** Six objects: three sizes, with and without a tenant. */
function samplesOf(firstIndex: number): Sample[] {
  const kinds: Partial<ObjectKey>[] = [
    { modelName: 'org/a b+c%d' },
    { modelName: 'opt', kvRank: 0x0805_0805, objectGroupId: 17, cacheSalt: 'sél.b:c' },
  ];
  return kinds.flatMap((rest, kind) =>
    SIZES.map((sizeBytes, i) => {
      const seed = firstIndex + kind * SIZES.length + i;
      return { key: l2Key(seed, rest), sizeBytes, seed };
    }),
  );
}

export async function run(python: string, release: string, check: Check): Promise<void> {
  const device = new DeviceFile({ slotBytes: 104 * KIB, slotCount: SLOT_COUNT });
  const arena = await SlotArena.open(16 << 20);
  const title = `${release} raw_block`;
  const { slotBytes, metaBytes } = device.shape;
  const spec = { device_path: device.path, slot_bytes: slotBytes, meta_total_bytes: metaBytes };
  const withTheirs = async (act: (theirs: ReferenceAdapter) => Promise<void>): Promise<void> => {
    const json = { type: 'raw_block', ...spec, use_odirect: false };
    const theirs = await ReferenceAdapter.start(python, release, json);
    await act(theirs).finally(() => theirs.end());
  };
  const withOurs = async (act: (ours: L2Backend) => Promise<void>): Promise<void> => {
    const ours = await device.open();
    await act(ours).finally(() => ours.close());
  };
  const checkOurs = async (ours: L2Backend, what: string, samples: Sample[]): Promise<void> => {
    arena.reset();
    const targets = samples.map(({ key, sizeBytes }) => arena.object(key, sizeBytes));
    const results = await ours.load(targets, never);
    const isEqual = samples.every(
      (sample, i) => Buffer.compare(targets[i]?.bytes ?? Buffer.of(), contentOf(sample)) === 0,
    );
    check(`${title}: kvd reads ${what}`, isEqual, results);
  };
  const checkTheirs = async (theirs: ReferenceAdapter, what: string, samples: Sample[]) => {
    const { loaded, equal } = await theirs.load(samples);
    const isEqual = loaded.every(Boolean) && equal.every(Boolean);
    check(`${title}: the reference reads ${what}`, isEqual, { loaded, equal });
  };
  const [first, second, third] = [samplesOf(100), samplesOf(200), samplesOf(300)];
  try {
    await withTheirs(async (theirs) => {
      check(`${title}: the reference stores`, (await theirs.store(first)).stored, '');
    });
    await withOurs(async (ours) => {
      await checkOurs(ours, 'what the reference has stored', first);
      await ours.delete(keysOf(first.slice(0, 3)), never);
      const objects = second.map((sample) => arena.object(sample.key, contentOf(sample)));
      const results = await ours.store(objects, never);
      check(
        `${title}: kvd stores`,
        results.every((result) => result === 'stored'),
        results,
      );
    });
    await withTheirs(async (theirs) => {
      await checkTheirs(theirs, 'what kvd has stored and left', [...first.slice(3), ...second]);
      const gone = await theirs.lookup(keysOf(first.slice(0, 3)));
      check(`${title}: the reference misses what kvd has deleted`, !gone.some(Boolean), gone);
      check(`${title}: the reference stores again`, (await theirs.store(third)).stored, '');
      await theirs.delete(keysOf(second.slice(0, 2)));
    });
    await withOurs(async (ours) => {
      const left = [...first.slice(3), ...second.slice(2), ...third];
      await checkOurs(ours, 'all that is left', left);
      const { next_slot, free_slot_count } = ours.status()['core'] as Record<string, number>;
      const usedCount = (next_slot ?? 0) - (free_slot_count ?? 0);
      check(`${title}: no slot is lost`, usedCount === left.length, { next_slot, free_slot_count });
      // Twelve of the first two rounds; of the six of the third, three took slots that were free.
      check(`${title}: freed slots are used again`, next_slot === 15, next_slot);
    });
  } finally {
    await arena.close();
    device.remove();
  }
}

const keysOf = (samples: readonly Sample[]): ObjectKey[] => samples.map(({ key }) => key);
