/** What the engine announces, over the real storage room, and what a follower makes of it. */

import * as assert from 'uvu/assert';
import { NO_SLOT } from '../../../src/core/object-table.ts';
import { tokenSpanOf } from '../../../src/core/token-span.ts';
import type { CacheKey } from '../../../src/engine/api.ts';
import { ChunkAnnouncer } from '../../../src/engine/kv-events/chunk-announcer.ts';
import { KvEventLog } from '../../../src/engine/kv-events/kv-event-log.ts';
import type { RegisteredLayout } from '../../../src/engine/layout-registry.ts';
import { EventBus } from '../../../src/observability/event-bus.ts';
import type { StoredChunks } from '../../../src/observability/events.ts';
import { NO_WINDOW } from '../../../src/storage/window-fold.ts';
import { ALIGN_BYTES, buildL1House, shapeOf } from '../../support/l1-house.ts';
import fc from '../../support/property.ts';
import { suite } from '../../support/suite.ts';

const CHUNK_TOKENS = 16;
const WORLD_SIZE = 2;
const PROMPTS = 3;
const CHUNKS = 4;
const SALTS = ['', 'a'];

interface HouseOptions {
  /** Window of each object group. */
  readonly windows?: readonly number[];
  readonly isFollowed?: boolean;
  readonly units?: number;
}

function tokensOf(prompt: number): number[] {
  return Array.from({ length: CHUNKS * CHUNK_TOKENS }, (_, i) => prompt * 70_000 + i);
}

function keyOf(prompt: number, rest: Partial<CacheKey> = {}): CacheKey {
  return {
    modelName: 'm',
    worldSize: WORLD_SIZE,
    workerId: 0,
    tokens: tokenSpanOf(tokensOf(prompt)),
    startToken: 0,
    endToken: CHUNKS * CHUNK_TOKENS,
    requestId: 'r',
    cacheSalt: '',
    readerCount: null,
    requestConfigs: null,
    ...rest,
  };
}

function openHouse({ windows = [NO_WINDOW], isFollowed = true, units = 64 }: HouseOptions = {}) {
  const house = buildL1House({ sizeBytes: units * ALIGN_BYTES, watermarkRatio: 1 });
  const { core, storage, bus } = house;
  const layout: RegisteredLayout = {
    isVllm: true,
    isVllmMla: false,
    objectGroups: [],
    objectGroupIds: windows.map((_, id) => id),
    groupRules: windows.map((windowChunks) => ({ layoutTags: new Map(), windowChunks })),
  };
  const instances = {
    findLayout: (model: string) => (model === 'm' ? layout : undefined),
  };
  const announcer = new ChunkAnnouncer({ storage, instances, bus, hasher: core.hasher });
  const log = new KvEventLog({ bus, recordCountMax: isFollowed ? 100_000 : 0 });
  const stored: StoredChunks[] = [];
  if (isFollowed) bus.subscribe('l1.chunks.stored', (chunks) => stored.push(chunks));

  const hashesOf = (prompt: number) => core.hasher.hashChunks(tokenSpanOf(tokensOf(prompt)));
  /** One rank stores a range of chunks of one object group, as a STORE does. */
  const storeRank = (
    prompt: number,
    rank: number,
    of: { first?: number; count?: number; salt?: string; group?: number } = {},
  ) => {
    const { first: firstChunk = 0, count: chunkCount = CHUNKS, salt = '', group = 0 } = of;
    const key = keyOf(prompt, { workerId: rank, cacheSalt: salt });
    const { modelName, worldSize } = key;
    const namespace = { modelName, worldSize, objectGroupId: group, cacheSalt: salt };
    const namespaceIds = [storage.internNamespace({ ...namespace, workerId: rank })];
    const hashes = hashesOf(prompt);
    const keys = { hashes, firstChunk, chunkCount, namespaceIds };
    storage.finishStore(storage.reserveStore(keys, shapeOf()).slots);
    announcer.announce({ key, hashes, firstChunk, chunkCount });
  };
  const whole = (): string[] => {
    const names: string[] = [];
    for (const salt of SALTS) {
      const namespace = {
        modelName: 'm',
        worldSize: WORLD_SIZE,
        objectGroupId: 0,
        cacheSalt: salt,
      };
      const namespaceIds = [0, 1].map((workerId) =>
        storage.findNamespace({ ...namespace, workerId }),
      );
      for (let prompt = 0; prompt < PROMPTS; prompt += 1) {
        for (let firstChunk = 0; firstChunk < CHUNKS; firstChunk += 1) {
          const keys = { hashes: hashesOf(prompt), firstChunk, chunkCount: 1, namespaceIds };
          if (!core.table.find(keys).includes(NO_SLOT))
            names.push(`${salt}:${prompt}:${firstChunk}`);
        }
      }
    }
    return names.sort();
  };
  return { ...house, announcer, log, stored, storeRank, hashesOf, whole };
}

