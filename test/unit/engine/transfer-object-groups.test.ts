/** Objects per object group, windows and null blocks (spec engine 2.4, 5.6, 5.7 of 0.5.6) */
import * as assert from 'uvu/assert';
import type { EngineGroupInfo } from '../../../src/engine/api.ts';
import { describeKvLayout } from '../../../src/engine/transfer/kv-layout.ts';
import { sortIntoObjectGroups } from '../../../src/engine/transfer/object-groups.ts';
import { KvdError } from '../../../src/errors.ts';
import { NEW_CLIENT, OLD_CLIENT } from '../../support/client-traits.ts';
import { contiguous, info, layoutOf, times } from '../../support/kv-tensors.ts';
import { rejects } from '../../support/rejects.ts';
import { suite } from '../../support/suite.ts';
import {
  EVENT,
  keyOf,
  TransferHouse,
  type TransferHouseOptions,
  VLLM_ID,
} from '../../support/transfer-house.ts';

const range = (count: number, first = 0) => Array.from({ length: count }, (_, i) => first + i);

suite('object groups', (test) => {
  const sorted = (infos: EngineGroupInfo[], isSeparate = true) =>
    sortIntoObjectGroups({
      kernelGroupCount: infos.length,
      infos,
      chunkSizeTokens: 16,
      isSeparate,
    });

  test('without separation, or without anything known, all kernel groups share one', () => {
    const infos = [info([0]), info([1], { slidingWindowTokens: 20 })];
    const [only, ...others] = sorted(infos, false);
    assert.equal(only, { kernelGroupIndices: [0, 1], windowChunks: 0, isAuxiliary: false });
    assert.is(others.length, 0);
    const options = { kernelGroupCount: 3, infos: [], chunkSizeTokens: 16, isSeparate: true };
    assert.equal(
      sortIntoObjectGroups(options).map((group) => group.kernelGroupIndices),
      [[0, 1, 2]],
    );
  });

  test('separated, those with the same window in chunks share one', () => {
    const infos = [16, -1, 17, 32, -1, 15].map((slidingWindowTokens, layer) =>
      info([layer], { slidingWindowTokens }),
    );
    assert.equal(
      sorted(infos).map(({ kernelGroupIndices, windowChunks }) => [
        kernelGroupIndices,
        windowChunks,
      ]),
      [
        [[0, 5], 1],
        [[1, 4], 0],
        [[2, 3], 2],
      ],
    );
  });

  test('recurrent state never shares an object with a window of the same size', () => {
    const infos = [
      info([0], { slidingWindowTokens: 16 }),
      info([1], { slidingWindowTokens: 16, isRecurrentState: true }),
    ];
    assert.equal(
      sorted(infos).map((group) => group.kernelGroupIndices),
      [[0], [1]],
    );
  });

  test("groups of a connector's own come last, one for each tag", () => {
    const infos = [
      info([0], { extraObjectGroupTag: 2 }),
      info([1], { extraObjectGroupTag: 1 }),
      info([2]),
      info([3], { extraObjectGroupTag: 2 }),
    ];
    assert.equal(
      sorted(infos).map((group) => [group.kernelGroupIndices, group.isAuxiliary]),
      [
        [[2], false],
        [[0, 3], true],
        [[1], true],
      ],
    );
  });

  test('recurrent state is one chunk whatever its window is said to be', () => {
    const infos = [-1, 8, 40].map((slidingWindowTokens, layer) =>
      info([layer], { slidingWindowTokens, isRecurrentState: true }),
    );
    assert.equal(
      sorted(infos).map(({ kernelGroupIndices, windowChunks }) => [
        kernelGroupIndices,
        windowChunks,
      ]),
      [[[0, 1, 2], 1]],
    );
  });

  test("a worker of which only the connector's own groups are cached is refused", () => {
    const tensors = times(1, contiguous([2, 8, 2, 1, 4]));
    const infos = [info([0], { extraObjectGroupTag: 1 })];
    assert.throws(
      () => layoutOf({ tensors, infos, hasSeparateObjects: true }),
      /every engine group is the connector's own/,
    );
    assert.is(layoutOf({ tensors, infos, hasSeparateObjects: false }).objectGroups.length, 1);
  });

  test('each has its own plan, size and layout, and /status tells which is which', () => {
    const layout = layoutOf({
      tensors: times(3, contiguous([2, 8, 2, 1, 4])),
      infos: [
        info([0, 2], { engineGroupId: 0 }),
        info([1], { engineGroupId: 1, slidingWindowTokens: 8 }),
      ],
      hasSeparateObjects: true,
    });
    assert.equal(
      layout.objectGroups.map(({ objectSizeBytes, plan }) => [objectSizeBytes, plan.groups.length]),
      [
        [2 * 2 * 4 * 4 * 2, 1],
        [2 * 4 * 4 * 2, 1],
      ],
    );
    const [full, windowed] = layout.objectGroups;
    assert.is.not(full?.layoutTag, windowed?.layoutTag);
    const { kernel_groups } = describeKvLayout(layout) as {
      kernel_groups: { object_group_idx: number }[];
    };
    assert.equal(
      kernel_groups.map((group) => group.object_group_idx),
      [0, 1],
    );
  });
});

