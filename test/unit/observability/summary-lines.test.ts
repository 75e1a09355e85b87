/** The periodic lines of --enable-extra-logging. */
import * as assert from 'uvu/assert';
import { EventBus } from '../../../src/observability/event-bus.ts';
import { SummaryLines } from '../../../src/observability/logging/summary-lines.ts';
import { RecordingLogger } from '../../support/recording-logger.ts';
import { suite } from '../../support/suite.ts';
import { VirtualClock } from '../../support/virtual-clock.ts';

const GIB = 2 ** 30;

function house(queueSize = 100) {
  const clock = new VirtualClock();
  const bus = new EventBus({ clock, queueSize });
  const log = new RecordingLogger();
  const l1 = { usedBytes: 0, totalBytes: 20 * GIB, objectCount: 0 };
  bus.attach(new SummaryLines({ clock, log, intervalMs: 10_000, readL1: () => l1 }));
  const transfer = (device: string, error: string | null = null) => ({
    sessionId: 'r',
    transferId: 1,
    device,
    engineId: '5',
    modelName: 'm',
    cacheSalt: '',
    totalBytes: GIB,
    tokenCount: 512,
    seconds: 0.5,
    error,
  });
  const store = (device: string, error: string | null = null) =>
    bus.publish('mp.store.end', { ...transfer(device, error), storedCount: 2 });
  const retrieve = (device: string) =>
    bus.publish('mp.retrieve.end', { ...transfer(device), retrievedCount: 2 });
  /** The lines of the next interval. */
  const next = () => {
    bus.drain();
    clock.advance(10_000);
    return log.lines.splice(0).map(({ level, message }) => `${level} ${message}`);
  };
  return { clock, bus, log, l1, store, retrieve, next };
}

suite('summary lines', (test) => {
  test('each device and direction, since the last lines and in all', () => {
    const { store, retrieve, next } = house();
    store('cuda:0');
    store('cuda:0');
    retrieve('cuda:0');
    retrieve('cpu');
    const [stored, retrieved, host, l1, ...others] = next();
    assert.is(
      stored,
      'info cuda:0 store: 2 ops, 1024 tokens, 2.00 GiB, 2.15 GB/s in 10.0 s; ' +
        '2 ops, 1024 tokens, 2.00 GiB, 2.15 GB/s in all',
    );
    assert.match(retrieved!, /^info cuda:0 retrieve: 1 ops, 512 tokens, 1\.00 GiB/);
    assert.match(host!, /^info cpu retrieve: 1 ops/);
    assert.match(l1!, /^info L1: /);
    assert.equal(others, []);
    store('cuda:0');
    assert.match(next()[0]!, /^info cuda:0 store: 1 ops, 512 .* in 10\.0 s; 3 ops, 1536 tokens/);
  });

  test('a device that has moved nothing has no line, and L1 has one', () => {
    const { l1, store, next } = house();
    store('cpu');
    next();
    Object.assign(l1, { usedBytes: 5 * GIB, objectCount: 7 });
    assert.equal(next(), ['info L1: 5.00 GiB of 20.00 GiB used (25.0 %), 7 objects']);
    l1.totalBytes = 0;
    assert.match(next()[0]!, /\(0\.0 %\)/);
  });

  test('failed transfers are counted apart and move nothing', () => {
    const { store, next } = house();
    store('cpu', 'ERR_L1_NO_SPACE');
    assert.match(next()[0]!, /^info cpu store: 0 ops, 1 failed, 0 tokens, 0 B, 0\.00 GB\/s in/);
    store('cpu');
    assert.match(next()[0]!, /^info cpu store: 1 ops, 512 .*; 1 ops, 1 failed, 512 tokens/);
  });

  test('a full event queue loses nothing of the sums', () => {
    const { store, next } = house(1);
    for (let i = 0; i < 50; i += 1) store('cpu');
    assert.match(next()[0]!, /^info cpu store: 50 ops/);
  });

  test('devices beyond the limit share a line', () => {
    const { store, next } = house(1000);
    for (let i = 0; i < 100; i += 1) store(`cuda:${i}`);
    const lines = next();
    assert.is(lines.length, 64 + 1 + 1);
    assert.match(lines.at(-2)!, /^info other devices store: 36 ops/);
  });

  test('a window is as long as it was, and the end of the bus ends the lines', async () => {
    const { clock, bus, log, store, next } = house();
    next();
    clock.standStill(25_000);
    store('cpu');
    bus.drain();
    clock.advance(0);
    assert.match(log.lines[0]!.message, / in 25\.0 s; /);
    log.lines.length = 0;
    await bus.close();
    assert.equal(next(), []);
  });
});
