/** Refused transfers and strict RETRIEVE (spec engine 9.1, 9.3; wire 7.3) */
import * as assert from 'uvu/assert';
import type { ClientTraits } from '../../../src/engine/client-traits.ts';
import { KvdError, RefusedTransferError, WithheldReplyError } from '../../../src/errors.ts';
import { NEW_CLIENT, OLD_CLIENT } from '../../support/client-traits.ts';
import { STUB_EVENT } from '../../support/memory-device.ts';
import { rejects } from '../../support/rejects.ts';
import { suite } from '../../support/suite.ts';
import { retrieve, store, TransferHouse, VLLM_ID } from '../../support/transfer-house.ts';

const range = (count: number, first = 0) => Array.from({ length: count }, (_, i) => first + i);

suite('refused transfers', (test) => {
  const bad: [string, ReturnType<typeof store>, RegExp][] = [
    [
      'an unknown instance',
      { ...store(4, [0, 1]), instanceId: 5n },
      /instance_id 5 not registered/,
    ],
    ['too few block ids', store(8, [0, 1, 2]), /at least 4 block ids/],
    [
      'an additional list',
      {
        ...store(4, []),
        blockIds: [
          [0, 1],
          [0, 1],
        ],
      },
      /1 kernel groups, got 2/,
    ],
    ['a block id out of range', store(4, [0, 16]), /block id 16 at position 1/],
    ['an unaligned end', store(8, range(4), { endToken: 6 }), /got \[0, 6\)/],
    ['an unaligned start', store(8, range(4), { startToken: 2 }), /got \[2, 8\)/],
    ['a negative start', store(8, range(4), { startToken: -4 }), /got \[-4, 8\)/],
    [
      'a range that ends before it starts',
      store(8, [], { startToken: 8, endToken: 4 }),
      /\[8, 4\)/,
    ],
    ['a range beyond the tokens', store(8, range(8), { endToken: 12 }), /within 8 tokens/],
    ['no rank', store(8, range(4), { workerId: null }), /expected a worker_id, got nil/],
    [
      'a rank beyond the world',
      store(8, range(4), { workerId: 1 }),
      /below the world_size 1, got 1/,
    ],
    ['a model name with @', store(8, range(4), { modelName: 'a@b' }), /without "@"/],
  ];
  for (const [title, request, message] of bad) {
    test(`${title}: both are answered by an event and false, and nothing moves`, async () => {
      const house = new TransferHouse({ strictRetrieve: false });
      const tensors = await house.register();
      const before = tensors.map((bytes) => bytes.slice());
      const calls = [
        () => house.call('STORE', request),
        () => house.call('RETRIEVE', { ...request, skipFirstTokens: 0 }),
      ];
      for (const call of calls) {
        const error = await rejects(call(), message);
        assert.instance(error, RefusedTransferError);
        assert.equal((error as RefusedTransferError).event, STUB_EVENT);
      }
      assert.equal([house.storage.stagingCount, house.storage.residentCount], [0, 0]);
      assert.equal(house.sessions.recorded, []);
      assert.equal(tensors, before);
      assert.is(house.status()['refused_transfer_count'], 2);
    });
  }

  test('a client that accepts an empty event gets one', async () => {
    const house = new TransferHouse();
    const error = await rejects(
      house.call('STORE', store(4, [0, 1]), { client: NEW_CLIENT }),
      /not registered/,
    );
    assert.is((error as RefusedTransferError).event.length, 0);
  });

  test('no valid event: silence, and the next PING of the worker is false', async () => {
    const house = new TransferHouse();
    house.device.eventError = new KvdError('ERR_UNSUPPORTED', 'no device');
    assert.not.ok(house.instances.ping(VLLM_ID));
    assert.ok(house.instances.ping(VLLM_ID));
    const error = await rejects(house.call('STORE', store(4, [0, 1])), /not registered/);
    assert.instance(error, WithheldReplyError);
    assert.not.ok(house.instances.ping(VLLM_ID));
    assert.ok(house.instances.ping(VLLM_ID));
  });

  test('a broken rule of our own is a refusal with its cause', async () => {
    const house = new TransferHouse();
    await house.register();
    house.storage.internNamespace = () => {
      throw new TypeError('boom');
    };
    const error = (await rejects(house.call('STORE', store(4, [0, 1])), /boom/)) as KvdError;
    assert.instance(error, RefusedTransferError);
    assert.is(error.code, 'ERR_INTERNAL');
    assert.instance((error.cause as Error).cause, TypeError);
  });
});

