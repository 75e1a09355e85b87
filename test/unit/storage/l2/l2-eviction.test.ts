/** Eviction from L2 and the quotas of tenants (spec storage 10.7, 10.8, 18.18-18.22). */
import { setImmediate } from 'node:timers/promises';
import * as assert from 'uvu/assert';
import type { EvictionSettings } from '../../../../src/l2/adapter-spec.ts';
import type { ObjectKey } from '../../../../src/l2/object-key.ts';
import { EventBus } from '../../../../src/observability/event-bus.ts';
import { L2Eviction } from '../../../../src/storage/l2/l2-eviction.ts';
import { QuotaTable } from '../../../../src/storage/l2/quota.ts';
import { EvictedStore } from '../../../support/evicted-store.ts';
import { policyVectors } from '../../../support/policy-vectors.ts';
import { RecordingLogger } from '../../../support/recording-logger.ts';
import { suite } from '../../../support/suite.ts';
import { VirtualClock } from '../../../support/virtual-clock.ts';

/** `salt:n`, as in the recorded traces. */
function keyOf(text: string, kvRank = 0x0100_0100): ObjectKey {
  const [cacheSalt = '', chunk = ''] = text.split(':');
  const chunkHash = new Uint8Array(4);
  new DataView(chunkHash.buffer).setUint32(0, Number(chunk));
  return { chunkHash, modelName: 'm', kvRank, objectGroupId: 0, cacheSalt };
}

function textOf({ chunkHash, cacheSalt }: ObjectKey): string {
  return `${cacheSalt}:${Buffer.from(chunkHash).readUInt32BE()}`;
}

const settingsOf = (settings: Partial<EvictionSettings>): EvictionSettings => ({
  policy: 'LRU',
  triggerWatermark: 0.8,
  evictionRatio: 0.2,
  ...settings,
});

async function evictionHouse(defaultLimitBytes: number | null = null) {
  const clock = new VirtualClock();
  const log = new RecordingLogger();
  const bus = new EventBus();
  const quotas = await QuotaTable.open({ filePath: null, defaultLimitBytes });
  const eviction = new L2Eviction({ quotas, clock, bus, log });
  let count = 0;
  const add = (settings: Partial<EvictionSettings>, capacityBytes = 0): EvictedStore => {
    const store = new EvictedStore({ id: count, capacityBytes });
    count += 1;
    eviction.add(store, settingsOf(settings));
    return store;
  };
  /** Lets what is due run to its end. */
  const settle = async (deltaMs = 0): Promise<void> => {
    for (let turn = 0; turn < 20; turn += 1) {
      clock.advance(turn === 0 ? deltaMs : 0);
      await setImmediate();
    }
  };
  return { clock, log, bus, quotas, eviction, add, settle };
}

const objects = (sizeBytes: number, ...texts: string[]) =>
  texts.map((text) => [keyOf(text), sizeBytes] as const);

const deletedTexts = ({ deletes }: EvictedStore): string[] => deletes.flat().map(textOf);

interface Usage {
  readonly total: number;
  readonly capacity: number;
  readonly by_salt: Readonly<Record<string, number>>;
}

interface Trace {
  readonly name: string;
  readonly policy: EvictionSettings['policy'];
  readonly capacity_bytes: number;
  readonly trigger_watermark: number;
  readonly eviction_ratio: number;
  readonly ops: readonly {
    readonly op: 'store' | 'access' | 'cycle' | 'set_quota' | 'delete_quota';
    readonly items?: readonly (readonly [string, number])[];
    readonly keys?: readonly string[];
    readonly salt?: string;
    readonly bytes?: number;
    readonly result?: boolean;
    readonly deleted?: readonly (readonly string[])[];
    readonly usage: Usage;
  }[];
}

async function replay(trace: Trace): Promise<void> {
  // What the reference does with salts that have no quota.
  const { quotas, eviction, add } = await evictionHouse(0);
  const { policy, trigger_watermark: triggerWatermark, eviction_ratio: evictionRatio } = trace;
  const store = add({ policy, triggerWatermark, evictionRatio }, trace.capacity_bytes);
  for (const [index, step] of trace.ops.entries()) {
    const where = `step ${index}: ${step.op}`;
    if (step.op === 'store') {
      store.store((step.items ?? []).map(([text, bytes]) => [keyOf(text), bytes] as const));
    } else if (step.op === 'access') {
      store.access((step.keys ?? []).map((text) => keyOf(text)));
    } else if (step.op === 'set_quota') {
      await quotas.set(step.salt!, step.bytes!);
    } else if (step.op === 'delete_quota') {
      assert.is(await quotas.delete(step.salt!), step.result, where);
    } else {
      store.deletes.length = 0;
      await eviction.controllerOf(store.id)?.runCycle();
      assert.equal(deletedTexts(store), step.deleted?.flat(), where);
    }
    const { usedBytes, bytesBySalt } = store.usage();
    assert.is(usedBytes, step.usage.total, where);
    assert.equal(Object.fromEntries([...bytesBySalt].sort()), step.usage.by_salt, where);
  }
}

