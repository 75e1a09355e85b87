/** Early release of workers whose process has ended (spec field-lessons 4.2, 4.3) */
import * as assert from 'uvu/assert';
import type { ProcessOwner } from '../../../src/device/device.ts';
import type { InstanceId } from '../../../src/engine/api.ts';
import { OwnerWatch } from '../../../src/engine/owner-watch.ts';
import { suite } from '../../support/suite.ts';
import { TransferHouse, VLLM_ID } from '../../support/transfer-house.ts';

const OWNER: ProcessOwner = { pid: 4711, startTicks: 100 };

class WatchedHouse extends TransferHouse {
  readonly ended = new Set<ProcessOwner>();
  readonly asked: ProcessOwner[] = [];
  readonly reasons: string[] = [];
  /** What the answers about processes wait for. */
  answers: Promise<void> = Promise.resolve();
  readonly watch = new OwnerWatch({
    instances: this.instances,
    clock: this.clock,
    log: this.log,
    isAlive: async (owner) => {
      this.asked.push(owner);
      await this.answers;
      return !this.ended.has(owner);
    },
  });

  constructor() {
    super({ reapTimeoutSeconds: 120, registrationGraceSeconds: 3600 });
    this.bus.subscribe('instance.dropped', ({ reason }) => this.reasons.push(reason));
  }

  async registerOwned(owner: ProcessOwner | null, instanceId: InstanceId = VLLM_ID) {
    this.device.ownerOfNext = owner;
    await this.register({ instanceId, wrappers: this.newTensors(1).wrappers });
  }

  isKnown(instanceId: InstanceId = VLLM_ID): boolean {
    return this.instances.lookup(instanceId) !== undefined;
  }

  async passSeconds(count: number): Promise<void> {
    for (let i = 0; i < count; i += 1) {
      this.clock.advance(1000);
      await this.settle();
    }
  }
}

