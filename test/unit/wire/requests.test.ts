/** The request table against every golden message and the recorded sessions, in both directions. */
import { createHash } from 'node:crypto';
import * as assert from 'uvu/assert';
import type { InlinePayload, OperationName, RequestOf } from '../../../src/engine/api.ts';
import { KvdError, RefusedTransferError } from '../../../src/errors.ts';
import { DIALECTS, dialectOf, offeredDialects, operationIdOf } from '../../../src/wire/dialect.ts';
import { readOperationFrame } from '../../../src/wire/frames.ts';
import { exceptionReply, neutralReply, STUB_EVENT } from '../../../src/wire/reply.ts';
import { OPERATIONS, type Operation } from '../../../src/wire/requests.ts';
import { PayloadReader } from '../../../src/wire/schema.ts';
import { openHasher } from '../../support/core-hasher.ts';
import { suite } from '../../support/suite.ts';
import { contentsOfAll } from '../../support/tensor-contents.ts';
import { encodeTokens } from '../../support/token-arrays.ts';
import {
  framesInFull,
  sessionMessages,
  type VectorRequest,
  wireVectors,
} from '../../support/wire-vectors.ts';

// The golden inline COMMIT_STORE has two chunks in 16 tokens.
const hasher = openHasher({ chunkSizeTokens: 8, tokenCountMax: 70_000 });
const reader = new PayloadReader(hasher);
const [dialect] = offeredDialects('A');

function operationOf(name: OperationName): Operation {
  return OPERATIONS[name] as unknown as Operation;
}

/** The vectors keep only head, tail and digest of a key with 65,536 times token 7. */
function remakeLongKey(head: Buffer, tail: Buffer, workerId: number): Buffer {
  const rank = Buffer.from('\xaaworld_size\x01\xa9worker_id', 'latin1');
  return Buffer.concat([
    head.subarray(0, head.indexOf(rank.subarray(0, 12))),
    rank,
    Buffer.from([workerId]),
    Buffer.from('\xa9token_ids', 'latin1'),
    encodeTokens(new Array<number>(65_536).fill(7)),
    Buffer.from('\xa5start\x00\xa3end\xce\x00\x01\x00\x00', 'latin1'),
    tail,
  ]);
}

function fullFrames(vector: VectorRequest): Buffer[] {
  // Schedulers send nil as worker id, workers their rank.
  const workerId = vector.op === 'STORE' ? 0 : 0xc0;
  return framesInFull(vector.frames, ({ $head, $tail, $sha256 }) => {
    const [head, tail] = [Buffer.from($head, 'hex'), Buffer.from($tail, 'hex')];
    const remade = remakeLongKey(head, tail, workerId);
    assert.is(createHash('sha256').update(remade).digest('hex'), $sha256, vector.case);
    return remade;
  });
}

function hexOf(frames: readonly Uint8Array[]): string[] {
  return frames.map((frame) => Buffer.from(frame).toString('hex'));
}

function decodeFrames(frames: readonly Buffer[]): unknown {
  const id = readOperationFrame(frames[1] as Buffer) as number;
  const operation = dialect?.operationsById.get(id) as Operation;
  return operation.decodeRequest(frames, 2, reader);
}

/** Only wrappers of host memory are ever written; for others their frame is not compared. */
function withoutForeignWrappers(request: Record<string, unknown>): Record<string, unknown> {
  const { wrappers, cosSinCache } = request as {
    wrappers?: { kind: string }[];
    cosSinCache?: { kind: string };
  };
  if (wrappers?.some((wrapper) => wrapper.kind !== 'cpu-shm')) return { ...request, wrappers: [] };
  if (cosSinCache && cosSinCache.kind !== 'cpu-shm') {
    const stand = (
      decodeFrames(fullFrames(requestCase('CB_REGISTER_ROPE_V3', 'cpu-shm'))) as {
        cosSinCache: unknown;
      }
    ).cosSinCache;
    return { ...request, cosSinCache: stand };
  }
  return request;
}

/**
 * The payloads of a decoded request. Inline data is written in another form than PyTorch's, and not
 * at all when it is no tensor list: what it says is compared here, and its frame is left alone.
 */
function writeAgain(
  operation: Operation,
  request: Record<string, unknown>,
  frames: readonly Buffer[],
): string[] {
  const data = request['data'] as InlinePayload | undefined;
  const writable = data?.kind === 'malformed' ? { ...request, data: { kind: 'none' } } : request;
  const payloads = operation.encodeRequest(writable as never);
  const written = hexOf(payloads);
  if (data === undefined || data.kind === 'none') return written;
  if (data.kind === 'malformed') {
    assert.match(data.reason, /expected the opcode PROTO first/);
  } else {
    const again = operation.decodeRequest(payloads, 0, reader) as unknown as typeof request;
    assert.equal(contentsOfAll(again['data'] as InlinePayload), contentsOfAll(data));
  }
  return written.with(DATA_FRAME - 2, (frames[DATA_FRAME] as Buffer).toString('hex'));
}

