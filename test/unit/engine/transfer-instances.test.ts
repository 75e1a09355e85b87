/** The instance registry: PING, the reaper, layouts (spec engine 0.1, 4.1, 9.3, 9.5) */
import * as assert from 'uvu/assert';
import { INSTANCE_COUNT_MAX } from '../../../src/engine/instances.ts';
import { rejects } from '../../support/rejects.ts';
import { suite } from '../../support/suite.ts';
import { keyOf, TransferHouse, VLLM_ID } from '../../support/transfer-house.ts';

suite('PING', (test) => {
  test('an unknown worker gets false once, then true, until it registers', async () => {
    const { instances } = new TransferHouse();
    assert.equal(
      [1, 2, 3].map(() => instances.ping(VLLM_ID)),
      [false, true, true],
    );
  });

  test('a registered worker gets true, and false once after it is gone', async () => {
    const house = new TransferHouse();
    house.instances.ping(VLLM_ID);
    await house.register();
    assert.ok(house.instances.ping(VLLM_ID));
    await house.instances.drop(VLLM_ID, 'dropped');
    assert.not.ok(house.instances.ping(VLLM_ID));
    assert.ok(house.instances.ping(VLLM_ID));
  });

  test('a process id gets false for as long as it is unknown', async () => {
    const house = new TransferHouse();
    const pid = 2n ** 22n - 1n;
    assert.equal(
      [1, 2, 3].map(() => house.instances.ping(pid)),
      [false, false, false],
    );
    await house.register({ instanceId: pid });
    assert.ok(house.instances.ping(pid));
  });

  test('the first id above the process ids gets true the second time', () => {
    const { instances } = new TransferHouse();
    assert.equal(
      [1, 2].map(() => instances.ping(2n ** 22n)),
      [false, true],
    );
  });

  test('the memory of unknown ids is bounded, the oldest get one false more', () => {
    const { instances } = new TransferHouse();
    for (let i = 0n; i <= 4096n; i += 1n) instances.ping(VLLM_ID + i);
    assert.ok(instances.ping(VLLM_ID + 4096n));
    assert.not.ok(instances.ping(VLLM_ID));
  });

  test('an owed false comes once, whether the worker is registered by then or not', async () => {
    const house = new TransferHouse();
    const { instances } = house;
    instances.ping(VLLM_ID);
    instances.oweFalsePing(VLLM_ID);
    assert.equal(
      [1, 2].map(() => instances.ping(VLLM_ID)),
      [false, true],
    );
    await house.register();
    instances.oweFalsePing(VLLM_ID);
    instances.oweFalsePing(VLLM_ID);
    assert.equal(
      [1, 2].map(() => instances.ping(VLLM_ID)),
      [false, true],
    );
  });
});

suite('the reaper', (test) => {
  const house = () => new TransferHouse({ reapTimeoutSeconds: 30, registrationGraceSeconds: 40 });
  const registered = (of: TransferHouse) => of.instances.lookup(VLLM_ID) !== undefined;

  test('a worker that pinged goes after the timeout', async () => {
    const h = house();
    await h.register();
    h.instances.ping(VLLM_ID);
    h.clock.advance(30_000);
    assert.ok(registered(h));
    h.clock.advance(7_500);
    assert.not.ok(registered(h));
    await h.settle();
    assert.is(h.device.openInstances.size, 0);
    assert.ok(h.log.has(/silent for 37\.5 s/));
  });

  test('a worker that never pinged has the grace of a registration', async () => {
    const h = house();
    await h.register();
    h.clock.advance(40_000);
    assert.ok(registered(h));
    h.clock.advance(7_500);
    assert.not.ok(registered(h));
  });

  test('silence counts for nothing while the server itself stood still', async () => {
    const h = house();
    await h.register();
    h.instances.ping(VLLM_ID);
    h.clock.standStill(600_000);
    h.clock.advance(0);
    assert.ok(registered(h), 'its PINGs have come and are unread');
    h.clock.advance(7_500);
    assert.not.ok(registered(h), 'there were none');
  });

  test('any request that names the worker keeps it', async () => {
    const h = house();
    await h.register();
    h.instances.ping(VLLM_ID);
    const request = {
      key: keyOf(4),
      instanceId: VLLM_ID,
      blockIds: [[0, 1]],
      event: new Uint8Array(0),
    };
    for (let seconds = 0; seconds < 90; seconds += 5) {
      h.clock.advance(5_000);
      await h.call('STORE', request);
    }
    assert.ok(registered(h));
  });

  test('a repeated registration counts as a sign of life', async () => {
    const h = house();
    const { wrappers } = h.newTensors(1);
    await h.register({ wrappers });
    h.clock.advance(30_000);
    await h.register({ wrappers });
    h.clock.advance(30_000);
    assert.ok(registered(h));
  });

  test('a timeout of 0 turns it off', async () => {
    const h = new TransferHouse({ reapTimeoutSeconds: 0 });
    await h.register();
    h.clock.advance(1e9);
    assert.ok(registered(h));
    assert.equal(h.instances.livenessStatus(), {
      enabled: false,
      reap_timeout_seconds: 0,
      registration_grace_seconds: 3600,
      tracked_instances: 1,
    });
  });

  test('a closed registry reaps no more', async () => {
    const h = house();
    await h.register();
    await h.instances.close();
    h.clock.advance(1e9);
    assert.not.ok(h.log.has(/silent/));
  });
});

