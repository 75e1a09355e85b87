import * as assert from 'uvu/assert';
import type { InstanceId, KvEventBatch, ReplyStream } from '../../../src/engine/api.ts';
import { InstanceRegistry } from '../../../src/engine/instances.ts';
import { KvEventLog } from '../../../src/engine/kv-events/kv-event-log.ts';
import { KvEventModule } from '../../../src/engine/kv-events/kv-event-module.ts';
import { EventBus } from '../../../src/observability/event-bus.ts';
import { RecordingLogger } from '../../support/recording-logger.ts';
import { suite } from '../../support/suite.ts';
import { VirtualClock } from '../../support/virtual-clock.ts';

const REAP_MS = 120_000;
const ID: InstanceId = 2n ** 62n + 5n;

function openHouse(recordCountMax = 100) {
  const clock = new VirtualClock(5000);
  const bus = new EventBus();
  const instances = new InstanceRegistry({
    clock,
    bus,
    log: new RecordingLogger(),
    reapTimeoutSeconds: REAP_MS / 1000,
    registrationGraceSeconds: 3600,
  });
  const log = new KvEventLog({ bus, recordCountMax });
  const module = new KvEventModule({ log, instances, clock, reapTimeoutMs: REAP_MS });
  const subscribe = (
    rest: { cursor?: number; eventCountMax?: number; instanceId?: InstanceId } = {},
  ): ReplyStream<KvEventBatch> => {
    const request = { instanceId: ID, modelName: 'm', cursor: 0, eventCountMax: 10, ...rest };
    const handler = module.handlers.SUBSCRIBE_KV_EVENTS;
    return handler?.(request, undefined as never, undefined as never) as ReplyStream<KvEventBatch>;
  };
  const store = (n: number, modelName = 'm') =>
    bus.publish('l1.chunks.stored', {
      ...{ modelName, worldSize: 1, cacheSalt: '' },
      hashes: [new Uint8Array(32).fill(n)],
      parentHash: null,
      tokenIds: Uint32Array.of(n),
    });
  const status = () => module.status()['kv_events'] as Record<string, unknown>;
  return { clock, bus, instances, log, module, subscribe, store, status };
}

/** The part that a stream has given by the end of this turn of the event loop. */
async function soon(part: Promise<KvEventBatch | null>): Promise<KvEventBatch | null | 'nothing'> {
  let result: KvEventBatch | null | 'nothing' = 'nothing';
  void part.then((batch) => {
    result = batch;
  });
  for (let turn = 0; turn < 3; turn += 1) await new Promise((resolve) => setImmediate(resolve));
  return result;
}

const seqsOf = (batch: KvEventBatch | null | 'nothing') =>
  batch && batch !== 'nothing' ? batch.events.map(({ seq }) => seq) : batch;

