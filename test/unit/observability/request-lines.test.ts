/** INFO lines about single requests, and how many a client can cause */
import * as assert from 'uvu/assert';
import { EventBus } from '../../../src/observability/event-bus.ts';
import type { EventCatalogue } from '../../../src/observability/events.ts';
import { createLogger } from '../../../src/observability/log.ts';
import { requestLines } from '../../../src/observability/logging/request-lines.ts';
import { suite } from '../../support/suite.ts';
import { VirtualClock } from '../../support/virtual-clock.ts';

const TRANSFER: Omit<EventCatalogue['mp.store.end'], 'storedCount'> = {
  sessionId: 'r-1',
  transferId: 1,
  device: 'cpu',
  engineId: '5',
  modelName: 'm',
  cacheSalt: 'acme',
  totalBytes: 1,
  tokenCount: 512,
  seconds: 0.0123,
  error: null,
};

async function house() {
  const clock = new VirtualClock();
  const bus = new EventBus({ clock });
  const lines: string[] = [];
  const log = await createLogger({
    format: 'text',
    level: 'info',
    clock,
    hasColours: false,
    write: (line) => void lines.push(line),
  });
  bus.attach(requestLines(log));
  return { clock, bus, lines };
}

suite('request lines', (test) => {
  test('each store and retrieve is one line in the words of the reference', async () => {
    const { bus, lines } = await house();
    bus.publish('mp.store.end', { ...TRANSFER, storedCount: 2 });
    bus.publish('mp.retrieve.end', { ...TRANSFER, retrievedCount: 2 });
    assert.is(lines.length, 0, 'the replies come first');
    bus.drain();
    assert.match(lines[0]!, /INFO: Stored 512 tokens in 0\.012 seconds requestId=r-1 /);
    assert.match(lines[1]!, /INFO: Retrieved 512 tokens in 0\.012 seconds requestId=r-1 /);
    assert.not.match(lines.join(''), /acme/);
  });

  test('a transfer that failed has none', async () => {
    const { bus, lines } = await house();
    bus.publish('mp.store.end', { ...TRANSFER, storedCount: 0, error: 'ERR_L1_NO_SPACE' });
    bus.publish('mp.retrieve.end', { ...TRANSFER, retrievedCount: 0, error: 'ERR_NOT_FOUND' });
    bus.drain();
    assert.equal(lines, []);
  });

  test('a worker that comes and goes gets one line of each kind a minute', async () => {
    const { bus, lines, clock } = await house();
    const come = { instanceId: 5n, modelName: 'm', layerCount: 2 };
    for (let i = 0; i < 100; i += 1) {
      bus.publish('instance.registered', come);
      bus.publish('instance.dropped', { instanceId: 5n, reason: 'replaced' });
    }
    bus.drain();
    assert.is(lines.length, 2);
    assert.match(lines[0]!, /INFO: Registered KV cache for GPU ID 5 with 2 layers model=m /);
    assert.match(lines[1]!, /INFO: Unregistered KV cache for GPU ID 5 reason=replaced /);
    bus.publish('instance.registered', { ...come, instanceId: 6n });
    bus.drain();
    assert.match(lines[2]!, /GPU ID 6/);
    clock.advance(60_000);
    assert.match(lines[3]!, /GPU ID 5 with 2 layers \(99 more in the last 60 s\) model=m /);
  });
});
