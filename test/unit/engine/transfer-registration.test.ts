/** REGISTER and UNREGISTER_KV_CACHE: replacement, draining, failures (spec engine 5.1, 9.4) */
import * as assert from 'uvu/assert';
import { type KvdError, WithheldReplyError } from '../../../src/errors.ts';
import { NEW_CLIENT, OLD_CLIENT } from '../../support/client-traits.ts';
import { rejects } from '../../support/rejects.ts';
import { suite } from '../../support/suite.ts';
import { blockOf, keyOf, TransferHouse, VLLM_ID } from '../../support/transfer-house.ts';

const registration = (house: TransferHouse, seed = 1) => ({
  instanceId: VLLM_ID,
  wrappers: house.newTensors(seed).wrappers,
  modelName: 'model',
  worldSize: 1,
  engineType: 'vllm' as const,
  layoutHints: {},
  engineGroupInfos: [],
});

const store = (tokenCount: number, blockIds: number[]) => ({
  key: keyOf(tokenCount),
  instanceId: VLLM_ID,
  blockIds: [blockIds],
  event: new Uint8Array(0),
});

suite('REGISTER_KV_CACHE', (test) => {
  test('a registered instance shows in /status and in the layout registry', async () => {
    const house = new TransferHouse();
    await house.register();
    const status = house.module.status();
    assert.equal(status['registered_gpu_ids'], [VLLM_ID]);
    const meta = status['cache_context_meta'] as Record<string, Record<string, unknown>>;
    assert.equal(Object.keys(meta), [String(VLLM_ID)]);
    assert.is(meta[String(VLLM_ID)]?.['model_name'], 'model');
    assert.is(house.instances.livenessStatus()['tracked_instances'], 1);
    assert.is(house.instances.findLayout('model', 1)?.objectGroups[0]?.objectSizeBytes, 64);
    assert.is(house.instances.findLayout('model', 2), undefined);
  });

  test('the same memory and layout again only refresh', async () => {
    const house = new TransferHouse();
    const request = registration(house);
    await house.call('REGISTER_KV_CACHE', request);
    const { handle } = house.instances.lookup(VLLM_ID) ?? {};
    await house.call('REGISTER_KV_CACHE', request);
    assert.is(house.instances.lookup(VLLM_ID)?.handle, handle);
    assert.is(house.device.openInstances.size, 1);
  });

  test('however often a worker comes or goes, its lines are limited', async () => {
    const house = new TransferHouse();
    for (const seed of [1, 2]) {
      await house.call('REGISTER_KV_CACHE', registration(house, seed));
      await house.call('UNREGISTER_KV_CACHE', { instanceId: VLLM_ID });
      await house.call('UNREGISTER_KV_CACHE', { instanceId: VLLM_ID });
    }
    const keys = house.log.lines.map(({ key }) => key);
    assert.is(keys.length, 4);
    assert.not.ok(keys.includes(undefined));
    assert.is(new Set(keys).size, keys.length / 2);
  });

  test('a segment made anew under the same name is other memory', async () => {
    const house = new TransferHouse();
    const request = registration(house);
    await house.call('REGISTER_KV_CACHE', request);
    const [wrapper] = request.wrappers;
    assert.is(wrapper?.kind, 'cpu-shm');
    const { shmName, sizeBytes } = wrapper as { shmName: string; sizeBytes: number };
    house.device.segments.set(shmName, new Uint8Array(sizeBytes));
    const { handle } = house.instances.lookup(VLLM_ID) ?? {};
    await house.call('REGISTER_KV_CACHE', request);
    assert.is.not(house.instances.lookup(VLLM_ID)?.handle, handle);
    assert.is(house.device.openInstances.size, 1);
  });

  test('another place in the same segment is other memory', async () => {
    const house = new TransferHouse();
    const request = registration(house);
    const half = request.wrappers.map((wrapper) => ({
      ...wrapper,
      shape: [2, 8, 1, 2, 4],
      stride: [64, 8, 8, 4, 1],
    }));
    await house.call('REGISTER_KV_CACHE', { ...request, wrappers: half });
    const { handle } = house.instances.lookup(VLLM_ID) ?? {};
    const moved = half.map((wrapper) => ({ ...wrapper, storageOffset: 128 }));
    await house.call('REGISTER_KV_CACHE', { ...request, wrappers: moved });
    assert.is.not(house.instances.lookup(VLLM_ID)?.handle, handle);
  });

  test('other memory replaces the old one once its copies have ended', async () => {
    const house = new TransferHouse();
    const old = await house.register();
    const want = [0, 1].map((id) => blockOf(old, id));
    const { wrappers, bytes } = house.newTensors(2);
    const events: string[] = [];
    const release = house.device.hold();
    const storing = house.call('STORE', store(4, [0, 1])).then(() => events.push('stored'));
    await house.settle();
    house.device.gate = Promise.resolve();
    const registering = house
      .call('REGISTER_KV_CACHE', { ...registration(house), wrappers })
      .then(() => events.push('registered'));
    await house.settle();
    assert.equal(events, []);
    assert.is(house.device.openInstances.size, 2, 'the old memory is mapped while it is copied');
    assert.is(house.instances.closingCount, 1);
    await house.call('STORE', { ...store(8, [4, 5]), key: keyOf(8, { startToken: 4 }) });
    release();
    await Promise.all([storing, registering]);
    assert.equal(events, ['stored', 'registered']);
    assert.is(house.device.openInstances.size, 1);
    assert.is(house.instances.closingCount, 0);
    const fromNew = [4, 5].map((id) => blockOf(bytes, id));
    await house.call('RETRIEVE', { ...store(8, [8, 9, 10, 11]), skipFirstTokens: 0 });
    assert.equal(
      [8, 9, 10, 11].map((id) => blockOf(bytes, id)),
      [...want, ...fromNew],
    );
  });

  test('registrations of one id take effect in their order', async () => {
    const house = new TransferHouse();
    const release = house.device.hold();
    const first = house.call('REGISTER_KV_CACHE', { ...registration(house), modelName: 'one' });
    house.device.gate = Promise.resolve();
    const second = house.call('REGISTER_KV_CACHE', { ...registration(house), modelName: 'two' });
    await house.settle();
    assert.is(house.instances.lookup(VLLM_ID), undefined);
    release();
    await Promise.all([first, second]);
    assert.is(house.instances.lookup(VLLM_ID)?.modelName, 'two');
    assert.is(house.instances.findLayout('one', 1), undefined);
    assert.is(house.device.openInstances.size, 1);
  });

  test('an UNREGISTER behind a slow REGISTER unregisters it', async () => {
    const house = new TransferHouse();
    const release = house.device.hold();
    const registering = house.call('REGISTER_KV_CACHE', registration(house));
    const unregistering = house.call('UNREGISTER_KV_CACHE', { instanceId: VLLM_ID });
    release();
    await Promise.all([registering, unregistering]);
    assert.is(house.instances.instanceCount, 0);
    assert.is(house.device.openInstances.size, 0);
  });

  test('a failed registration: its reason and the remedy in /status', async () => {
    const house = new TransferHouse();
    const request = registration(house);
    house.device.segments.clear();
    const error = await rejects(house.call('REGISTER_KV_CACHE', request), /does not exist/);
    assert.not.instance(error, WithheldReplyError);
    assert.equal(house.log.lines, [], 'the door says it');
    const [failure] = house.status()['recent_registration_failures'] as Record<string, string>[];
    assert.is(house.status()['registration_failure_count'], 1);
    assert.is(failure?.['instance_id'], String(VLLM_ID));
    assert.is(failure?.['code'], 'ERR_DEVICE_MEMORY');
    assert.match(failure?.['next'] as string, /\/dev\/shm/);
    assert.match(failure?.['message'] ?? '', /does not exist/);
    assert.is(house.instances.instanceCount, 0);
  });

  test('recent failures are bounded, the count is not', async () => {
    const house = new TransferHouse();
    for (let i = 0; i < 20; i += 1) {
      const request = { ...registration(house), instanceId: BigInt(i), wrappers: [] };
      await rejects(house.call('REGISTER_KV_CACHE', request), /without tensors/);
    }
    const recent = house.status()['recent_registration_failures'] as Record<string, string>[];
    assert.equal([recent.length, recent.at(-1)?.['instance_id']], [16, '19']);
    assert.is(house.status()['registration_failure_count'], 20);
  });

  test('a layout that cannot be served is unmapped and leaves the old one in place', async () => {
    const house = new TransferHouse();
    await house.register();
    const before = house.instances.lookup(VLLM_ID);
    const wrappers = house.newTensors(3).wrappers.map((wrapper) => ({
      ...wrapper,
      shape: [16, 16],
      stride: [16, 1],
    }));
    const request = { ...registration(house), wrappers };
    await rejects(house.call('REGISTER_KV_CACHE', request), /no vLLM layout/);
    assert.is(house.instances.lookup(VLLM_ID), before);
    assert.is(house.device.openInstances.size, 1);
    assert.ok((await house.call('STORE', store(4, [0, 1]))).ok);
  });

  test('a model name with @ and a world of nobody are refused', async () => {
    const house = new TransferHouse();
    await rejects(house.register({ modelName: 'a@b' }), /model_name without "@"/);
    await rejects(house.register({ worldSize: 0 }), /world_size of at least 1, got 0/);
  });

  test('tensors are read by the rules of the client that registers them', async () => {
    const house = new TransferHouse();
    const wrappers = house.newTensors(2).wrappers.map((wrapper) => ({
      ...wrapper,
      shape: [16, 1, 2, 8],
      stride: [16, 16, 8, 1],
    }));
    const request = { ...registration(house), wrappers };
    const formats: (string | undefined)[] = [];
    for (const client of [OLD_CLIENT, NEW_CLIENT]) {
      await house.call('REGISTER_KV_CACHE', request, { connectionId: 1, client });
      formats.push(house.instances.lookup(VLLM_ID)?.layout.groups[0]?.format.name);
    }
    assert.equal(formats, ['NL_X_NB_NH_BS_TWO_HS', 'NL_X_NB_NH_BS_CS']);
  });

  test('an accelerator believes the layout hint, a server without one does not', async () => {
    const layoutHints = { kvLayout: 'NHD' } as const;
    for (const [deviceKind, name] of [
      ['cuda', 'NL_X_TWO_NB_BS_NH_HS'],
      ['cpu', 'NL_X_TWO_NB_NH_BS_HS'],
    ] as const) {
      const house = new TransferHouse({ deviceKind });
      await house.register({ layoutHints });
      assert.is(house.instances.lookup(VLLM_ID)?.layout.groups[0]?.format.name, name);
    }
  });
});