suite('strict RETRIEVE', (test) => {
  test('a vLLM worker of an old generation gets no reply, and one false PING', async () => {
    const house = new TransferHouse();
    await house.register();
    assert.ok(house.instances.ping(VLLM_ID));
    const error = await rejects(house.call('RETRIEVE', retrieve(4, [0, 1])), /not all/);
    assert.instance(error, WithheldReplyError);
    assert.is((error as KvdError).code, 'ERR_DATA_MISSING');
    assert.not.ok(house.instances.ping(VLLM_ID));
    assert.ok(house.instances.ping(VLLM_ID));
    assert.is(house.status()['withheld_retrieve_count'], 1);
  });

  test('the false PING is owed across a new registration', async () => {
    const house = new TransferHouse();
    await rejects(house.call('RETRIEVE', retrieve(4, [0, 1])), /not registered/);
    await house.register();
    assert.not.ok(house.instances.ping(VLLM_ID));
    assert.ok(house.instances.ping(VLLM_ID));
  });

  test('an unknown id of 2^22 or more counts as such a worker', async () => {
    const house = new TransferHouse();
    const unknown = { ...retrieve(4, [0, 1]), instanceId: 2n ** 22n };
    assert.instance(
      await rejects(house.call('RETRIEVE', unknown), /not registered/),
      WithheldReplyError,
    );
    const pid = { ...retrieve(4, [0, 1]), instanceId: 2n ** 22n - 1n };
    assert.instance(
      await rejects(house.call('RETRIEVE', pid), /not registered/),
      RefusedTransferError,
    );
  });

  test('other engines, newer clients and the switch turned off get false', async () => {
    const sglang = new TransferHouse();
    const wrappers = sglang.newTensors(1).wrappers.map((wrapper) => ({
      ...wrapper,
      shape: [32, 2, 4],
      stride: [8, 4, 1],
    }));
    const layoutHints = { tokensPerBlock: 2 };
    await sglang.register({ engineType: 'sglang', layoutHints, wrappers });
    const newer = new TransferHouse();
    await newer.register();
    const lax = new TransferHouse({ strictRetrieve: false });
    await lax.register();
    for (const [house, context] of [
      [sglang, {}],
      [newer, { client: NEW_CLIENT }],
      [lax, {}],
    ] as const) {
      const error = await rejects(house.call('RETRIEVE', retrieve(4, [0, 1]), context), /not all/);
      assert.instance(error, RefusedTransferError);
      assert.ok(house.instances.ping(VLLM_ID));
    }
  });

  test('a RETRIEVE that met its deadline follows the same rule', async () => {
    const house = new TransferHouse();
    await house.register();
    const context = { connectionId: 1, client: NEW_CLIENT };
    const late = new KvdError('ERR_TIMEOUT', 'late');
    assert.instance(house.module.refuseRetrieve(VLLM_ID, context, late), RefusedTransferError);
    const old = { ...context, client: { ...NEW_CLIENT, reportsFailedRetrieve: false } };
    assert.instance(house.module.refuseRetrieve(VLLM_ID, old, late), WithheldReplyError);
    assert.not.ok(house.instances.ping(VLLM_ID));
  });

  test('a RETRIEVE of nobody knows whom gets no reply from a client that could misread it', () => {
    const house = new TransferHouse();
    const unread = new KvdError('ERR_WIRE_PAYLOAD', 'payload 1');
    const refuse = (client: ClientTraits) =>
      house.module.refuseRetrieve(null, { connectionId: 1, client }, unread);
    assert.instance(refuse(OLD_CLIENT), WithheldReplyError);
    assert.instance(refuse(NEW_CLIENT), RefusedTransferError);
    const lax = new TransferHouse({ strictRetrieve: false });
    const context = { connectionId: 1, client: OLD_CLIENT };
    assert.instance(lax.module.refuseRetrieve(null, context, unread), RefusedTransferError);
  });
});
