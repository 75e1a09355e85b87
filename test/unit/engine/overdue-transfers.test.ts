/** Transfers that their worker may have given up while the server stood still. */
import * as assert from 'uvu/assert';
import { RefusedTransferError, WithheldReplyError } from '../../../src/errors.ts';
import { AbandonableAttempt } from '../../support/attempts.ts';
import { NEW_CLIENT } from '../../support/client-traits.ts';
import { rejects } from '../../support/rejects.ts';
import { suite } from '../../support/suite.ts';
import { retrieve, store, TransferHouse, VLLM_ID } from '../../support/transfer-house.ts';

function overdue(): AbandonableAttempt {
  const attempt = new AbandonableAttempt();
  attempt.isOverdue = true;
  return attempt;
}

/** A worker whose first blocks are stored and lie in L1. */
async function stored(...options: ConstructorParameters<typeof TransferHouse>) {
  const house = new TransferHouse(...options);
  const tensors = await house.register();
  await house.call('STORE', store(4, [0, 1]));
  return { house, tensors, before: tensors.map((bytes) => bytes.slice()) };
}

suite('overdue transfers', (test) => {
  test('a RETRIEVE touches no block, gets no reply, and one false PING', async () => {
    const { house, tensors, before } = await stored();
    const error = await rejects(
      house.call('RETRIEVE', retrieve(4, [4, 5]), {}, overdue()),
      /stood still/,
    );
    assert.instance(error, WithheldReplyError);
    assert.equal(tensors, before);
    assert.not.ok(house.instances.ping(VLLM_ID));
    assert.ok(house.instances.ping(VLLM_ID));
    assert.is(house.status()['overdue_transfer_count'], 1);
    assert.is(house.storage.pinCount, 0);
  });

  test('a RETRIEVE of a client that reads a failure right is answered with false', async () => {
    const { house, tensors, before } = await stored();
    const late = house.call('RETRIEVE', retrieve(4, [4, 5]), { client: NEW_CLIENT }, overdue());
    assert.instance(await rejects(late, /stood still/), RefusedTransferError);
    assert.equal(tensors, before);
    assert.ok(house.instances.ping(VLLM_ID));
  });

  test('a STORE publishes nothing and is answered with false', async () => {
    const house = new TransferHouse();
    await house.register();
    const late = house.call('STORE', store(4, [0, 1]), {}, overdue());
    assert.instance(await rejects(late, /stood still/), RefusedTransferError);
    assert.equal([house.storage.stagingCount, house.storage.residentCount], [0, 0]);
  });

  test('a STORE that was copying when the server stopped publishes nothing', async () => {
    const house = new TransferHouse();
    await house.register();
    const attempt = new AbandonableAttempt();
    const release = house.device.hold();
    const late = house.call('STORE', store(4, [0, 1]), {}, attempt);
    await house.settle();
    assert.is(house.storage.stagingCount, 1);
    attempt.isOverdue = true;
    release();
    await rejects(late, /stood still/);
    assert.equal([house.storage.stagingCount, house.storage.residentCount], [0, 0]);
  });

  async function sglangHouse() {
    const house = new TransferHouse();
    const { wrappers, bytes } = house.newTensors(1);
    const slotted = wrappers.map((wrapper) => ({
      ...wrapper,
      shape: [32, 2, 4],
      stride: [8, 4, 1],
    }));
    const layoutHints = { tokensPerBlock: 2 };
    await house.register({ engineType: 'sglang', layoutHints, wrappers: slotted });
    return { house, tensors: bytes };
  }

  test('workers that wait for their answer get it', async () => {
    const { house } = await sglangHouse();
    const { ok } = await house.call('STORE', store(4, [0, 1]), {}, overdue());
    assert.is(ok, true);
    assert.is(house.storage.residentCount, 1);
    assert.is((await house.call('RETRIEVE', retrieve(4, [4, 5]), {}, overdue())).ok, true);
  });

  test('but not when they wait no more', async () => {
    const { house, tensors } = await sglangHouse();
    await house.call('STORE', store(4, [0, 1]));
    const before = tensors.map((bytes) => bytes.slice());
    const expired = overdue();
    expired.isExpired = true;
    const late = house.call('RETRIEVE', retrieve(4, [4, 5]), {}, expired);
    assert.instance(await rejects(late, /stood still/), RefusedTransferError);
    assert.equal(tensors, before);
    await rejects(house.call('STORE', store(8, [0, 1, 2, 3]), {}, expired), /stood still/);
    assert.is(house.storage.residentCount, 1);
  });
});