suite('layouts and the last worker', (test) => {
  test('the layout stays until the last worker of its model has left', async () => {
    const house = new TransferHouse();
    const gone: string[] = [];
    house.instances.onLastInstance((modelName, worldSize) =>
      gone.push(`${modelName}/${worldSize}`),
    );
    await house.register({ instanceId: 1n });
    await house.register({ instanceId: 2n });
    await house.register({ instanceId: 3n, worldSize: 2 });
    await house.instances.drop(1n, 'unregistered');
    assert.ok(house.instances.findLayout('model', 1));
    assert.equal(gone, []);
    await house.instances.drop(2n, 'unregistered');
    assert.is(house.instances.findLayout('model', 1), undefined);
    assert.ok(house.instances.findLayout('model', 2));
    assert.equal(gone, ['model/1']);
  });

  test('the newest registration decides the layout', async () => {
    const house = new TransferHouse();
    await house.register({ instanceId: 1n });
    const { wrappers } = house.newTensors(2);
    await house.register({ instanceId: 2n, wrappers: wrappers.slice(0, 1) });
    assert.is(house.instances.findLayout('model', 1)?.objectGroups[0]?.objectSizeBytes, 32);
  });

  test('a replaced worker does not end its model', async () => {
    const house = new TransferHouse();
    const gone: string[] = [];
    house.instances.onLastInstance((modelName) => gone.push(modelName));
    await house.register();
    await house.register();
    assert.equal(gone, []);
    await house.register({ modelName: 'other' });
    assert.equal(gone, ['model']);
  });

  test('an MLA cache is known as vLLM MLA only when vLLM registered it', async () => {
    const house = new TransferHouse();
    const mla = (seed: number) =>
      house.newTensors(seed).wrappers.map((wrapper) => ({
        ...wrapper,
        shape: [32, 2, 4],
        stride: [8, 4, 1],
      }));
    await house.register({ wrappers: mla(1) });
    assert.is(house.instances.findLayout('model', 1)?.isVllmMla, true);
    const layoutHints = { tokensPerBlock: 2 };
    const slots = mla(2).map((w) => ({ ...w, shape: [64, 1, 4], stride: [4, 4, 1] }));
    await house.register({
      modelName: 'sglang',
      engineType: 'sglang',
      layoutHints,
      wrappers: slots,
    });
    assert.is(house.instances.findLayout('sglang', 1)?.isVllmMla, false);
  });

  test('the number of workers is bounded; known ones may still register anew', async () => {
    const house = new TransferHouse();
    const { wrappers } = house.newTensors(1);
    for (let id = 0n; id < INSTANCE_COUNT_MAX; id += 1n) {
      await house.register({ instanceId: id, wrappers });
    }
    await rejects(house.register({ instanceId: VLLM_ID }), /which is the bound/);
    await house.register({ instanceId: 0n });
    assert.is(house.instances.instanceCount, INSTANCE_COUNT_MAX);
    assert.is(house.device.openInstances.size, INSTANCE_COUNT_MAX);
  });

  test('dropping an unknown id says so', async () => {
    const { instances } = new TransferHouse();
    assert.not.ok(await instances.drop(77n, 'dropped'));
  });
});
