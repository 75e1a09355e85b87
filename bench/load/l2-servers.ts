/**
 * `npm run bench:l2-servers -- --reference PYTHON [--size-mib 4] [--count 64] [--rounds 3]`
 *
 * How fast `resp` and `s3` store, look up and load, beside the adapters of the reference with the
 * same server on this machine (a real Redis, a real SeaweedFS), each called once with all objects.
 * Both sides in turn, the best round of each counts.
 */
import { parseArgs } from 'node:util';
import { ReferenceAdapter } from '../../scripts/interop/reference-adapter.ts';
import { DOMAIN, openSharedBucket } from '../../scripts/interop/s3.ts';
import { backendType as resp } from '../../src/l2/adapters/resp.ts';
import { backendType as s3 } from '../../src/l2/adapters/s3.ts';
import type { L2Backend, L2Object } from '../../src/l2/backend.ts';
import { GIB, MIB } from '../../src/units.ts';
import { openBackend } from '../../test/support/l2-context.ts';
import { l2Key, SlotArena } from '../../test/support/l2-objects.ts';
import { startRedis, startS3 } from '../../test/support/l2-servers.ts';

const { values } = parseArgs({
  options: {
    reference: { type: 'string' },
    'size-mib': { type: 'string', default: '4' },
    count: { type: 'string', default: '64' },
    rounds: { type: 'string', default: '3' },
  },
});
const sizeBytes = Math.round(Number(values['size-mib']) * MIB);
const count = Number(values.count);
const roundCount = Number(values.rounds);
const gibPerSecond = (seconds: number): number => (sizeBytes * count) / GIB / seconds;
const never = new AbortController().signal;

interface Speeds {
  store: number;
  load: number;
  /** Objects looked up per second. */
  lookup: number;
}

interface Side {
  measure(round: number): Promise<Speeds>;
  end(): Promise<void>;
}

async function secondsOf(run: () => Promise<unknown>): Promise<number> {
  const startMs = performance.now();
  await run();
  return (performance.now() - startMs) / 1000;
}

function ours(backend: L2Backend, arena: SlotArena): Side {
  return {
    async measure(round) {
      arena.reset();
      const objects: L2Object[] = Array.from({ length: count }, (_, index) => {
        const object = arena.object(l2Key(1_000_000 + round * count + index), sizeBytes);
        object.bytes.fill(index + 1);
        return object;
      });
      const keys = objects.map(({ key }) => key);
      const store = await secondsOf(() => backend.store(objects, never));
      const lookup = await secondsOf(() => backend.lookup(keys, never));
      const load = await secondsOf(() => backend.load(objects, never));
      return { store: gibPerSecond(store), load: gibPerSecond(load), lookup: count / lookup };
    },
    end: () => backend.close(),
  };
}

function theirs(adapter: ReferenceAdapter): Side {
  return {
    async measure(round) {
      const samples = Array.from({ length: count }, (_, index) => ({
        ...{ key: l2Key(round * count + index), sizeBytes, seed: index },
      }));
      const store = gibPerSecond((await adapter.store(samples)).seconds);
      const keys = samples.map(({ key }) => key);
      const lookup = await secondsOf(() => adapter.lookup(keys));
      const load = gibPerSecond((await adapter.load(samples)).seconds);
      return { store, load, lookup: count / lookup };
    },
    end: () => adapter.end(),
  };
}

async function compare(name: string, sides: Readonly<Record<string, Side>>): Promise<void> {
  const best: Record<string, Speeds> = {};
  for (let round = 0; round < roundCount; round += 1) {
    for (const [side, { measure }] of Object.entries(sides)) {
      const now = await measure(round);
      const before = best[side] ?? now;
      best[side] = {
        store: Math.max(before.store, now.store),
        load: Math.max(before.load, now.load),
        lookup: Math.max(before.lookup, now.lookup),
      };
    }
  }
  for (const { end } of Object.values(sides)) await end();
  console.log(`${name}: ${count} objects of ${values['size-mib']} MiB`);
  const rows = Object.entries(best).map(([side, { store, load, lookup }]) => ({
    side,
    'store GiB/s': store.toFixed(2),
    'load GiB/s': load.toFixed(2),
    'lookups/s': lookup.toFixed(0),
  }));
  console.table(rows);
}

async function reference(spec: Readonly<Record<string, unknown>>): Promise<Record<string, Side>> {
  if (!values.reference) return {};
  return { reference: theirs(await ReferenceAdapter.start(values.reference, null, spec)) };
}

async function compareRedis(arena: SlotArena): Promise<void> {
  const server = await startRedis();
  try {
    const address = { host: '127.0.0.1', port: server.port };
    await compare('resp', {
      kvd: ours(await openBackend(resp, address), arena),
      ...(await reference({ type: 'resp', ...address })),
    });
  } finally {
    await server.stop();
  }
}

async function compareS3(arena: SlotArena): Promise<void> {
  const server = await startS3(DOMAIN);
  try {
    const specs = await openSharedBucket(server.port);
    await compare('s3', {
      kvd: ours(await openBackend(s3, specs.ours), arena),
      ...(await reference(specs.theirs)),
    });
  } finally {
    await server.stop();
  }
}

const arena = await SlotArena.open(sizeBytes * count + (count + 1) * 8192);
await compareRedis(arena);
await compareS3(arena);
await arena.close();