/** A worker whose second layer sees two chunks; the third, if any, is the connector's own. */
async function hybridHouse(options: TransferHouseOptions = {}, layerCount = 2) {
  const house = new TransferHouse({ hasSeparateObjects: true, ...options });
  const infos = [
    info([0], { engineGroupId: 0 }),
    info([1], { engineGroupId: 1, slidingWindowTokens: 8 }),
    info([2], { engineGroupId: 2, extraObjectGroupTag: 1 }),
  ];
  const first = house.newTensors(1);
  const second = house.newTensors(2);
  const wrappers = [...first.wrappers, ...second.wrappers].slice(0, layerCount);
  const layers = [...first.bytes, ...second.bytes].slice(0, layerCount);
  const engineGroupInfos = infos.slice(0, layerCount);
  await house.call(
    'REGISTER_KV_CACHE',
    {
      instanceId: VLLM_ID,
      wrappers,
      modelName: 'model',
      worldSize: 1,
      engineType: 'vllm',
      layoutHints: {},
      engineGroupInfos,
    },
    { client: OLD_CLIENT },
  );
  return { house, layers };
}

/** Keys and values of one block of one layer. */
function block(layer: Uint8Array | undefined, id: number): number[] {
  const bytes = layer as Uint8Array;
  const half = bytes.length / 2;
  return [
    ...bytes.subarray(id * 8, id * 8 + 8),
    ...bytes.subarray(half + id * 8, half + id * 8 + 8),
  ];
}

const transfer = (tokenCount: number, blockIds: number[][], rest = {}) => ({
  key: keyOf(tokenCount, rest),
  instanceId: VLLM_ID,
  blockIds,
  event: EVENT,
});