const hex = (bytes: Uint8Array | null | undefined): string =>
  Buffer.from(bytes ?? []).toString('hex');

suite('announced chunks of a prompt', (test) => {
  test('come when the last rank has stored them, with tokens and parent', () => {
    const { storeRank, stored, hashesOf } = openHouse();
    storeRank(1, 0);
    assert.is(stored.length, 0);
    storeRank(1, 1, { first: 1, count: 2 });
    assert.is(stored.length, 1);
    const { hashes, parentHash, tokenIds, ...scope } = stored[0] as StoredChunks;
    const { bytes } = hashesOf(1);
    assert.equal(scope, { modelName: 'm', worldSize: WORLD_SIZE, cacheSalt: '' });
    assert.equal(hashes.map(hex), [hex(bytes.slice(32, 64)), hex(bytes.slice(64, 96))]);
    assert.is(hex(parentHash), hex(bytes.slice(0, 32)));
    assert.equal([...tokenIds], tokensOf(1).slice(CHUNK_TOKENS, 3 * CHUNK_TOKENS));
  });

  test('come in runs where some were announced before', () => {
    const { storeRank, stored } = openHouse();
    storeRank(1, 0);
    storeRank(1, 1, { first: 1, count: 1 });
    storeRank(1, 1);
    assert.equal(
      stored.map(({ hashes }) => hashes.length),
      [1, 1, 2],
    );
    assert.is(stored[1]?.parentHash, null);
  });

  test('come again only after they had gone', () => {
    const { storeRank, stored, storage, log } = openHouse();
    storeRank(1, 0);
    storeRank(1, 1);
    storeRank(1, 1);
    storeRank(1, 0);
    assert.is(stored.length, 1);
    storage.clear(true);
    storeRank(1, 0);
    storeRank(1, 1);
    assert.is(stored.length, 2);
    assert.is(log.clearedMarkerCount, 1);
  });

  test('need every object group that needs the whole prefix, and no other', () => {
    const { storeRank, stored } = openHouse({ windows: [2, NO_WINDOW] });
    for (const rank of [0, 1]) storeRank(1, rank, { group: 0, first: 2, count: 2 });
    assert.is(stored.length, 0, 'the group with a window does not make a chunk');
    for (const rank of [0, 1]) storeRank(1, rank, { group: 1, count: 2 });
    assert.equal(
      stored.map(({ hashes }) => hashes.length),
      [2],
    );
  });

  test('need all object groups where all have a window', () => {
    const { storeRank, stored } = openHouse({ windows: [2, 1] });
    for (const rank of [0, 1]) storeRank(1, rank, { group: 0 });
    assert.is(stored.length, 0);
    for (const rank of [0, 1]) storeRank(1, rank, { group: 1 });
    assert.is(stored.length, 1);
  });

  test('are none for a model without workers', () => {
    const { announcer, hashesOf, stored } = openHouse();
    const range = { hashes: hashesOf(1), firstChunk: 0, chunkCount: CHUNKS };
    announcer.announce({ key: keyOf(1, { modelName: 'gone' }), ...range });
    announcer.announce({ key: keyOf(1, { worldSize: 2 ** 31 }), ...range });
    assert.is(stored.length, 0);
  });

  test('cost the core nothing when nobody follows', () => {
    const { storeRank, core } = openHouse({ isFollowed: false });
    storeRank(1, 0);
    storeRank(1, 1);
    let told = 0;
    const count = () => {
      told += 1;
    };
    core.table.removals.listen({ removed: count, cleared: count, lost: count });
    core.table.clear(true, 0);
    assert.is(told, 0);
  });
});

