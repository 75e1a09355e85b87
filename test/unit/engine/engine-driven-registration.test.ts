/** Registrations of workers that move their bytes themselves (spec engine 6.1, 6.2, 9.4) */
import * as assert from 'uvu/assert';
import type { KvCacheInstance } from '../../../src/engine/instances.ts';
import { discoverKvLayout } from '../../../src/engine/transfer/kv-layout.ts';
import { WithheldReplyError } from '../../../src/errors.ts';
import { EngineDrivenHouse, WORKER } from '../../support/engine-driven-house.ts';
import { rejects } from '../../support/rejects.ts';
import { suite } from '../../support/suite.ts';

const OTHER = WORKER + 1n;

/** Two layers [2, 16 blocks, 1 head, 16 slots, 8]. */
const LAYOUT = discoverKvLayout({
  tensors: [0, 1].map(() => ({
    dtype: 'float16' as const,
    shape: [2, 16, 1, 16, 8],
    stride: [2048, 128, 128, 8, 1],
  })),
  engineType: 'vllm',
  hints: {},
  infos: [],
  chunkSizeTokens: 16,
  hasAccelerator: false,
  layoutRules: 'first-tensor',
  reportsKvLayout: false,
  hasSeparateObjects: false,
});

/** A worker whose memory the server maps, as the other module registers it. */
function kvCacheInstance(instanceId = WORKER): KvCacheInstance {
  return {
    kind: 'kv-cache',
    instanceId,
    modelName: 'm',
    worldSize: 1,
    engineType: 'vllm',
    layoutRules: 'first-tensor',
    wrappers: [],
    layout: LAYOUT,
    handle: { close: async () => {} } as KvCacheInstance['handle'],
  };
}

suite('registration of an engine-driven worker', (test) => {
  test('tells name and size of the pool, the same again when repeated', async () => {
    const house = new EngineDrivenHouse({ units: 64 });
    const reply = { shmName: 'pool', poolSizeBytes: 64 * 4096 };
    assert.equal(await house.register(), reply);
    assert.equal(await house.register({ modelName: 'x' }), reply);
    assert.ok(house.log.has(/engine-driven transport: shared memory pool, 256/));
    assert.is(house.status['transport'], 'shm');
  });

  test('shows in the status and goes with UNREGISTER', async () => {
    const house = new EngineDrivenHouse();
    await house.register({ usesMla: true });
    const status = house.module.status();
    assert.equal(status['registered_non_cuda_instance_ids'], [WORKER]);
    assert.equal(status['non_cuda_context_meta'], {
      [String(WORKER)]: { model_name: 'm', world_size: 1, block_size: 16, use_mla: true },
    });
    await house.unregister();
    assert.equal(house.module.status()['registered_non_cuda_instance_ids'], []);
  });

  test('UNREGISTER of an unknown worker is answered and logged', async () => {
    const house = new EngineDrivenHouse();
    assert.is(await house.unregister(), undefined);
    assert.ok(house.log.has(/which is not registered/));
  });

  test('makes lookups of its model possible, and ends them when it was the last', async () => {
    const house = new EngineDrivenHouse();
    const key = house.key(1, 2);
    await house.register();
    await house.store(key, 1);
    assert.is(await house.hits(key), 2);
    await house.unregister();
    assert.is(await house.hits(key), 0);
    await house.register();
    assert.is(await house.hits(key), 2);
    house.assertClean();
  });

  test('the readers of an MLA model are its tensor-parallel ranks', async () => {
    const house = new EngineDrivenHouse();
    await house.register({ usesMla: true });
    assert.is(house.instances.findLayout('m', 1)?.isVllmMla, true);
    await house.register({ instanceId: OTHER, modelName: 'n' });
    assert.is(house.instances.findLayout('n', 1)?.isVllmMla, false);
  });

  test('a compressed cache has objects of the slots that it says', async () => {
    const house = new EngineDrivenHouse();
    await house.register();
    const plain = house.instances.lookupEngineDriven(WORKER)?.object;
    await house.register({ instanceId: OTHER, physicalSlotCount: 4 });
    const compressed = house.instances.lookupEngineDriven(OTHER)?.object;
    assert.is(compressed?.memoryLayout.shapes[0]?.at(-2), 4);
    assert.ok((compressed?.objectSizeBytes ?? 0) < (plain?.objectSizeBytes ?? 0));
    assert.is.not(compressed?.layoutTag, plain?.layoutTag);
    for (const physicalSlotCount of [0, -1]) {
      const failing = house.register({ instanceId: 77n, physicalSlotCount });
      await rejects(failing, /num_physical_slots of at least 1, got (0|-1)/);
    }
  });

  test('a layout that cannot be stored fails and says why', async () => {
    const house = new EngineDrivenHouse();
    const failing = house.register({ layerCount: 65_536, hiddenSize: 1 << 24 });
    const error = await rejects(failing, /at most .* can be stored: lower --chunk-size/);
    assert.not.instance(error, WithheldReplyError);
    assert.instance(await rejects(house.register({ modelName: 'a@b' }), /without "@"/), Error);
    assert.is(house.status['registration_failure_count'], 2);
    assert.is(house.instances.instanceCount, 0);
  });

  test('a failed registration leaves a registered worker as it was', async () => {
    const house = new EngineDrivenHouse();
    await house.register();
    const key = house.key(1, 1);
    await house.prepareStore(key);
    await rejects(house.register({ modelName: 'a@b' }), /without "@"/);
    assert.is(await house.commitStore(key), true);
    house.assertClean();
  });
});