suite('transfers of object groups', (test) => {
  test('each group is an object of its own, and comes back from its own block ids', async () => {
    const { house, layers } = await hybridHouse();
    await house.call('STORE', transfer(8, [range(4), range(4, 4)]));
    assert.is(house.storage.residentCount, 4, 'two chunks of two groups');
    const want = [
      range(4).map((id) => block(layers[0], id)),
      range(4, 4).map((id) => block(layers[1], id)),
    ];
    const request = transfer(8, [range(4, 12), range(4, 8)]);
    assert.ok((await house.call('RETRIEVE', { ...request, skipFirstTokens: 0 })).ok);
    assert.equal(
      range(4, 12).map((id) => block(layers[0], id)),
      want[0],
    );
    assert.equal(
      range(4, 8).map((id) => block(layers[1], id)),
      want[1],
    );
    assert.is(house.storage.pinCount, 0);
  });

  test('of a group with a window only the last chunks are read, and must exist', async () => {
    const { house, layers } = await hybridHouse();
    const ids = range(8);
    const nulls = [0, 0, 0, 0, ...range(4, 8)];
    await house.call('STORE', transfer(16, [ids, nulls]), { client: NEW_CLIENT });
    assert.is(house.storage.residentCount, 6, 'the first two chunks have no bytes in the window');
    const [full, last] = [
      ids.map((id) => block(layers[0], id)),
      range(4, 8).map((id) => block(layers[1], id)),
    ];
    for (const layer of layers) layer.fill(0xee);
    await house.call('RETRIEVE', { ...transfer(16, [ids, ids]), skipFirstTokens: 0 });
    assert.equal(
      ids.map((id) => block(layers[0], id)),
      full,
    );
    assert.equal(
      range(4)
        .flatMap((id) => block(layers[1], id))
        .every((byte) => byte === 0xee),
      true,
    );
    assert.equal(
      range(4, 4).map((id) => block(layers[1], id)),
      last,
    );
    assert.equal(
      house.sessions.consumed.map(({ slotCount }) => slotCount),
      [4, 2],
    );
  });

  test('leading tokens are skipped from the same place in all groups', async () => {
    const { house, layers } = await hybridHouse();
    const ids = range(6);
    await house.call('STORE', transfer(12, [ids, ids]));
    const last = [0, 1].map((layer) => block(layers[layer], 5));
    for (const layer of layers) layer.fill(0xee);
    await house.call('RETRIEVE', { ...transfer(12, [ids, ids]), skipFirstTokens: 10 });
    for (const [layer, want] of last.entries()) {
      assert.equal(block(layers[layer], 5), want);
      assert.ok(range(5).every((id) => block(layers[layer], id).every((byte) => byte === 0xee)));
    }
  });

  test('a RETRIEVE that misses one group reads nothing and keeps nothing', async () => {
    const { house, layers } = await hybridHouse();
    const ids = range(6);
    await house.call('STORE', transfer(12, [ids, [0, 0, 0, 0, 0, 0]]), { client: NEW_CLIENT });
    const before = layers.map((layer) => [...layer]);
    const request = { ...transfer(12, [ids, ids]), skipFirstTokens: 0 };
    await rejects(house.call('RETRIEVE', request, { client: NEW_CLIENT }), /not all of 3 chunks/);
    assert.equal(
      layers.map((layer) => [...layer]),
      before,
    );
    assert.is(house.storage.pinCount, 0);
    const read = { instanceId: VLLM_ID, startChunk: 0, endChunk: 3, rank: 0 };
    assert.equal(house.sessions.givenUp, [{ requestId: 'request', read }]);
  });

  test('a RETRIEVE that fails between two groups keeps no pin', async () => {
    const { house } = await hybridHouse();
    const ids = range(4);
    await house.call('STORE', transfer(8, [ids, ids]));
    const intern = house.storage.internNamespace.bind(house.storage);
    house.storage.internNamespace = (namespace) => {
      if (namespace.objectGroupId === 1) throw new KvdError('ERR_OVERLOADED', 'too many names');
      return intern(namespace);
    };
    const request = { ...transfer(8, [ids, ids]), skipFirstTokens: 0 };
    await rejects(house.call('RETRIEVE', request, { client: NEW_CLIENT }), /too many names/);
    assert.is(house.storage.pinCount, 0);
  });

  test('a failed copy of one group publishes none of them, after all have ended', async () => {
    const { house } = await hybridHouse();
    house.device.failNextJob = 'the worker is gone';
    await rejects(house.call('STORE', transfer(8, [range(4), range(4)])), /the worker is gone/);
    assert.equal([house.storage.stagingCount, house.storage.residentCount], [0, 0]);
    assert.is(house.storage.pinCount, 0);
    await house.call('STORE', transfer(8, [range(4), range(4)]));
    house.device.failNextJob = 'the worker is gone';
    const request = { ...transfer(8, [range(4), range(4)]), skipFirstTokens: 0 };
    await rejects(house.call('RETRIEVE', request, { client: NEW_CLIENT }), /the worker is gone/);
    assert.is(house.storage.pinCount, 0);
    assert.equal(
      house.sessions.consumed.map(({ slotCount }) => slotCount),
      [2, 2],
    );
    assert.equal(house.sessions.givenUp, [], 'the locks went back once');
  });

  test("a connector's own group is stored and never read", async () => {
    const { house, layers } = await hybridHouse({}, 3);
    const ids = range(2);
    await house.call('STORE', transfer(4, [ids, ids, ids]));
    assert.is(house.storage.residentCount, 3);
    for (const layer of layers) layer.fill(0xee);
    await house.call('RETRIEVE', { ...transfer(4, [ids, ids, ids]), skipFirstTokens: 0 });
    assert.is.not(block(layers[1], 0)[0], 0xee);
    assert.ok(block(layers[2], 0).every((byte) => byte === 0xee));
    const layout = house.instances.findLayout('model', 1);
    assert.equal(layout?.objectGroupIds, [0, 1], 'and it makes no hit');
    assert.equal(
      layout?.groupRules.map(({ windowChunks }) => windowChunks),
      [0, 2],
    );
  });
});

suite('null blocks', (test) => {
  test('a chunk is left out when all its blocks are null, in all kernel groups', async () => {
    const house = new TransferHouse({ nullBlockId: 7 });
    await house.register();
    const client = NEW_CLIENT;
    const ids = [7, 7, 1, 7, 7, 7, 2, 3];
    await house.call('STORE', { ...transfer(16, [ids]) }, { client });
    assert.is(house.storage.residentCount, 2, 'one block of its own is enough');
    const both = await hybridHouse({ hasSeparateObjects: false });
    await both.house.call(
      'STORE',
      transfer(12, [
        [0, 0, 1, 2, 0, 0],
        [0, 0, 0, 0, 3, 4],
      ]),
      { client },
    );
    assert.is(both.house.storage.residentCount, 2);
  });

  test('older clients know no null block: block 0 is one like any other', async () => {
    const house = new TransferHouse();
    await house.register();
    await house.call('STORE', transfer(8, [[0, 0, 0, 0]]), { client: OLD_CLIENT });
    assert.is(house.storage.residentCount, 2);
  });

  test('a null block in a RETRIEVE is written to, as every other one', async () => {
    const house = new TransferHouse();
    const tensors = await house.register();
    await house.call('STORE', transfer(4, [[3, 4]]), { client: NEW_CLIENT });
    const want = block(tensors[0], 4);
    const request = { ...transfer(4, [[5, 0]]), skipFirstTokens: 0 };
    assert.ok((await house.call('RETRIEVE', request, { client: NEW_CLIENT })).ok);
    assert.equal(block(tensors[0], 0), want);
  });
});
