/** DEBUG lines about events: what they say, and that they cost nothing while nobody wants them. */
import * as assert from 'uvu/assert';
import { EventBus } from '../../../src/observability/event-bus.ts';
import type { EventCatalogue, EventName } from '../../../src/observability/events.ts';
import { LogLevels } from '../../../src/observability/log-levels.ts';
import type { Level } from '../../../src/observability/log-line.ts';
import { attachLines } from '../../../src/observability/logging/line-subscribers.ts';
import { openLineLog } from '../../support/line-log.ts';
import { suite } from '../../support/suite.ts';
import { VirtualClock } from '../../support/virtual-clock.ts';

async function house(root: Level, queueSize = 100) {
  const levels = new LogLevels({ root });
  const clock = new VirtualClock();
  const bus = new EventBus({ clock, queueSize });
  const { lines, log } = await openLineLog(levels, clock);
  const end = attachLines({ bus, log, levels });
  /** The lines that an event makes. */
  const say = <N extends EventName>(name: N, event: EventCatalogue[N]): string[] => {
    bus.publish(name, event);
    bus.drain();
    return lines.splice(0);
  };
  return { levels, bus, lines, end, say };
}

const NO_SALTS = new Map<string, number>();
const keys = (keyCount: number) => ({ keyCount, countBySalt: NO_SALTS, sampledKeys: [] });
const range = (chunkCount: number) => ({
  modelName: 'm',
  cacheSalt: 'acme',
  hashes: { bytes: new Uint8Array(0), count: 9, hashSizeBytes: 32 },
  firstChunk: 0,
  chunkCount,
});
const TRANSFER = {
  sessionId: 'r-1',
  transferId: 7,
  device: 'cuda:0',
  engineId: '5',
  modelName: 'm',
} as const;
const END = {
  ...TRANSFER,
  cacheSalt: 'acme',
  totalBytes: 4096,
  tokenCount: 512,
  seconds: 0.5,
  error: null,
};

suite('debug lines: attached while they are wanted', (test) => {
  const DEBUG_EVENTS: EventName[] = ['l1.read.finished', 'sm.write.reserved', 'mp.store.start'];

  test('at INFO nobody listens to what only DEBUG lines are about', async () => {
    const { bus, end } = await house('info');
    for (const name of DEBUG_EVENTS) assert.not.ok(bus.hasListeners(name), name);
    assert.ok(bus.hasListeners('mp.store.end'));
    end();
    assert.not.ok(bus.hasListeners('mp.store.end'));
  });

  test('a level that changes brings the lines of its room, and sends them away', async () => {
    const { levels, bus, say } = await house('warn');
    assert.not.ok(bus.hasListeners('mp.store.end'));
    levels.set('storage', 'debug');
    assert.ok(bus.hasListeners('l1.read.finished'));
    assert.ok(bus.hasListeners('sm.write.reserved'));
    assert.not.ok(bus.hasListeners('mp.store.start'));
    assert.not.ok(bus.hasListeners('l2.keys.evicted'));
    assert.is(say('l1.read.finished', keys(3)).length, 1);
    levels.set('storage', 'debug');
    assert.is(say('l1.read.finished', keys(3)).length, 1, 'attached once');
    levels.set('storage', null);
    assert.not.ok(bus.hasListeners('l1.read.finished'));
    levels.setRoot('info');
    assert.ok(bus.hasListeners('mp.store.end'));
  });

  test('after the end no change brings them back', async () => {
    const { levels, bus, end } = await house('debug');
    end();
    levels.set('storage', 'debug');
    for (const name of DEBUG_EVENTS) assert.not.ok(bus.hasListeners(name), name);
  });
});

suite('event bus: detach', (test) => {
  const subscriber = (name: string, seen: string[]) => ({
    name,
    subscriptions: { 'mp.request.start': () => void seen.push(name) },
    counts: { 'mp.request.start': () => void seen.push(`${name} counts`) },
  });

  test('what waits is not handed over any more, and the others get it', () => {
    const bus = new EventBus({ clock: new VirtualClock() });
    const seen: string[] = [];
    const detach = bus.attach(subscriber('a', seen));
    bus.publish('mp.request.start', { sessionId: 'r' });
    detach();
    bus.drain();
    assert.equal(seen, []);
    assert.is(bus.queueDepth, 0);
    assert.not.ok(bus.hasListeners('mp.request.start'));
    const detachAgain = bus.attach(subscriber('b', seen));
    bus.attach(subscriber('c', seen));
    bus.publish('mp.request.start', { sessionId: 'r' });
    detachAgain();
    detachAgain();
    bus.drain();
    assert.equal(seen, ['c counts', 'c']);
    assert.ok(bus.hasListeners('mp.request.start'));
  });

  test('a subscriber may leave while it gets an event; the next one still gets it', () => {
    const bus = new EventBus({ clock: new VirtualClock() });
    const seen: string[] = [];
    const detach = bus.attach({
      name: 'leaving',
      subscriptions: {
        'mp.request.start': () => {
          seen.push('leaving');
          detach();
        },
      },
    });
    bus.attach(subscriber('b', seen));
    for (let i = 0; i < 2; i += 1) bus.publish('mp.request.start', { sessionId: 'r' });
    bus.drain();
    assert.equal(seen, ['b counts', 'leaving', 'b', 'b counts', 'b']);
  });

  test('who has left is not shut down with the others; followers stay', async () => {
    const bus = new EventBus({ clock: new VirtualClock() });
    const ended: string[] = [];
    const detach = bus.attach({ name: 'a', shutdown: () => void ended.push('a') });
    bus.attach({ name: 'b', shutdown: () => void ended.push('b') });
    const seen: string[] = [];
    bus.subscribe('mp.request.start', ({ sessionId }) => void seen.push(sessionId));
    const leave = bus.attach(subscriber('c', []));
    leave();
    detach();
    bus.publish('mp.request.start', { sessionId: 'r' });
    assert.equal(seen, ['r']);
    await bus.close();
    assert.equal(ended, ['b']);
  });
});