suite('KV event subscriptions', (test) => {
  test('begin with a batch at once, also an empty one', async () => {
    const { subscribe, clock } = openHouse();
    const incarnation = BigInt(clock.wallMs()) * 1_000_000n;
    assert.equal(await subscribe().next(), {
      ...{ isEnabled: true, incarnation, nextCursor: 0, isLost: false, events: [] },
    });
  });

  test('begin with what lies behind the cursor', async () => {
    const { subscribe, store } = openHouse();
    for (const n of [1, 2, 3]) store(n);
    const batch = await subscribe({ cursor: 1 }).next();
    assert.equal(seqsOf(batch), [2, 3]);
    assert.is(batch?.nextCursor, 3);
  });

  test('go on with all events of a turn in one batch, in order', async () => {
    const { subscribe, store } = openHouse();
    const stream = subscribe();
    await stream.next();
    const part = stream.next();
    store(1);
    store(2);
    assert.equal(seqsOf(await soon(part)), [1, 2]);
    store(3);
    assert.equal(seqsOf(await soon(stream.next())), [3]);
  });

  test('come in pages of the size that was asked for', async () => {
    const { subscribe, store } = openHouse();
    for (let n = 1; n <= 5; n += 1) store(n);
    const stream = subscribe({ eventCountMax: 2 });
    assert.equal(seqsOf(await stream.next()), [1, 2]);
    assert.equal(seqsOf(await stream.next()), [3, 4]);
    assert.equal(seqsOf(await stream.next()), [5]);
    assert.is(await soon(stream.next()), 'nothing');
  });

  test('do not wake for other models', async () => {
    const { subscribe, store } = openHouse();
    const stream = subscribe();
    await stream.next();
    const part = stream.next();
    store(1, 'other');
    assert.is(await soon(part), 'nothing');
    store(2);
    assert.equal(seqsOf(await soon(part)), [2]);
  });

  test('learn that the log went over them, once', async () => {
    const { subscribe, store } = openHouse(3);
    const stream = subscribe();
    await stream.next();
    for (let n = 1; n <= 5; n += 1) store(n);
    const lost = await stream.next();
    assert.is(lost?.isLost, true);
    assert.equal(seqsOf(lost), [3, 4, 5]);
    store(6);
    assert.is((await stream.next())?.isLost, false);
  });

  test('learn of a clear as of a loss', async () => {
    const { subscribe, bus, store } = openHouse();
    store(1);
    const stream = subscribe();
    await stream.next();
    const part = stream.next();
    bus.publish('l1.chunks.cleared', {});
    const batch = await soon(part);
    assert.ok(batch && batch !== 'nothing' && batch.isLost);
    assert.equal(seqsOf(batch), []);
  });

  test('are one for each worker: a new one ends the old one', async () => {
    const { subscribe, store, status } = openHouse();
    const [old, other] = [subscribe(), subscribe({ instanceId: 7n })];
    await old.next();
    await other.next();
    const [oldPart, otherPart] = [old.next(), other.next()];
    const renewed = subscribe();
    assert.is(await soon(oldPart), null);
    assert.equal([old.isEnded, renewed.isEnded], [true, false]);
    assert.is(status()['subscribers'], 2);
    store(1);
    assert.equal(seqsOf(await soon(otherPart)), [1]);
    assert.equal(seqsOf(await renewed.next()), [1]);
    old.cancel();
    assert.is(status()['subscribers'], 2, 'the old one does not take the new one with it');
  });

  test('end when they are cancelled', async () => {
    const { subscribe, status } = openHouse();
    const stream = subscribe();
    await stream.next();
    const part = stream.next();
    stream.cancel();
    stream.cancel();
    assert.is(await soon(part), null);
    assert.is(await stream.next(), null);
    assert.is(status()['subscribers'], 0);
  });

  test('end after the reap time without a PING, and live on with one', async () => {
    const { subscribe, clock, instances, status } = openHouse();
    const [silent, alive] = [subscribe(), subscribe({ instanceId: 7n })];
    await silent.next();
    const part = silent.next();
    for (let i = 0; i < 3; i += 1) {
      clock.advance(REAP_MS / 2);
      instances.ping(7n);
    }
    assert.is(await soon(part), null);
    assert.is(status()['subscribers'], 1);
    assert.ok(await alive.next());
  });

  test('of a worker that is found dead end at once', async () => {
    const { subscribe, instances, status } = openHouse();
    const kind = 'engine-driven' as const;
    const layout = { isMla: false, objectGroups: [] };
    await instances.register({
      ...{ kind, instanceId: ID, modelName: 'm', worldSize: 1, engineType: 'vllm', layout },
      ...{ object: undefined as never, layerCount: 1, blockSize: 16 },
      layoutRules: 'per-layer',
    });
    const stream = subscribe();
    await stream.next();
    const part = stream.next();
    await instances.drop(ID, 'owner-gone');
    assert.is(await soon(part), null);
    assert.is(status()['subscribers'], 0);
  });

  test('end with the server', async () => {
    const { subscribe, module } = openHouse();
    const stream = subscribe();
    await stream.next();
    const part = stream.next();
    module.beginDrain();
    assert.is(await soon(part), null);
    await module.close();
  });

  test('say that they are not served where there is no log, and end', async () => {
    const { subscribe, module, status } = openHouse(0);
    const stream = subscribe({ cursor: 9 });
    const batch = await stream.next();
    assert.is(batch?.isEnabled, false);
    assert.equal(batch?.events, []);
    assert.is(await stream.next(), null);
    assert.is(status()['subscribers'], 0);
    const experimental = module.handlers.GET_EXPERIMENTAL;
    assert.equal(experimental?.({}, undefined as never, undefined as never), []);
  });

  test('are refused outside of their bounds', () => {
    const { subscribe } = openHouse();
    assert.throws(() => subscribe({ cursor: -1 }), /cursor/);
    assert.throws(() => subscribe({ eventCountMax: 0 }), /max_events from 1 to 1024, got 0/);
    assert.throws(() => subscribe({ eventCountMax: 1025 }), /max_events/);
    for (let id = 0n; id < 1024n; id += 1n) subscribe({ instanceId: id });
    assert.throws(() => subscribe({ instanceId: 5000n }), /1024 instances follow/);
    assert.ok(subscribe({ instanceId: 5n }), 'a known one may come again');
  });

  test('are announced to clients, and shown in the status', async () => {
    const { module, store, bus, status, subscribe } = openHouse();
    const experimental = module.handlers.GET_EXPERIMENTAL;
    assert.equal(experimental?.({}, undefined as never, undefined as never), ['kv_event_stream']);
    store(1);
    bus.publish('l1.chunks.lost', {});
    subscribe();
    const { incarnation, log_bytes: logBytes, ...rest } = status();
    assert.is(typeof incarnation, 'bigint');
    assert.ok((logBytes as number) > 32);
    assert.equal(rest, {
      ...{ enabled: true, log_depth: 2, log_capacity: 100, next_seq: 3, subscribers: 1 },
      ...{ lost_markers: 1, cleared_markers: 0, unbound_stores: 0 },
    });
  });
});
