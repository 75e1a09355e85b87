/** Which generation a client is found to be, against the tables and cases of the specification. */
import * as assert from 'uvu/assert';
import { Connection } from '../../../src/wire/connections.ts';
import { DialectDetection, type Resolution } from '../../../src/wire/detection.ts';
import {
  DIALECTS,
  type Dialect,
  type DialectName,
  dialectNamed,
  offeredDialects,
} from '../../../src/wire/dialect.ts';
import { type OperationFrame, readOperationFrame } from '../../../src/wire/frames.ts';
import { MsgpackWriter } from '../../../src/wire/msgpack.ts';
import { signatureOf } from '../../../src/wire/signature.ts';
import { suite } from '../../support/suite.ts';
import {
  dialectVectors,
  framesInFull,
  RELEASES,
  type Release,
  type VectorRequest,
  wireVectorsOf,
} from '../../support/wire-vectors.ts';

/** The smallest payload of each letter. */
const PAYLOADS: Readonly<Record<string, string>> = {
  m: '80',
  a: '90',
  i: '07',
  s: 'a0',
  b: 'c400',
  f: 'cb0000000000000000',
  n: 'c0',
  t: 'c2',
  x: 'd40100',
};
const INSTANCE = 7n;
const KEY_WITH_READERS = Buffer.from('\x81\xaenum_kv_readers\x01', 'latin1');

function payloadsOf(signature: string): Buffer[] {
  return [...signature].map((letter) => Buffer.from(PAYLOADS[letter] as string, 'hex'));
}

function open(offered: readonly Dialect[] = DIALECTS) {
  const detection = new DialectDetection(offered);
  let count = 0;
  const connect = () => {
    count += 1;
    return new Connection(count, Buffer.from(`${count}`), offered);
  };
  const send = (connection: Connection, op: OperationFrame, payloads: Buffer[]) => {
    const head = [connection.identity, Buffer.of(1), Buffer.of(0)];
    const resolution = detection.resolve(connection, op, [...head, ...payloads]);
    if (resolution) connection.adopt(resolution.dialect);
    return resolution;
  };
  return { detection, connect, send };
}

/** What A and B call `…_V3` has lost its number in C. */
function nameOf(resolution: Resolution | null): string | null {
  if (!resolution) return null;
  const { dialect, call } = resolution;
  return dialect.name === 'C' ? call.operation.name.replace(/_V3$/, '') : call.operation.name;
}

function stateOf({ candidates }: Connection): string {
  return candidates.map(({ name }) => name).join('');
}

suite('dialect table', (test) => {
  for (const name of ['A', 'B', 'C'] as const) {
    test(`${name} has the ids and signatures of the specification`, () => {
      const { callsById } = dialectNamed(name);
      const table = dialectVectors.tables[name];
      assert.is(callsById.size, table.length);
      for (const { id, op, signatures } of table) {
        const call = callsById.get(id);
        const own = call?.forms.flatMap((form) => form.signatures) ?? [];
        assert.is(name === 'C' ? call?.operation.name.replace(/_V3$/, '') : call?.label, op);
        assert.equal([...own].sort(), [...signatures].sort(), `${id} ${op}`);
      }
    });
  }

  test('has forms whose signatures are those of what they write', () => {
    for (const release of Object.keys(RELEASES) as Release[]) {
      const dialect = dialectNamed(RELEASES[release]);
      for (const vector of wireVectorsOf(release).requests) {
        const call = [...dialect.callsByName.values()].find(({ label }) => label === vector.op);
        const signature = signatureOf(shortFrames(vector), 2);
        assert.ok(call?.hasSignature(signature), `${release} ${vector.op} ${signature}`);
      }
    }
  });
});

/** Of frames that the vectors keep only in part, the first bytes and the last. */
function shortFrames(vector: VectorRequest): Buffer[] {
  return framesInFull(vector.frames, ({ $head, $tail }) => Buffer.from($head + $tail, 'hex'));
}