suite('L2 eviction: follows the reference', (test) => {
  for (const trace of policyVectors<Trace[]>('l2_eviction')) {
    // Storing again counts twice there; here it replaces (18.22).
    if (trace.name === 'accounting') continue;
    test(trace.name, () => replay(trace));
  }
});

suite('L2 eviction: watermark', (test) => {
  test('a store over the watermark evicts at once, the oldest first, until below it', async () => {
    const { add, settle, bus } = await evictionHouse();
    const asked: unknown[] = [];
    bus.subscribe('l2.keys.evicted', ({ countBySalt }) =>
      asked.push(Object.fromEntries(countBySalt)),
    );
    const store = add({}, 1000);
    store.store(objects(100, ':0'));
    for (let i = 1; i < 10; i += 1) store.store(objects(100, `:${i}`));
    await settle();
    assert.equal(deletedTexts(store), [':0', ':1', ':2']);
    assert.is(store.usage().usedBytes, 700);
    assert.equal(asked, [{ '': 2 }, { '': 1 }]);
  });

  test('a store that refuses all of many deletes is not asked for more in this cycle', async () => {
    const { add, settle } = await evictionHouse();
    const store = add({ evictionRatio: 1 }, 100 * 5000);
    store.refuses = () => true;
    const texts = Array.from({ length: 5000 }, (_, i) => `:${i}`);
    store.store(objects(100, ...texts));
    await settle();
    assert.is(deletedTexts(store).length, 512);
    store.refuses = () => false;
    await settle(1000);
    assert.ok(store.usage().usedBytes < 400_000);
  });

  test('a chunk leaves as a whole: all ranks and object groups', async () => {
    const { add, settle } = await evictionHouse();
    const store = add({}, 1000);
    const family = [0x0200_0200, 0x0201_0201].flatMap((kvRank) =>
      [0, 1].map((objectGroupId) => ({ ...keyOf(':7', kvRank), objectGroupId })),
    );
    store.store(family.map((key) => [key, 100] as const));
    store.store(objects(100, ':1', ':2', ':3', ':4'));
    await settle();
    assert.equal(deletedTexts(store), [':7', ':7', ':7', ':7']);
  });

  test('what a lookup has locked stays, with its whole chunk', async () => {
    const { add, settle } = await evictionHouse();
    const store = add({}, 1000);
    store.locks = (key) => textOf(key) === ':0' && key.kvRank === 0x0201_0201;
    store.store([
      [keyOf(':0', 0x0200_0200), 300],
      [keyOf(':0', 0x0201_0201), 300],
    ]);
    store.store(objects(300, ':1'));
    await settle();
    assert.equal(deletedTexts(store), [':1']);
  });

  test('a chunk that the store refuses to delete is left alone for a while', async () => {
    const { add, settle, eviction } = await evictionHouse();
    const store = add({}, 1000);
    store.refuses = (key) => textOf(key) === ':0';
    for (const text of [':0', ':1', ':2']) store.store(objects(300, text));
    await settle();
    assert.equal(deletedTexts(store), [':0']);
    // The next cycles pass it over.
    await settle(1000);
    assert.equal(deletedTexts(store), [':0', ':1']);
    store.refuses = () => false;
    store.store(objects(300, ':3'));
    await settle(1000);
    assert.equal(deletedTexts(store), [':0', ':1', ':2']);
    await settle(31_000);
    store.store(objects(300, ':4'));
    await settle(1000);
    assert.equal(deletedTexts(store).slice(3), [':0']);
    const [status] = eviction.status()['adapters'] as Record<string, unknown>[];
    assert.is(status?.['refused_object_count'], 1);
  });

  test('a cycle that fails is logged and counted, and the next one goes on', async () => {
    const { add, settle, eviction, log } = await evictionHouse();
    const store = add({}, 1000);
    store.deleteFailure = new Error('the disk is on fire');
    store.store(objects(300, ':0', ':1', ':2'));
    await settle();
    assert.ok(log.has(/eviction from L2 adapter 0 \(double\) failed: Error: the disk is on fire/));
    const [status] = eviction.status()['adapters'] as Record<string, unknown>[];
    assert.is(status?.['failure_count'], 1);
    assert.equal(eviction.healthProblems(), []);
    assert.equal(eviction.troubles(), ['eviction from L2 adapter 0 (double) fails']);
    store.deleteFailure = null;
    await settle(1000);
    assert.equal(eviction.troubles(), []);
    assert.is(store.usage().usedBytes, 600);
  });

  test('deletes that never end show as a stuck loop', async () => {
    const { add, settle, eviction } = await evictionHouse();
    const store = add({}, 1000);
    store.gate = new Promise(() => {});
    store.store(objects(300, ':0', ':1', ':2'));
    await settle();
    assert.equal(eviction.healthProblems(), []);
    await settle(301_000);
    assert.equal(eviction.healthProblems(), ['the eviction loop of L2 adapter 0 is stuck']);
    assert.is(eviction.status()['is_healthy'], false);
  });

  test('without a capacity LRU is warned about and evicts nothing', async () => {
    const { add, settle, eviction, log } = await evictionHouse();
    const store = add({});
    store.store(objects(1e9, ':0'));
    await settle(2000);
    assert.equal(store.deletes, []);
    assert.equal(eviction.status()['adapters'], []);
    assert.ok(log.has(/eviction \(LRU\) does nothing without a capacity/));
  });

  test('what a scan finds is evicted by age, before what was stored meanwhile', async () => {
    const { add, settle } = await evictionHouse();
    const store = add({}, 1000);
    store.isScanning = true;
    store.store(objects(300, ':9'));
    store.find(objects(300, ':5', ':3'));
    store.find(objects(300, ':4'));
    await settle(3000);
    assert.equal(store.deletes, [], 'nothing is evicted during a scan');
    store.isScanning = false;
    await settle(1000);
    assert.equal(deletedTexts(store), [':5', ':3']);
    assert.ok(store.has(keyOf(':9')));
  });
});

