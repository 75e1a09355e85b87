/** What golden requests say, in the engine's words. */
import * as assert from 'uvu/assert';
import { callNamed, dialectNamed } from '../../../src/wire/dialect.ts';
import { callA } from '../../support/calls.ts';
import { decodeCase, goldenReader as reader } from '../../support/golden-messages.ts';
import { suite } from '../../support/suite.ts';

suite('decoded request', (test) => {
  test('STORE has key, instance, blocks and event', () => {
    const { key, instanceId, blockIds, event } = decodeCase('STORE', 'key-unicode-and-salt');
    assert.is(instanceId, 4242n);
    assert.equal(blockIds, [[0]]);
    assert.is(event.length, 64);
    assert.is(key.modelName, '组织/模型-Ünï😀_v1.0');
    assert.is(key.requestId, 'запрос-😀');
    assert.is(key.cacheSalt, 'tenant_A-01');
    assert.equal([key.worldSize, key.workerId, key.readerCount], [1, 0, null]);
    assert.equal([key.startToken, key.endToken, key.tokens.count], [0, 16, 16]);
  });

  test('keeps a token range and ids of 63 bits as they came', () => {
    const lookup = decodeCase('LOOKUP', 'key-tp8-worker7');
    assert.equal([lookup.key.startToken, lookup.key.endToken], [256, 512]);
    assert.is(lookup.key.workerId, null);
    const retrieve = decodeCase('RETRIEVE', 'skip-17-multi-group');
    assert.is(retrieve.instanceId, 9_223_372_036_854_775_807n);
    assert.is(retrieve.skipFirstTokens, 17);
  });

  test('REGISTER_KV_CACHE has hints, groups and defaults for what is missing', () => {
    const full = decodeCase('REGISTER_KV_CACHE', 'trtllm-raw');
    assert.is(full.engineType, 'trtllm');
    assert.equal(full.layoutHints, {
      kvLayout: 'HND',
      numKvHeads: 8,
      tokensPerBlock: 32,
      headDim: 128,
    });
    const groups = decodeCase('REGISTER_KV_CACHE', 'no-hints-default-group');
    assert.equal(groups.layoutHints, {});
    assert.equal(groups.engineGroupInfos, [
      {
        engineGroupId: 0,
        layerIndices: [],
        tokensPerBlock: 0,
        slidingWindowTokens: -1,
        extraObjectGroupTag: 0,
        isRecurrentState: false,
      },
    ]);
  });

  test('REGISTER_KV_CACHE takes nil and unknown hints as nothing', () => {
    const frames = ['01', '90', 'a16d', '01', 'a4766c6c6d', 'c0', 'c0'].map((hex) =>
      Buffer.from(hex, 'hex'),
    );
    const decode = () => callA('REGISTER_KV_CACHE').decodeRequest(frames, 0, reader);
    assert.equal([decode().layoutHints, decode().engineGroupInfos], [{}, []]);
    frames[5] = Buffer.from('81a3666f6f9101', 'hex');
    assert.equal(decode().layoutHints, {});
  });

  test('of the engine-driven context has every field, with aliases of dtypes resolved', () => {
    const name = 'REGISTER_KV_CACHE_ENGINE_DRIVEN_CONTEXT';
    const request = decodeCase(name, 'mla-unicode-big');
    assert.equal(
      { ...request, modelName: '' },
      {
        instanceId: 9_223_372_036_854_775_807n,
        modelName: '',
        worldSize: 8,
        blockSize: 16,
        layerCount: 2,
        hiddenSize: 576,
        dtype: 'float8_e4m3fn',
        usesMla: true,
        physicalSlotCount: null,
      },
    );
    const [frame] = callA(name).encodeRequest(request);
    const text = Buffer.from(frame as Uint8Array).toString('latin1');
    const half = Buffer.from(text.replace('\xadfloat8_e4m3fn', '\xa4half'), 'latin1');
    assert.is(callA(name).decodeRequest([half], 0, reader).dtype, 'float16');
  });

  test('of blend and P2P has its numbers in the right places', () => {
    const blend = decodeCase('CB_RETRIEVE_PRE_COMPUTED_V3', 'plain');
    const { oldStart, oldEnd, currentStart, currentEnd, hash } = blend.matches[0]!;
    assert.equal([oldStart, oldEnd, currentStart, currentEnd], [0, 256, 512, 768]);
    assert.is(hash.length, 32);
    const p2p = decodeCase('P2P_LOOKUP_AND_LOCK', 'two');
    assert.equal(
      [...p2p.layouts],
      [
        [
          0,
          {
            shapes: [
              [2, 2, 16, 64],
              [4, 16, 576],
            ],
            dtypes: ['float16', 'float8_e4m3fn'],
          },
        ],
      ],
    );
    assert.is(p2p.keys[0]?.kvRank, 16_777_472);
    const records = decodeCase('REPORT_BLOCK_ALLOCATION', 'two').records;
    assert.equal(records[0], {
      requestId: 'req-1',
      newBlockIds: [0, 1, 2],
      newTokenIds: [5, 4_294_967_295],
    });
  });

  test('of 0.5.6 says how many read its objects, and what its user attached', () => {
    const plain = decodeCase('LOOKUP', 'key-plain', '0.5.6').key;
    assert.equal([plain.readerCount, plain.requestConfigs], [1, null]);
    assert.is(decodeCase('LOOKUP', 'key-readers-unset', '0.5.6').key.readerCount, 0);
    const { requestConfigs } = decodeCase('LOOKUP', 'key-request-configs', '0.5.6').key;
    assert.equal(
      { ...requestConfigs },
      { 'lmcache.skip_save': true, 'lmcache.tag': 'a', n: 3, x: null },
    );
    assert.is(decodeCase('LOOKUP', 'key-plain').key.readerCount, null);
  });

  test('of 0.5.6 has layouts by object group, and registrations of more kinds', () => {
    const { layouts } = decodeCase('P2P_LOOKUP_AND_LOCK', 'two', '0.5.6');
    assert.equal([...layouts.keys()], [0, 3]);
    const name = 'REGISTER_KV_CACHE_ENGINE_DRIVEN_CONTEXT';
    assert.is(decodeCase(name, 'physical-slots', '0.5.6').physicalSlotCount, 128);
    const rope = decodeCase('CB_REGISTER_ROPE_V3', 'fp8', '0.5.6');
    assert.equal(rope.groupHeadSizes, [128, 192]);
    assert.equal(rope.groupRotations, [
      [0, 64],
      [64, 64],
    ]);
    assert.is(rope.kvQuantisation, 'fp8_e4m3');
    const fabric = decodeCase('REGISTER_KV_CACHE', 'wrapper-cuda-vmm-fabric', '0.5.6');
    assert.is(fabric.wrappers[0]?.kind, 'cuda-vmm');
  });

  test('of 0.5.5 that clears has no payload and means everything', () => {
    const clear = callNamed(dialectNamed('C'), 'CLEAR');
    assert.is(clear.decodeRequest([], 0, reader).isForced, true);
    assert.is(clear.decodeRequest([Buffer.of(0xc2)], 0, reader).isForced, false);
    assert.throws(
      () => clear.decodeRequest([Buffer.of(0xc2), Buffer.of(0xc2)], 0, reader),
      /expected 1 or 0 payload frames, got 2/,
    );
  });

  test('of rotations has the defaults of the releases that do not say more', () => {
    const frames = ['01', '90', '10', 'c3', '9100', '91920040'].map((hex) =>
      Buffer.from(hex, 'hex'),
    );
    const since053 = callNamed(dialectNamed('B'), 'CB_REGISTER_ROPE_V3');
    const request = since053.decodeRequest(frames, 0, reader);
    assert.equal([request.groupToCache, request.groupRotations], [[0], [[0, 64]]]);
    assert.equal([request.groupHeadSizes, request.kvQuantisation], [[], '']);
    const since052 = callNamed(dialectNamed('A'), 'CB_REGISTER_ROPE_V3');
    assert.equal(since052.decodeRequest(frames.slice(0, 5), 0, reader).groupRotations, []);
  });

  test('of blending has one list of blocks per group, also where clients send a single one', () => {
    const flat = decodeCase('CB_RETRIEVE_PRE_COMPUTED_V3', 'plain');
    assert.is(flat.blockIds.length, 1);
    const call = callA('CB_RETRIEVE_PRE_COMPUTED_V3');
    const nested = call.encodeRequest({ ...flat, blockIds: [[1], [2, 3]] });
    assert.equal(call.decodeRequest(nested, 0, reader).blockIds, [[1], [2, 3]]);
  });

  test('PING has the instance or null for a scheduler', () => {
    assert.is(decodeCase('PING', 'scheduler').instanceId, null);
    assert.is(decodeCase('PING', 'i63').instanceId, 9_223_372_036_854_775_807n);
  });
});