suite('UNREGISTER_KV_CACHE', (test) => {
  test('it waits for running copies and unmaps', async () => {
    const house = new TransferHouse();
    await house.register();
    const release = house.device.hold();
    const storing = house.call('STORE', store(4, [0, 1]));
    await house.settle();
    const unregistering = house.call('UNREGISTER_KV_CACHE', { instanceId: VLLM_ID });
    await house.settle();
    assert.is(house.instances.lookup(VLLM_ID), undefined);
    assert.is(house.device.openInstances.size, 1);
    release();
    assert.ok((await storing).ok);
    await unregistering;
    assert.is(house.device.openInstances.size, 0);
    assert.is(house.storage.residentCount, 1);
  });

  test('of an unknown id it is answered, with a line in the log', async () => {
    const house = new TransferHouse();
    assert.is(await house.call('UNREGISTER_KV_CACHE', { instanceId: 9n }), undefined);
    assert.ok(house.log.has(/instance 9, which is not registered/));
  });

  test('closing the module drops every instance', async () => {
    const house = new TransferHouse();
    await house.register();
    await house.register({ instanceId: 12n });
    await house.module.close();
    assert.is(house.device.openInstances.size, 0);
  });
});

suite('block checksums', (test) => {
  test('they run along the block axis of the format', async () => {
    const house = new TransferHouse();
    await house.register();
    const request = { instanceId: VLLM_ID, blocksPerChecksum: 2, isLayerwise: false };
    const sums = await house.module.checksumBlocks({ ...request, blockIds: [0, 1, 2] });
    assert.equal(
      sums.map((list) => list.length),
      [2],
    );
    await house.call('STORE', store(4, [0, 1]));
    await house.call('RETRIEVE', { ...store(4, [8, 9]), skipFirstTokens: 0 });
    const copied = await house.module.checksumBlocks({ ...request, blockIds: [8, 9] });
    assert.is(copied[0]?.[0], sums[0]?.[0]);
    const layers = await house.module.checksumBlocks({
      ...request,
      blockIds: [0],
      isLayerwise: true,
    });
    assert.is(layers.length, 2);
  });

  test('unknown instances, strange ids and formats without blocks are refused', async () => {
    const house = new TransferHouse();
    const request = { blockIds: [0], blocksPerChecksum: 1, isLayerwise: false };
    const codeOf = async (instanceId: bigint, blockIds = [0]) => {
      const error = await rejects(
        house.module.checksumBlocks({ ...request, instanceId, blockIds }),
        /./,
      );
      return (error as KvdError).code;
    };
    assert.is(await codeOf(VLLM_ID), 'ERR_UNKNOWN_INSTANCE');
    await house.register();
    assert.is(await codeOf(VLLM_ID, [16]), 'ERR_BAD_REQUEST');
    assert.is(await codeOf(VLLM_ID, [-1]), 'ERR_BAD_REQUEST');
    const wrappers = house.newTensors(1).wrappers.map((wrapper) => ({
      ...wrapper,
      shape: [32, 2, 4],
      stride: [8, 4, 1],
    }));
    const layoutHints = { tokensPerBlock: 2 };
    await house.register({ instanceId: 3n, engineType: 'sglang', layoutHints, wrappers });
    assert.is(await codeOf(3n), 'ERR_UNSUPPORTED');
  });
});