suite('both kinds of workers in one registry', (test) => {
  test('each sees its own only', async () => {
    const house = new EngineDrivenHouse();
    await house.register();
    await house.instances.register(kvCacheInstance(OTHER));
    assert.is(house.instances.lookup(WORKER), undefined);
    assert.is(house.instances.lookupEngineDriven(OTHER), undefined);
    assert.equal(house.instances.contextStatus()['registered_gpu_ids'], [OTHER]);
    assert.equal(house.instances.engineDrivenStatus()['registered_non_cuda_instance_ids'], [
      WORKER,
    ]);
    assert.is(house.instances.livenessStatus()['tracked_instances'], 2);
  });

  test('both count as owners of their model', async () => {
    const house = new EngineDrivenHouse();
    await house.register();
    await house.instances.register(kvCacheInstance(OTHER));
    await house.unregister();
    assert.ok(house.instances.findLayout('m', 1));
    await house.instances.drop(OTHER, 'unregistered');
    assert.is(house.instances.findLayout('m', 1), undefined);
  });

  test('both are pinged and reaped alike', async () => {
    const house = new EngineDrivenHouse({ reapTimeoutSeconds: 30 });
    await house.register();
    assert.is(house.instances.ping(WORKER), true);
    house.clock.advance(38_000);
    assert.is(house.instances.lookupEngineDriven(WORKER), undefined);
    assert.equal(
      [1, 2].map(() => house.instances.ping(WORKER)),
      [false, true],
    );
  });

  test('UNREGISTER of one kind does not take a worker of the other', async () => {
    const house = new EngineDrivenHouse();
    await house.instances.register(kvCacheInstance());
    await house.unregister();
    assert.ok(house.instances.lookup(WORKER));
  });

  test('an id that registers as the other kind is that one from then on', async () => {
    const house = new EngineDrivenHouse();
    await house.register();
    await house.prepareStore(house.key(1, 1));
    await house.instances.register(kvCacheInstance());
    assert.is(house.instances.lookupEngineDriven(WORKER), undefined);
    house.assertClean();
    await house.register();
    assert.is(house.instances.lookup(WORKER), undefined);
    assert.is(house.instances.instanceCount, 1);
  });
});