suite('L2 eviction: room for a store', (test) => {
  test('as much is deleted as the store lacks', async () => {
    const { add, settle } = await evictionHouse();
    const store = add({ triggerWatermark: 1 }, 1000);
    store.store(objects(100, ':0', ':1', ':2', ':3', ':4', ':5', ':6', ':7', ':8'));
    const room = store.makeRoom(250);
    await settle();
    await room;
    assert.equal(deletedTexts(store), [':8', ':7', ':6']);
  });

  test('stores that wait at the same time get room for all of them', async () => {
    const { add, settle } = await evictionHouse();
    const store = add({ triggerWatermark: 1 }, 10_000);
    store.store(objects(10, ...Array.from({ length: 900 }, (_, i) => `:${i}`)));
    const rooms = [store.makeRoom(3000), store.makeRoom(1000)];
    await settle();
    await Promise.all(rooms);
    assert.is(store.usage().usedBytes, 5000);
    assert.ok(store.deletes.length > 1, 'more than one batch');
  });

  test('it is over when nothing more can go, and while a scan runs', async () => {
    const { add, settle } = await evictionHouse();
    const store = add({}, 1000);
    store.locks = () => true;
    store.store(objects(100, ':0'));
    const room = store.makeRoom(950);
    await settle();
    await room;
    assert.equal(store.deletes, []);
    store.isScanning = true;
    await store.makeRoom(950);
  });

  test('IsolatedLRU takes from the tenant over its quota, else from the largest', async () => {
    const { add, settle, quotas } = await evictionHouse();
    await quotas.set('a', 150);
    const store = add({ policy: 'IsolatedLRU', triggerWatermark: 1 }, 1000);
    store.isScanning = true;
    store.store(objects(100, 'a:0', 'a:1', 'b:0', 'b:1', 'b:2', 'c:0'));
    store.isScanning = false;
    for (const bytes of [50, 50]) {
      const room = store.makeRoom(bytes);
      await settle();
      await room;
    }
    assert.equal(deletedTexts(store).slice(0, 2), ['a:1', 'b:2']);
  });
});

suite('L2 eviction: quotas', (test) => {
  test('a tenant without a quota is exempt, the empty salt too', async () => {
    const { add, settle, quotas } = await evictionHouse();
    await quotas.set('a', 100);
    const store = add({ policy: 'IsolatedLRU' });
    store.store([...objects(1000, 'b:0', ':0'), ...objects(50, 'a:0')]);
    await settle(2000);
    assert.equal(store.deletes, []);
  });

  test('the limit bounds the sum over all adapters that evict', async () => {
    const { add, settle, quotas } = await evictionHouse();
    await quotas.set('a', 1000);
    const stores = [add({ policy: 'IsolatedLRU' }), add({ policy: 'IsolatedLRU' })];
    for (const store of stores) {
      store.store(objects(100, 'a:0', 'a:1', 'a:2', 'a:3', 'a:4', 'a:5'));
      store.store(objects(100, 'b:0'));
    }
    await settle(1000);
    const sum = stores.reduce((bytes, store) => bytes + store.usage().bytesBySalt.get('a')!, 0);
    assert.ok(sum < 800, `${sum} bytes are left`);
    assert.ok(stores.every((store) => store.has(keyOf('b:0'))));
  });

  test('a lowered quota takes effect when it is set', async () => {
    const { add, settle, quotas, eviction } = await evictionHouse();
    const store = add({ policy: 'IsolatedLRU' });
    store.store(objects(100, 'a:0', 'a:1', 'b:0'));
    await settle();
    await quotas.set('a', 0);
    eviction.wake();
    await settle();
    assert.equal(deletedTexts(store), ['a:1', 'a:0']);
    assert.ok(eviction.enforcesQuotas);
  });

  test('usage by tenant is the sum over adapters, also of those that do not evict', async () => {
    const { add, eviction } = await evictionHouse();
    const [first, second] = [add({}), add({ policy: 'IsolatedLRU' })];
    first.store(objects(100, 'a:0', ':0'));
    second.store(objects(100, 'a:0'));
    assert.equal(
      [...eviction.usageBySalt()],
      [
        ['a', 200],
        ['', 100],
      ],
    );
    eviction.remove(first.id);
    assert.equal([...eviction.usageBySalt()], [['a', 100]]);
  });
});