function requestCase(op: OperationName, name: string): VectorRequest {
  const found = wireVectors.requests.find((vector) => vector.op === op && vector.case === name);
  assert.ok(found, `${op} ${name}`);
  return found as VectorRequest;
}

function decodeCase<N extends OperationName>(op: N, name: string): RequestOf<N> {
  return decodeFrames(fullFrames(requestCase(op, name))) as RequestOf<N>;
}

const WRAPPER_FRAME = 3;
const DATA_FRAME = 4;
/** Says 300 as an integer; a timeout is always written as a float. */
const INTEGER_TIMEOUT = 'int-timeout';
const EXPANDABLE = 'wrapper-cuda-expandable-segment';

suite('request table', (test) => {
  test('has the ids and payload counts of the protocol', () => {
    assert.is(dialect?.operationsById.size, wireVectors.operations.length);
    for (const { op, id, payload_types } of wireVectors.operations) {
      assert.is(dialect?.operationsById.get(id)?.name, op);
      assert.is(operationOf(op).payloadCount, payload_types.length, op);
    }
  });

  test('decodes every golden request and writes it again byte for byte', () => {
    let count = 0;
    for (const vector of wireVectors.requests) {
      if (vector.case === EXPANDABLE) continue;
      const frames = fullFrames(vector);
      const request = decodeFrames(frames) as Record<string, unknown>;
      const comparable = withoutForeignWrappers(request);
      const written = writeAgain(operationOf(vector.op), comparable, frames);
      const expected = hexOf(frames.slice(2));
      if (comparable !== request)
        written[WRAPPER_FRAME - 2] = expected[WRAPPER_FRAME - 2] as string;
      if (vector.case === INTEGER_TIMEOUT) {
        assert.is(written[1], 'cb4072c00000000000');
        written[1] = 'cd012c';
      }
      assert.equal(written, expected, `${vector.op} ${vector.case}`);
      count += 1;
    }
    assert.is(count, wireVectors.requests.length - 1);
  });

  test('refuses a registration whose memory cannot be shared, with the remedy', () => {
    assert.throws(
      () => decodeCase('REGISTER_KV_CACHE', EXPANDABLE),
      (error: KvdError) => error.code === 'ERR_UNSUPPORTED' && /payload 1: /.test(error.message),
    );
  });

  test('reads and writes every golden response byte for byte', () => {
    for (const vector of wireVectors.responses) {
      const frames = framesInFull(vector.frames);
      const operation = operationOf(vector.op);
      const value = operation.decodeReply(frames[2], reader);
      const written = operation.encodeReply(value as never);
      const label = `${vector.op} ${vector.case}`;
      if (vector.absent) assert.is(written, null, label);
      else assert.equal(hexOf([written as Uint8Array]), hexOf(frames.slice(2)), label);
    }
  });
});

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
      { engineGroupId: 0, layerIndices: [], tokensPerBlock: 0, slidingWindowTokens: -1 },
    ]);
  });

  test('REGISTER_KV_CACHE takes nil and unknown hints as nothing', () => {
    const frames = ['01', '90', 'a16d', '01', 'a4766c6c6d', 'c0', 'c0'].map((hex) =>
      Buffer.from(hex, 'hex'),
    );
    const decode = () => OPERATIONS.REGISTER_KV_CACHE.decodeRequest(frames, 0, reader);
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
      },
    );
    const [frame] = OPERATIONS[name].encodeRequest(request);
    const text = Buffer.from(frame as Uint8Array).toString('latin1');
    const half = Buffer.from(text.replace('\xadfloat8_e4m3fn', '\xa4half'), 'latin1');
    assert.is(OPERATIONS[name].decodeRequest([half], 0, reader).dtype, 'float16');
  });

  test('of blend and P2P has its numbers in the right places', () => {
    const blend = decodeCase('CB_RETRIEVE_PRE_COMPUTED_V3', 'plain');
    const { oldStart, oldEnd, currentStart, currentEnd, hash } = blend.matches[0]!;
    assert.equal([oldStart, oldEnd, currentStart, currentEnd], [0, 256, 512, 768]);
    assert.is(hash.length, 32);
    const p2p = decodeCase('P2P_LOOKUP_AND_LOCK', 'two');
    assert.equal(p2p.layout, {
      shapes: [
        [2, 2, 16, 64],
        [4, 16, 576],
      ],
      dtypes: ['float16', 'float8_e4m3fn'],
    });
    assert.is(p2p.keys[0]?.kvRank, 16_777_472);
    const records = decodeCase('REPORT_BLOCK_ALLOCATION', 'two').records;
    assert.equal(records[0], {
      requestId: 'req-1',
      newBlockIds: [0, 1, 2],
      newTokenIds: [5, 4_294_967_295],
    });
  });

  test('PING has the instance or null for a scheduler', () => {
    assert.is(decodeCase('PING', 'scheduler').instanceId, null);
    assert.is(decodeCase('PING', 'i63').instanceId, 9_223_372_036_854_775_807n);
  });
});

