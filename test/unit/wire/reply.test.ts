/** The forms of a failure, and of the frame that names an operation. */
import * as assert from 'uvu/assert';
import type { OperationName } from '../../../src/engine/api.ts';
import { KvdError } from '../../../src/errors.ts';
import { callNamed, DIALECTS, type Dialect } from '../../../src/wire/dialect.ts';
import { readOperationFrame } from '../../../src/wire/frames.ts';
import type { Call } from '../../../src/wire/operation.ts';
import { exceptionReply, neutralReply, STUB_EVENT } from '../../../src/wire/reply.ts';
import { OPERATIONS } from '../../../src/wire/requests.ts';
import { callA } from '../../support/calls.ts';
import { NEW_CLIENT, OLD_CLIENT } from '../../support/client-traits.ts';
import { goldenReader as reader } from '../../support/golden-messages.ts';
import { suite } from '../../support/suite.ts';

const STORE = callA('STORE') as unknown as Call;
const LOOKUP = callA('LOOKUP') as unknown as Call;

suite('failure reply', (test) => {
  test('exists for all but the registrations', () => {
    const silent = Object.values(OPERATIONS)
      .filter((operation) => operation.neutral.kind === 'none')
      .map((operation) => operation.name);
    assert.equal(silent.sort(), [
      'CB_REGISTER_KV_CACHE',
      'CB_REGISTER_ROPE_V3',
      'REGISTER_KV_CACHE',
      'REGISTER_KV_CACHE_ENGINE_DRIVEN_CONTEXT',
      'REGISTER_Q_CACHE',
    ]);
  });

  test('of a transfer carries the event of the error, else one that the client can bear', () => {
    const uid = Buffer.from([7]);
    const plain = new KvdError('ERR_BAD_REQUEST', 'no');
    const eventFor = (client: typeof OLD_CLIENT) => {
      const failed = { uid, op: uid, call: STORE, client };
      const [, , frame] = neutralReply(failed, plain) as Uint8Array[];
      const reply = OPERATIONS.STORE.decodeReply(frame, reader);
      assert.is(reply.ok, false);
      return Buffer.from(reply.event);
    };
    assert.equal(eventFor(OLD_CLIENT), Buffer.from(STUB_EVENT));
    assert.is(eventFor(NEW_CLIENT).length, 0, 'where the client does not open it');
  });

  test('as an exception names code and message in place of the operation', () => {
    const [, text] = exceptionReply(Buffer.from([7]), new KvdError('ERR_BAD_REQUEST', 'why'));
    assert.is(
      Buffer.from(text as Uint8Array)
        .toString('latin1')
        .slice(1),
      'error: BAD_REQUEST: why',
    );
  });

  test('cuts a message that a client made long', () => {
    const error = new KvdError('ERR_BAD_REQUEST', 'x'.repeat(1 << 20));
    const [uid, op] = [Buffer.of(7), Buffer.of(5)];
    const reply = neutralReply({ uid, op, call: LOOKUP, client: OLD_CLIENT }, error);
    assert.ok((reply as Uint8Array[])[3]!.length < 1200);
  });
});

suite('refusal', (test) => {
  const failed = (name: OperationName, dialect: Dialect) => ({
    uid: Buffer.of(7),
    op: Buffer.of(9),
    call: callNamed(dialect, name) as unknown as Call,
    client: dialect.client,
  });

  test('of a registration is silence for older clients and an exception for newer ones', () => {
    const error = new KvdError('ERR_LAYOUT', 'unknown layout');
    for (const dialect of DIALECTS) {
      const reply = dialect.refuse(failed('REGISTER_KV_CACHE', dialect), error);
      if (dialect.name !== 'C') assert.is(reply, null);
      else {
        assert.is(reply?.length, 2);
        assert.match(
          Buffer.from(reply?.[1] ?? []).toString(),
          /error: BAD_REQUEST: unknown layout/,
        );
      }
    }
  });

  test('of a transfer is its failure value for all of them', () => {
    const error = new KvdError('ERR_BAD_REQUEST', 'no');
    for (const dialect of DIALECTS) {
      assert.is(dialect.refuse(failed('STORE', dialect), error)?.length, 4);
    }
  });
});

suite('operation frame', (test) => {
  test('is an id in any integer form, or a name, and nothing else', () => {
    const read = (hex: string) => readOperationFrame(Buffer.from(hex, 'hex'));
    for (const hex of ['15', 'cc15', 'cd0015', 'ce00000015', 'cf0000000000000015', 'd015']) {
      assert.is(read(hex), 21);
    }
    assert.is(read(''), 'empty');
    assert.equal(read('a470696e67'), { text: 'ping' });
    assert.is(read('a470696e6700'), 'invalid');
    assert.is(read('a470696e'), 'invalid');
    for (const hex of ['ff', 'cd00', '1500', 'c0', 'c3', 'cb4035000000000000', 'c1', '80', 'cc']) {
      assert.is(read(hex), 'invalid', hex);
    }
    assert.is(read('cfffffffffffffffff'), 'invalid');
  });
});
