/** Lines about single requests, and how many a client can cause */
import { setImmediate as eventLoopTurn } from 'node:timers/promises';
import * as assert from 'uvu/assert';
import { EventBus } from '../../../src/observability/events.ts';
import { createLogger } from '../../../src/observability/log.ts';
import { logRequests } from '../../../src/observability/logging/request-lines.ts';
import { suite } from '../../support/suite.ts';
import { VirtualClock } from '../../support/virtual-clock.ts';

async function house() {
  const clock = new VirtualClock();
  const bus = new EventBus();
  const lines: string[] = [];
  const log = await createLogger({
    format: 'text',
    level: 'info',
    clock,
    hasColours: false,
    write: (line) => void lines.push(line),
  });
  logRequests(bus, log);
  return { clock, bus, lines };
}

suite('request lines', (test) => {
  test('each store and retrieve is one line in the words of the reference', async () => {
    const { bus, lines } = await house();
    const transfer = { requestId: 'r-1', tokenCount: 512, bytes: 1, seconds: 0.0123 };
    bus.publish('mp.store.end', transfer);
    bus.publish('mp.retrieve.end', transfer);
    assert.is(lines.length, 0, 'the replies come first');
    await eventLoopTurn();
    assert.match(lines[0]!, /INFO: Stored 512 tokens in 0\.012 seconds requestId=r-1 /);
    assert.match(lines[1]!, /INFO: Retrieved 512 tokens in 0\.012 seconds requestId=r-1 /);
  });

  test('a worker that comes and goes gets one line of each kind a minute', async () => {
    const { bus, lines, clock } = await house();
    const come = { instanceId: 5n, modelName: 'm', layerCount: 2 };
    for (let i = 0; i < 100; i += 1) {
      bus.publish('instance.registered', come);
      bus.publish('instance.dropped', { instanceId: 5n, reason: 'replaced' });
    }
    assert.is(lines.length, 2);
    assert.match(lines[0]!, /INFO: Registered KV cache for GPU ID 5 with 2 layers model=m /);
    assert.match(lines[1]!, /INFO: Unregistered KV cache for GPU ID 5 reason=replaced /);
    bus.publish('instance.registered', { ...come, instanceId: 6n });
    assert.match(lines[2]!, /GPU ID 6/);
    clock.advance(60_000);
    assert.match(lines[3]!, /GPU ID 5 with 2 layers \(99 more in the last 60 s\) model=m /);
  });
});