const step = fc.record({
  operation: fc.constantFrom(
    'store',
    'store',
    'store',
    'store',
    'evict',
    'clear',
    'clearIdle',
    'hold',
  ),
  prompt: fc.nat(PROMPTS - 1),
  rank: fc.nat(1),
  first: fc.nat(CHUNKS - 1),
  count: fc.integer({ min: 1, max: CHUNKS }),
  salt: fc.constantFrom(...SALTS),
  pick: fc.nat(9),
});

suite('a follower of the KV event log', (test) => {
  test('knows exactly the chunks that L1 holds, whatever happens', async () => {
    await fc.assert(
      fc.asyncProperty(fc.array(step, { maxLength: 60, size: 'max' }), async (steps) => {
        // Room for a third of everything, so that stores evict, too.
        const { storeRank, storage, l1, log, whole, hashesOf } = openHouse({ units: 16 });
        const names = namesOf(hashesOf);
        const holds: Uint32Array[] = [];
        const believed = new Set<string>();
        let cursor = 0;
        for (const { operation, prompt, rank, first, salt, pick, ...one } of steps) {
          const count = Math.min(one.count, CHUNKS - first);
          if (operation === 'store') storeRank(prompt, rank, { first, count, salt });
          if (operation === 'evict') l1.evict(pick * ALIGN_BYTES, 10, false);
          if (operation === 'clear' && pick === 0) storage.clear(true);
          if (operation === 'clearIdle' && pick < 3) await storage.clear(false);
          if (operation === 'hold') holdSome(prompt, salt);
          const page = log.read({ modelName: 'm', worldSize: WORLD_SIZE }, cursor, 1024);
          cursor = page.nextCursor;
          if (page.isLost) believed.clear();
          for (const event of page.events) {
            for (const hash of event.blockHashes) {
              const name = names(hex(hash));
              assert.is(believed.has(name), event.kind === 'removed', `${event.kind} ${name}`);
              if (event.kind === 'stored') believed.add(name);
              else believed.delete(name);
            }
          }
          assert.equal([...believed].sort(), whole());
        }
        storage.close(0);

        function holdSome(prompt: number, salt: string): void {
          const earlier = holds.pop();
          if (earlier) {
            storage.releaseHolds(earlier, 1);
            return;
          }
          const namespace = { modelName: 'm', worldSize: WORLD_SIZE, objectGroupId: 0 };
          const namespaceIds = [
            storage.findNamespace({ ...namespace, workerId: 0, cacheSalt: salt }),
          ];
          const keys = { hashes: hashesOf(prompt), firstChunk: 0, chunkCount: 2, namespaceIds };
          const rules = [{ layoutTags: new Map([[7, 1]]), windowChunks: NO_WINDOW }];
          holds.push(l1.hold(keys, 1, rules));
        }
      }),
      { numRuns: 60 },
    );
  });
});

/** From what a follower sees to what it means. */
function namesOf(
  hashesOf: (prompt: number) => { readonly bytes: Uint8Array },
): (hash: string) => string {
  const names = new Map<string, string>();
  for (const salt of SALTS) {
    // The log's own rule for tenants is tested with the log; here it only has to be the same.
    const bus = new EventBus();
    const log = new KvEventLog({ bus, recordCountMax: 1000 });
    for (let prompt = 0; prompt < PROMPTS; prompt += 1) {
      const { bytes } = hashesOf(prompt);
      for (let chunk = 0; chunk < CHUNKS; chunk += 1) {
        const hash = bytes.slice(chunk * 32, (chunk + 1) * 32);
        const scope = { modelName: 'm', worldSize: WORLD_SIZE, cacheSalt: salt };
        bus.publish('l1.chunks.removed', { ...scope, hashes: [hash] });
        const { events } = log.read({ modelName: 'm', worldSize: null }, log.nextSeq - 2, 1);
        names.set(hex(events[0]?.blockHashes[0]), `${salt}:${prompt}:${chunk}`);
      }
    }
  }
  return (hash) => names.get(hash) ?? 'unknown';
}