suite('detection', (test) => {
  for (const { case: name, steps } of dialectVectors.sequences) {
    test(`of the golden sequence "${name}"`, () => {
      const { connect, send } = open();
      const connection = connect();
      for (const { id, signature, op, state_after } of steps) {
        assert.is(nameOf(send(connection, id, payloadsOf(signature))), op, `${id} ${signature}`);
        assert.is(stateOf(connection), state_after, `after ${id} ${signature}`);
      }
    });
  }

  for (const golden of dialectVectors.keyed_cases) {
    const { id, signature, key_has_num_kv_readers: hasReaders, instance_dialect: known } = golden;
    test(`of ${id}, key ${hasReaders ? 'with' : 'without'} readers, worker ${known}`, () => {
      const { detection, connect, send } = open();
      if (known) {
        const earlier = connect();
        earlier.narrow([dialectNamed(known)]);
        detection.remember(INSTANCE, earlier);
      }
      const payloads = payloadsOf(signature);
      if (hasReaders) payloads[0] = KEY_WITH_READERS;
      assert.is(nameOf(send(connect(), id, payloads)), golden.op);
    });
  }

  test('is right about every golden request of a fresh client, except NOOP of the oldest', () => {
    for (const release of Object.keys(RELEASES) as Release[]) {
      for (const vector of wireVectorsOf(release).requests) {
        const { connect, send } = open();
        const frames = shortFrames(vector);
        const op = readOperationFrame(frames[1] as Buffer);
        const found = send(connect(), op, frames.slice(2));
        if (release === '0.5.0' && vector.op === 'NOOP') {
          assert.is(found?.call.label, 'GET_CHUNK_SIZE');
        } else assert.is(nameOf(found), vector.op.toUpperCase(), `${release} ${vector.case}`);
      }
    }
  });

  test('by a field that only new clients send rules the older ones out', () => {
    const fields = [
      [8, [KEY_WITH_READERS, Buffer.of(1)]],
      [14, [Buffer.from('\x81\xb2num_physical_slots\xc0', 'latin1')]],
      [1, registration('\x90', '\x91\x81\xafrecurrent_state\xc2')],
      // A described wrapper of four bytes.
      [1, registration('\x91\xd6\x01\x84\xa1a\x01', '\x90')],
    ] as const;
    for (const [id, payloads] of fields) {
      const { connect, send } = open();
      const connection = connect();
      assert.is(send(connection, id, [...payloads])?.dialect.name, 'C');
      assert.is(stateOf(connection), 'C');
    }
  });

  test('by such a field is not led astray by a salt, which users choose', () => {
    for (const salt of ['num_kv_readers', '\u00eenum_kv_readers\u0001']) {
      const { connect, send } = open();
      const scheduler = connect();
      const key = new MsgpackWriter();
      key.writeMapHeader(1);
      key.writeText('cache_salt');
      key.writeText(salt);
      const resolution = send(scheduler, 8, [Buffer.from(key.take()), Buffer.of(1)]);
      assert.equal([resolution?.dialect.name, stateOf(scheduler)], ['B', 'BC']);
    }
  });

  test('by a pickled wrapper, or a wrapper cut short, rules nobody out', () => {
    for (const wrappers of ['\x91\xd6\x01\x80\x04.\x00', '\x91\xd6\x01', '\x91', '\x91\xc0']) {
      const { connect, send } = open();
      const connection = connect();
      assert.is(
        send(connection, 1, registration(wrappers, '\x90'))?.call.label,
        'REGISTER_KV_CACHE',
      );
      assert.is(stateOf(connection), 'ABC');
    }
  });

  test('assumes the oldest of several: its clients can bear least', () => {
    const { connect, send } = open();
    const connection = connect();
    assert.is(send(connection, 1, payloadsOf('iasisma'))?.dialect.name, 'A');
    assert.is(send(connection, 7, payloadsOf('miabi'))?.dialect.name, 'B');
    assert.is(connection.context.client.reportsFailedRetrieve, false);
  });

  test('guesses without ruling out, so that a later message corrects it', () => {
    const { connect, send } = open();
    const connection = connect();
    assert.is(nameOf(send(connection, 16, payloadsOf('mi'))), 'COMMIT_RETRIEVE');
    assert.is(nameOf(send(connection, 6, payloadsOf('miab'))), 'STORE');
    assert.is(nameOf(send(connection, 16, payloadsOf('mi'))), 'PREPARE_STORE');
  });

  test('takes a name for the newest generation, unless the client is known to be another', () => {
    const { connect, send } = open();
    const fresh = connect();
    assert.is(send(fresh, { text: 'ping' }, payloadsOf('n'))?.dialect.name, 'C');
    assert.is(stateOf(fresh), 'C');
    const old = connect();
    send(old, 18, []);
    assert.is(send(old, { text: 'ping' }, payloadsOf('n'))?.dialect.name, 'C');
    assert.is(stateOf(old), 'A');
    assert.is(send(fresh, { text: 'no_such_operation' }, []), null);
    assert.is(send(fresh, { text: 'query_prefetch_lookup_hits' }, payloadsOf('s')), null);
  });

  test('of a pinned generation knows its tables only', () => {
    const messages: readonly [DialectName, number, string, string | null][] = [
      ['A', 3, 'miab', 'STORE'],
      ['B', 3, 'miab', 'REGISTER_Q_CACHE'],
      ['C', 32, '', 'GET_EXPERIMENTAL'],
      ['B', 32, '', 'CB_RETRIEVE_PRE_COMPUTED_V2'],
      ['A', 40, '', null],
    ];
    for (const [name, id, signature, expected] of messages) {
      const { connect, send } = open(offeredDialects(name));
      assert.is(nameOf(send(connect(), id, payloadsOf(signature))), expected);
    }
    const { connect, send } = open(offeredDialects('A'));
    assert.is(send(connect(), { text: 'ping' }, payloadsOf('n')), null);
  });

  test('remembers what a worker may be when that is not certain, and what it is in the end', () => {
    const { detection, connect, send } = open();
    const worker = connect();
    send(worker, 14, payloadsOf('m'));
    detection.remember(INSTANCE, worker);
    assert.is(nameOf(send(connect(), 16, payloadsOf('mi'))), 'PREPARE_STORE');
    const other = connect();
    send(other, 18, []);
    detection.remember(INSTANCE, other);
    assert.is(nameOf(send(connect(), 16, payloadsOf('mi'))), 'COMMIT_RETRIEVE');
  });

  test('forgets what a worker was when another one registers under its id', () => {
    const { detection, connect, send } = open();
    const newer = connect();
    send(newer, 33, payloadsOf('i'));
    send(newer, { text: 'noop' }, []);
    assert.is(stateOf(newer), 'C');
    detection.remember(INSTANCE, newer);
    const worker = connect();
    send(worker, 1, payloadsOf('iasisma'));
    assert.is(stateOf(worker), 'ABC');
    detection.remember(INSTANCE, worker);
    assert.is(send(connect(), 6, payloadsOf('miab'))?.dialect.name, 'B');
  });

  test('takes no other number for the id of a worker', () => {
    const { detection, connect, send } = open();
    const [newer, old] = [connect(), connect()];
    send(newer, { text: 'noop' }, []);
    detection.remember(INSTANCE, newer);
    for (const id of [8, 12]) {
      assert.is(send(connect(), id, payloadsOf('mi'))?.dialect.name, 'B', 'a number of ranks');
    }
    send(old, 14, payloadsOf('m'));
    detection.remember(INSTANCE, old);
    assert.is(nameOf(send(connect(), 27, payloadsOf('miib'))), 'CB_STORE_FINAL', 'an offset');
  });

  test('remembers a bounded number of workers, the last ones', () => {
    const { detection, connect, send } = open();
    const worker = connect();
    send(worker, 6, payloadsOf('miab'));
    for (let id = 0n; id < 65_537n; id += 1n) detection.remember(id, worker);
    const commitOf = (id: number) => [Buffer.of(0x80), Buffer.of(id)];
    assert.is(nameOf(send(connect(), 16, commitOf(0))), 'COMMIT_RETRIEVE', 'forgotten');
    assert.is(nameOf(send(connect(), 16, commitOf(1))), 'PREPARE_STORE');
  });

  test('looks at the payloads only as long as several generations are possible', () => {
    const { connect, send } = open();
    const get = () => {
      throw new Error('looked at a payload');
    };
    const untouched = [new Proxy(Buffer.of(0x80), { get })];
    const fresh = connect();
    assert.throws(() => send(fresh, 5, untouched), /looked at a payload/);
    const known = connect();
    send(known, 18, []);
    assert.is(send(known, 5, untouched)?.call.label, 'LOOKUP');
  });
});

function registration(wrappers: string, groups: string): Buffer[] {
  const payloads = ['\x01', wrappers, '\xa1m', '\x01', '\xa4vllm', '\x80', groups];
  return payloads.map((payload) => Buffer.from(payload, 'latin1'));
}