suite('the owner watch', (test) => {
  for (const pings of [true, false]) {
    const when = pings ? 'in its work' : 'before its first PING';
    test(`a worker whose process ends ${when} is gone after a second`, async () => {
      const house = new WatchedHouse();
      await house.registerOwned(OWNER);
      if (pings) house.instances.ping(VLLM_ID);
      await house.passSeconds(3);
      assert.ok(house.isKnown());
      house.ended.add(OWNER);
      await house.passSeconds(1);
      assert.not.ok(house.isKnown());
      assert.is(house.device.openInstances.size, 0, 'unmapped');
      assert.equal(house.reasons, ['owner-gone']);
      assert.ok(house.log.has(/Process 4711 has ended: its instance .* is dropped/));
      assert.is(house.instances.ping(VLLM_ID), false);
    });
  }

  test('what a killed process leaves in shared memory is removed, with its instance', async () => {
    const house = new WatchedHouse();
    await house.registerOwned(OWNER, VLLM_ID);
    await house.registerOwned({ ...OWNER, startTicks: 200 }, VLLM_ID + 1n);
    await house.registerOwned(null, VLLM_ID + 2n);
    assert.is(house.device.segments.size, 3 * 2 + 3 * 2, 'two layers each, and two unused');
    house.ended.add(OWNER);
    await house.passSeconds(1);
    assert.is(house.device.segments.size, 10);
    const lines = house.log.lines.filter(({ message }) => /Process 4711/.test(message));
    assert.is(lines.length, 1);
    assert.match(
      lines[0]?.message as string,
      /is dropped, and 2 segments that it left are removed/,
    );
    await house.passSeconds(2);
    assert.is(house.device.segments.size, 10);
  });

  test('what a dropped worker has in shared memory is its own as long as it may live', async () => {
    const house = new WatchedHouse();
    await house.registerOwned(OWNER, VLLM_ID);
    await house.registerOwned(null, VLLM_ID + 1n);
    const { size } = house.device.segments;
    await house.instances.drop(VLLM_ID, 'dropped');
    house.clock.advance(3_700_000);
    await house.settle();
    assert.is(house.instances.instanceCount, 0);
    house.ended.add(OWNER);
    await house.passSeconds(2);
    assert.is(house.device.segments.size, size);
  });

  test('a copy that runs ends before the memory goes', async () => {
    const house = new WatchedHouse();
    await house.registerOwned(OWNER);
    const release = house.device.hold();
    const { handle } = house.instances.lookup(VLLM_ID) ?? {};
    const job = handle?.submit({
      direction: 'gather',
      objectOffsets: Float64Array.of(0),
      blockIds: [Uint32Array.of(0, 1)],
    });
    house.ended.add(OWNER);
    await house.passSeconds(1);
    assert.not.ok(house.isKnown());
    assert.is(house.device.openInstances.size, 1);
    release();
    await job;
    await house.settle();
    assert.is(house.device.openInstances.size, 0);
  });

  test('an owner that lives keeps its registration for the grace, and no longer', async () => {
    const house = new WatchedHouse();
    await house.registerOwned(OWNER);
    await house.passSeconds(200);
    assert.ok(house.isKnown(), 'longer than the reap time');
    house.clock.advance(3600_000);
    assert.not.ok(house.isKnown());
    assert.equal(house.reasons, ['reaped']);
  });

  test('a worker without a known owner is left to the reaper', async () => {
    const house = new WatchedHouse();
    await house.registerOwned(null);
    await house.passSeconds(10);
    assert.ok(house.isKnown());
    assert.equal(house.asked, []);
  });

  test('each process is asked about once a second, whatever it owns', async () => {
    const house = new WatchedHouse();
    const other: ProcessOwner = { ...OWNER, startTicks: 200 };
    await house.registerOwned(OWNER, VLLM_ID);
    await house.registerOwned(OWNER, VLLM_ID + 1n);
    await house.registerOwned(other, VLLM_ID + 2n);
    await house.passSeconds(1);
    assert.equal(house.asked, [OWNER, other]);
    house.ended.add(OWNER);
    await house.passSeconds(1);
    assert.equal(
      [0n, 1n, 2n].map((n) => house.isKnown(VLLM_ID + n)),
      [false, false, true],
      'a later process with the same pid is another one',
    );
  });

  test('a worker that registered anew while its old process was looked at stays', async () => {
    const house = new WatchedHouse();
    await house.registerOwned(OWNER);
    house.ended.add(OWNER);
    const { promise, resolve } = Promise.withResolvers<void>();
    house.answers = promise;
    await house.passSeconds(1);
    await house.registerOwned({ pid: 4712, startTicks: 300 });
    resolve();
    await house.passSeconds(3);
    assert.ok(house.isKnown());
    assert.equal(house.reasons, ['replaced']);
  });

  test('a round that takes long is not joined by a second one', async () => {
    const house = new WatchedHouse();
    await house.registerOwned(OWNER);
    const { promise, resolve } = Promise.withResolvers<void>();
    house.answers = promise;
    await house.passSeconds(5);
    assert.is(house.asked.length, 1);
    resolve();
    await house.settle();
    await house.passSeconds(1);
    assert.is(house.asked.length, 2);
  });

  test('it drops nothing once it is closed', async () => {
    const house = new WatchedHouse();
    await house.registerOwned(OWNER);
    const { promise, resolve } = Promise.withResolvers<void>();
    house.answers = promise;
    house.ended.add(OWNER);
    await house.passSeconds(1);
    house.watch.close();
    resolve();
    await house.passSeconds(5);
    assert.ok(house.isKnown());
    assert.is(house.asked.length, 1);
  });
});

suite('owners and registration', (test) => {
  test('/status shows the pid of a known owner', async () => {
    const house = new WatchedHouse();
    await house.registerOwned(OWNER, VLLM_ID);
    await house.registerOwned(null, VLLM_ID + 1n);
    const meta = house.instances.contextStatus()['cache_context_meta'] as Record<string, unknown>;
    const pids = Object.values(meta).map((one) => (one as { owner_pid: unknown }).owner_pid);
    assert.equal(pids, [4711, null]);
  });

  test('the same memory in the hands of another process is another registration', async () => {
    const house = new WatchedHouse();
    const { wrappers } = house.newTensors(1);
    for (const owner of [OWNER, OWNER, { pid: 4712, startTicks: 300 }]) {
      house.device.ownerOfNext = owner;
      await house.register({ wrappers });
    }
    assert.is(house.instances.lookup(VLLM_ID)?.handle.owner?.pid, 4712);
    assert.equal(house.reasons, ['replaced']);
    assert.is(house.device.openInstances.size, 1);
  });
});
