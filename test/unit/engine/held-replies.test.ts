/** Failed reads of workers that take a failure for a success (held-replies.ts) */
import * as assert from 'uvu/assert';
import { HeldReplies } from '../../../src/engine/transfer/held-replies.ts';
import { HeldReplyError, KvdError, WithheldReplyError } from '../../../src/errors.ts';
import { suite } from '../../support/suite.ts';
import { VirtualClock } from '../../support/virtual-clock.ts';

const ERROR = new KvdError('ERR_DATA_MISSING', 'not there');

function setUp() {
  const clock = new VirtualClock();
  const owed: bigint[] = [];
  const replies = new HeldReplies(clock, {
    oweFalsePing: (instanceId) => void owed.push(instanceId),
    oweFalsePingAndWait: () => () => {},
  });
  return { clock, owed, replies };
}

suite('held replies', (test) => {
  test('without a PING the failure is answered after 15 s', async () => {
    const { clock, replies } = setUp();
    const held = replies.hold(1n, ERROR);
    assert.instance(held, HeldReplyError);
    assert.is(replies.count, 1);
    clock.advance(15_000);
    assert.is(await (held as HeldReplyError).due, ERROR);
    assert.is(replies.count, 0);
  });

  test('beyond the bound nothing is held: no answer, and the next PING says false', () => {
    const { replies, owed } = setUp();
    for (let i = 0; i < 4096; i += 1) assert.instance(replies.hold(1n, ERROR), HeldReplyError);
    assert.instance(replies.hold(2n, ERROR), WithheldReplyError);
    assert.is(replies.count, 4096);
    assert.equal(owed, [2n]);
    replies.withdrawAll();
    assert.is(replies.count, 0);
  });
});