suite('debug lines: text', (test) => {
  test('L1: operation and number of keys, nothing for no key', async () => {
    const { say } = await house('debug');
    assert.equal(say('l1.read.reserved', { keyCount: 2 }), [
      'DEBUG: L1 read reserved keyCount=2 (kvd.storage)',
    ]);
    assert.match(say('l1.read.finished', keys(1))[0]!, /^DEBUG: L1 read finished keyCount=1 /);
    assert.match(say('l1.write.reserved', { keyCount: 1 })[0]!, /write reserved keyCount=1 /);
    assert.match(say('l1.write.finished', keys(1))[0]!, /L1 write finished keyCount=1 /);
    const both = say('l1.write_finished_and_read_reserved', keys(4));
    assert.match(both[0]!, /L1 write finished and read reserved keyCount=4 /);
    const removal = { cause: 'eviction', bytes: 64, isEverything: false } as const;
    assert.match(
      say('l1.keys.evicted', { ...keys(2), ...removal })[0]!,
      /L1 keys removed keyCount=2 cause=eviction bytes=64 /,
    );
    assert.equal(say('l1.keys.evicted', { ...keys(0), ...removal }), []);
    assert.equal(say('l1.read.finished', keys(0)), []);
    assert.equal(say('l1.read.reserved', { keyCount: 0 }), []);
  });

  test('storage manager: counts of what succeeded and failed', async () => {
    const { say } = await house('debug');
    assert.equal(say('sm.read.prefetched', { succeededCount: 2, failedCount: 1 }), [
      'DEBUG: storage read prefetched succeededCount=2 failedCount=1 (kvd.storage)',
    ]);
    const ranges = { succeeded: [range(2), range(3)], failedCount: 0 };
    const read = say('sm.read.prefetched_finished', ranges);
    assert.match(read[0]!, /storage read of prefetched finished succeededCount=5 failedCount=0 /);
    assert.match(say('sm.write.finished', ranges)[0]!, /write finished succeededCount=5 /);
    const reserved = say('sm.write.reserved', { succeededCount: 0, failedCount: 1 });
    assert.match(reserved[0]!, /write reserved succeededCount=0 failedCount=1 /);
    assert.equal(say('sm.write.reserved', { succeededCount: 0, failedCount: 0 }), []);
  });

  test('L2: adapter, task and counts; the number of a prefetch is not a request id', async () => {
    const { say } = await house('debug');
    const task = { adapterIndex: 1, taskId: 3, l2Name: 'fs' };
    const salts = { countBySalt: new Map([['acme', 2]]) };
    assert.equal(say('l2.store.submitted', { ...task, ...salts, keyCount: 2, totalBytes: 64 }), [
      'DEBUG: L2 store submitted adapterIndex=1 l2Name=fs taskId=3 keyCount=2 totalBytes=64 ' +
        '(kvd.l2)',
    ]);
    const result = { bytesTransferred: 32, succeededCount: 1, failedCount: 1 };
    assert.match(
      say('l2.store.completed', { ...task, ...salts, ...result })[0]!,
      /completed adapterIndex=1 l2Name=fs taskId=3 succeededCount=1 failedCount=1 bytesTransf.*=32/,
    );
    const lookup = { requestId: 9, keyCount: 2, adapterCount: 1, ...salts };
    assert.match(
      say('l2.prefetch.lookup.submitted', lookup)[0]!,
      /L2 prefetch lookup submitted prefetchId=9 keyCount=2 adapterCount=1 \(/,
    );
    const hits = say('l2.prefetch.lookup.completed', { requestId: 9, prefixHitCount: 0 });
    assert.match(hits[0]!, /lookup completed prefetchId=9 prefixHitCount=0 /);
    assert.match(
      say('l2.prefetch.load.submitted', lookup)[0]!,
      /load submitted prefetchId=9 keyCount=2 adapterCount=1 \(/,
    );
    const loaded = { requestId: 9, loadedCount: 2, failedCount: 0, ...salts };
    assert.match(
      say('l2.prefetch.load.completed', loaded)[0]!,
      /load completed prefetchId=9 loadedCount=2 failedCount=0 \(/,
    );
    const evicted = { adapterIndex: 1, l2Name: 'fs', keyCount: 2, ...salts };
    assert.match(say('l2.keys.evicted', evicted)[0]!, /L2 keys evicted .*keyCount=2 /);
    assert.equal(say('l2.keys.evicted', { ...evicted, keyCount: 0 }), []);
  });

  test('requests: id, device and counts, never a salt', async () => {
    const { say } = await house('debug');
    assert.equal(say('mp.lookup_prefetch.start', { sessionId: 'r-1' }), [
      'DEBUG: lookup start requestId=r-1 (kvd.engine)',
    ]);
    const found = {
      sessionId: 'r-1',
      modelName: 'm',
      cacheSalt: 'acme',
      foundCount: 2,
      requestedTokens: 512,
      hitTokens: 256,
      readySeconds: 0.1,
      error: null,
    };
    const text = 'lookup end requestId=r-1 foundCount=2 requestedTokens=512 hitTokens=256';
    assert.equal(say('mp.lookup_prefetch.end', found), [`DEBUG: ${text} (kvd.engine)`]);
    assert.match(
      say('mp.lookup_prefetch.end', { ...found, error: 'abandoned' })[0]!,
      /hitTokens=256 error=abandoned \(/,
    );
    assert.match(
      say('mp.store.start', TRANSFER)[0]!,
      /DEBUG: store start requestId=r-1 transferId=7 device=cuda:0 engineId=5 \(/,
    );
    assert.match(say('mp.retrieve.start', TRANSFER)[0]!, /DEBUG: retrieve start requestId=r-1 /);
    const [info, debug] = say('mp.store.end', { ...END, storedCount: 2 });
    assert.match(info!, /^INFO: Stored 512 tokens in 0\.500 seconds requestId=r-1 /);
    assert.match(debug!, /^DEBUG: store end requestId=r-1 .*storedCount=2 totalBytes=4096 \(/);
    const failed = say('mp.retrieve.end', { ...END, retrievedCount: 0, error: 'ERR_NOT_FOUND' });
    assert.is(failed.length, 1, 'no INFO line');
    assert.match(failed[0]!, /retrieve end .*retrievedCount=0 .*error=ERR_NOT_FOUND \(/);
    assert.not.match([info, debug, ...failed].join(), /acme/);
  });

  test('block allocations: a line for each request, with ten blocks and no token', async () => {
    const { say } = await house('debug');
    const newBlockIds = Uint32Array.from({ length: 12 }, (_, i) => i);
    const records = [
      { requestId: 'r-1', newBlockIds, newTokenIds: [777, 778] },
      { requestId: 'r-2', newBlockIds: [], newTokenIds: [] },
    ];
    const lines = say('mp.vllm.block_allocation', { instanceId: '5', modelName: 'm', records });
    assert.equal(lines, [
      'DEBUG: block allocation requestId=r-1 instanceId=5 blockCount=12 tokenCount=2 ' +
        'firstBlocks=[0,1,2,3,4,5,6,7,8,9] (kvd.engine)',
      'DEBUG: block allocation requestId=r-2 instanceId=5 blockCount=0 tokenCount=0 ' +
        'firstBlocks=[] (kvd.engine)',
    ]);
  });

  test('blend: each event with its request and its numbers', async () => {
    const { say } = await house('debug');
    assert.equal(say('cb.lookup.start', { sessionId: 'r-1', numTokens: 9 }), [
      'DEBUG: blend lookup start requestId=r-1 numTokens=9 (kvd.engine)',
    ]);
    assert.match(
      say('cb.coordinator_match.end', { sessionId: 'r-1', matches: 0, timedOut: true })[0]!,
      /blend coordinator match end requestId=r-1 matches=0 timedOut=true \(/,
    );
    assert.match(
      say('cb.retrieve.end', { sessionId: 'r-1', success: false })[0]!,
      /blend retrieve end requestId=r-1 success=false \(/,
    );
  });
});

suite('debug lines: overload', (test) => {
  test('lines of events that the queue has no room for are lost, and counted', async () => {
    const { bus, lines } = await house('debug', 1);
    for (let i = 0; i < 3; i += 1) bus.publish('l1.read.reserved', { keyCount: 1 });
    bus.drain();
    assert.is(lines.length, 1);
    assert.is(bus.lostCounts.get('L1LoggingSubscriber'), 2);
  });
});
