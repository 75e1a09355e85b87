/** Which requests the door lets in: sizes before decoding, counts behind it. */
import * as assert from 'uvu/assert';
import type { OperationName } from '../../../src/engine/api.ts';
import { KvdError } from '../../../src/errors.ts';
import { MIB } from '../../../src/units.ts';
import { Admission } from '../../../src/wire/admission.ts';
import { Connection } from '../../../src/wire/connections.ts';
import { DIALECTS } from '../../../src/wire/dialect.ts';
import type { Call } from '../../../src/wire/operation.ts';
import { OPERATIONS } from '../../../src/wire/requests.ts';
import { DEFAULT_WIRE_LIMITS, type WireLimits } from '../../../src/wire/wire-limits.ts';
import { suite } from '../../support/suite.ts';

const TOKEN_COUNT_MAX = 100_000;
const TOKEN_BYTES = 9 * TOKEN_COUNT_MAX;
const ALWAYS_ADMITTED: readonly OperationName[] = ['PING', 'NOOP', 'GET_CHUNK_SIZE'];
const ADMITTED_AT_THE_END: readonly OperationName[] = ['GET_CHUNK_SIZE', 'SUBSCRIBE_KV_EVENTS'];

function open(limits: Partial<WireLimits> = {}): Admission {
  return new Admission({ ...DEFAULT_WIRE_LIMITS, ...limits });
}

const EVERY_NAME = Object.keys(OPERATIONS) as OperationName[];

/** As the newest generation calls it that has it. */
function callOf(name: OperationName): Call {
  const dialect = DIALECTS.findLast(({ callsByName }) => callsByName.has(name));
  return dialect?.callsByName.get(name) as Call;
}

let lastId = 0;
function connect(): Connection {
  lastId += 1;
  return new Connection(lastId, Buffer.from(`client ${lastId}`), DIALECTS);
}

/** Identity, uid and operation, then payloads of these sizes. */
function message(...sizes: number[]): Buffer[] {
  return [5, 1, 1, ...sizes].map((size) => Buffer.alloc(size));
}

function sizeProblem(name: OperationName, frames: Uint8Array[], limits = {}): string | null {
  try {
    open(limits).checkSize(callOf(name), frames, TOKEN_COUNT_MAX);
    return null;
  } catch (error) {
    assert.instance(error, KvdError);
    assert.is((error as KvdError).code, 'ERR_OVERLOADED');
    return (error as KvdError).message;
  }
}

function refusedCode(admission: Admission, connection: Connection, name: OperationName) {
  return admission.refusalOf(callOf(name), connection)?.code ?? null;
}

/** Lets requests in until one is refused; how many that were. */
function fill(admission: Admission, connection: Connection, attempts = 100): number {
  let count = 0;
  while (count < attempts && refusedCode(admission, connection, 'LOOKUP') === null) {
    admission.enter(connection);
    count += 1;
  }
  return count;
}

suite('size of a message', (test) => {
  test('is bounded by what the operation can need', () => {
    assert.is(sizeProblem('LOOKUP', message(TOKEN_BYTES + 1000, 1)), null);
    assert.match(
      sizeProblem('LOOKUP', message(TOKEN_BYTES + 2 * MIB, 1)) as string,
      /the message has 2997160 bytes, the bound of LOOKUP is 1948576/,
    );
    assert.is(sizeProblem('STORE', message(TOKEN_BYTES, 1, 9 * MIB, 64)), null);
    assert.match(sizeProblem('STORE', message(TOKEN_BYTES, 1, 11 * MIB, 64)) as string, /STORE/);
    assert.is(sizeProblem('END_SESSION', message(5000)), null);
    assert.match(sizeProblem('END_SESSION', message(2 * MIB)) as string, /END_SESSION/);
    for (const name of EVERY_NAME) {
      if (name === 'COMMIT_STORE') continue;
      const payloads = Array.from({ length: callOf(name).payloadCountMax }, () => 64 * MIB);
      if (payloads.length > 0)
        assert.match(sizeProblem(name, message(...payloads)) as string, name);
    }
  });

  test('of inline data is bounded by the limit alone, its key as any other', () => {
    assert.is(sizeProblem('COMMIT_STORE', message(TOKEN_BYTES, 1, 128 * MIB)), null);
    assert.match(
      sizeProblem('COMMIT_STORE', message(2 * MIB, 1, 0)) as string,
      /besides its data, the bound of COMMIT_STORE is 1948576/,
    );
    const limits = { messageBytesMax: 2 * MIB };
    assert.match(
      sizeProblem('COMMIT_STORE', message(1000, 1, 2 * MIB), limits) as string,
      /the bound of COMMIT_STORE is 2097152/,
    );
  });

  test('is never above the limit of all messages', () => {
    const limits = { messageBytesMax: 1000 };
    assert.match(sizeProblem('LOOKUP', message(1000, 1), limits) as string, /LOOKUP is 1000/);
  });

  test('is summed over the frames of the operation, however many came', () => {
    const frames = message(1, 1);
    for (let index = frames.length; index < 100; index += 1) {
      Object.defineProperty(frames, index, {
        get: () => assert.unreachable(`frame ${index} was looked at`),
      });
    }
    assert.is(sizeProblem('LOOKUP', frames), null);
  });
});

suite('request in flight', (test) => {
  test('counts for its connection and for all until it has left', () => {
    const admission = open({ inFlightCountMax: 3 });
    const [first, second] = [connect(), connect()];
    assert.is(fill(admission, first), 3);
    assert.is(refusedCode(admission, first, 'LOOKUP'), 'ERR_OVERLOADED');
    assert.is(refusedCode(admission, second, 'LOOKUP'), null);
    assert.is(admission.inFlightCount, 3);
    admission.leave(first);
    assert.is(refusedCode(admission, first, 'LOOKUP'), null);
    assert.is(admission.inFlightCount, 2);
  });

  test('of others leaves every connection its reserve', () => {
    const admission = open({ inFlightCountMaxTotal: 20, inFlightCountReserved: 4 });
    const greedy = [connect(), connect(), connect()];
    assert.equal(
      greedy.map((connection) => fill(admission, connection)),
      [20, 4, 4],
    );
    const modest = connect();
    assert.is(fill(admission, modest), 4);
    assert.match(
      admission.refusalOf(callOf('LOOKUP'), modest)?.message as string,
      /the server has 32 requests in flight, 4 of this connection/,
    );
    // Below the bound of all again: the reserve is no bound any more.
    for (let count = 0; count < 20; count += 1) admission.leave(greedy[0] as Connection);
    assert.is(fill(admission, modest), 8);
  });

  test('without a bound are those whose refusal a client cannot bear', () => {
    const limits = { inFlightCountMax: 1, inFlightCountMaxTotal: 1, inFlightCountReserved: 0 };
    const admission = open(limits);
    const connection = connect();
    fill(admission, connection);
    for (const name of EVERY_NAME) {
      const expected = ALWAYS_ADMITTED.includes(name) ? null : 'ERR_OVERLOADED';
      assert.is(refusedCode(admission, connection, name), expected, name);
    }
  });

  test('is refused by a door that closes, all but the chunk size and streams', () => {
    const admission = open();
    admission.isClosing = true;
    for (const name of EVERY_NAME) {
      const expected = ADMITTED_AT_THE_END.includes(name) ? null : 'ERR_SHUTTING_DOWN';
      assert.is(refusedCode(admission, connect(), name), expected, name);
    }
  });
});