suite('recorded session', (test) => {
  for (const mode of ['handle', 'data', 'pickle'] as const) {
    test(`"${mode}" is decoded from both sides and written again byte for byte`, () => {
      for (const message of sessionMessages(mode)) {
        const frames = framesInFull(message.frames);
        const label = `${mode} message ${message.n}`;
        if (message.dir === 'c2s') checkRecordedRequest(frames, label);
        else checkRecordedReply(frames, label);
      }
    });
  }
});

function checkRecordedRequest(frames: Buffer[], label: string): void {
  const id = readOperationFrame(frames[1] as Buffer) as number;
  const operation = dialect?.operationsById.get(id) as Operation;
  const request = decodeFrames(frames) as Record<string, unknown>;
  assert.equal(writeAgain(operation, request, frames), hexOf(frames.slice(2)), label);
}

function checkRecordedReply(frames: Buffer[], label: string): void {
  const id = readOperationFrame(frames[1] as Buffer) as number;
  const operation = dialect?.operationsById.get(id) as Operation;
  const written = operation.encodeReply(operation.decodeReply(frames[2], reader) as never);
  assert.equal(hexOf(written ? [written] : []), hexOf(frames.slice(2)), label);
}

suite('failure reply', (test) => {
  test('is the golden neutral value with the error map behind it, for every operation', () => {
    for (const { op, frames } of wireVectors.neutral_replies) {
      const [uid, id] = framesInFull(frames) as [Buffer, Buffer];
      const message = 'payload 0: truncated msgpack';
      // The golden replies have an empty event; which one is sent is the engine's choice.
      const error = new RefusedTransferError('ERR_WIRE_PAYLOAD', message, new Uint8Array(0));
      const reply = neutralReply(uid, id, operationOf(op), error);
      if (operationOf(op).neutral.kind === 'none') assert.is(reply, null, op);
      else assert.equal(hexOf(reply as Uint8Array[]), frames, op);
    }
  });

  test('exists for all but the four registrations', () => {
    const silent = Object.values(OPERATIONS)
      .filter((operation) => operation.neutral.kind === 'none')
      .map((operation) => operation.name);
    assert.equal(silent, [
      'REGISTER_KV_CACHE',
      'REGISTER_KV_CACHE_ENGINE_DRIVEN_CONTEXT',
      'CB_REGISTER_KV_CACHE',
      'CB_REGISTER_ROPE_V3',
    ]);
  });

  test('of a transfer carries the event of the error, else the stub', () => {
    const uid = Buffer.from([7]);
    const plain = new KvdError('ERR_BAD_REQUEST', 'no');
    const [, , frame] = neutralReply(uid, uid, operationOf('STORE'), plain) as Uint8Array[];
    const reply = OPERATIONS.STORE.decodeReply(frame, reader);
    assert.equal(Buffer.from(reply.event), Buffer.from(STUB_EVENT));
    assert.is(reply.ok, false);
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
    const reply = neutralReply(Buffer.from([7]), Buffer.from([5]), operationOf('LOOKUP'), error);
    assert.ok((reply as Uint8Array[])[3]!.length < 1200);
  });
});

suite('dialect', (test) => {
  test('is found by the operation id, and ids by the name', () => {
    assert.is(dialectOf(DIALECTS, 19).name, 'A');
    assert.is(dialectOf(DIALECTS, 9999).name, 'A');
    assert.equal(offeredDialects('auto'), DIALECTS);
    assert.is(operationIdOf(DIALECTS[0]!, 'PING'), 19);
  });

  test('of 0.5.0 clients bears neither a failed RETRIEVE nor an empty event', () => {
    assert.equal(DIALECTS[0]?.client, { reportsFailedRetrieve: false, acceptsEmptyEvent: false });
  });
});

suite('operation frame', (test) => {
  test('is an id in any integer form, and nothing else', () => {
    const read = (hex: string) => readOperationFrame(Buffer.from(hex, 'hex'));
    for (const hex of ['15', 'cc15', 'cd0015', 'ce00000015', 'cf0000000000000015', 'd015']) {
      assert.is(read(hex), 21);
    }
    assert.is(read(''), 'empty');
    assert.is(read('a4706f6e67'), 'text');
    for (const hex of ['ff', 'cd00', '1500', 'c0', 'c3', 'cb4035000000000000', 'c1', '80', 'cc']) {
      assert.is(read(hex), 'invalid', hex);
    }
    assert.is(read('cfffffffffffffffff'), 'invalid');
  });
});
