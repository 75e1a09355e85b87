/** The request table against every golden message and the recorded sessions, in both directions. */
import * as assert from 'uvu/assert';
import type { CpuShmWrapper } from '../../../src/device/tensor-wrapper.ts';
import type { InlinePayload } from '../../../src/engine/api.ts';
import { type KvdError, RefusedTransferError } from '../../../src/errors.ts';
import type { Dialect } from '../../../src/wire/dialect.ts';
import type { Call } from '../../../src/wire/operation.ts';
import { neutralReply } from '../../../src/wire/reply.ts';
import {
  callIn,
  callOf,
  decodeCase,
  dialectOf,
  EVERY_RELEASE,
  fullFrames,
  hexOf,
  goldenReader as reader,
} from '../../support/golden-messages.ts';
import { suite } from '../../support/suite.ts';
import { contentsOfAll } from '../../support/tensor-contents.ts';
import { framesInFull, sessionMessages, wireVectorsOf } from '../../support/wire-vectors.ts';

const STAND_IN: CpuShmWrapper = {
  kind: 'cpu-shm',
  shmName: '/stand_in',
  sizeBytes: 0,
  dtype: 'uint8',
  shape: [0],
  stride: [1],
  storageOffset: 0,
  deviceUuid: 'cpu',
};

/** Only wrappers of host memory are ever written; for others their frame is not compared. */
function withoutForeignWrappers(request: Record<string, unknown>): Record<string, unknown> {
  for (const property of ['wrappers', 'cosSinCaches']) {
    const wrappers = request[property] as { kind: string }[] | undefined;
    if (wrappers?.some((wrapper) => wrapper.kind !== 'cpu-shm')) {
      return { ...request, [property]: [STAND_IN] };
    }
  }
  return request;
}

/**
 * The payloads of a decoded request. Inline data is written in another form than PyTorch's, and not
 * at all when it is no tensor list: what it says is compared here, and its frame is left alone.
 */
function writeAgain(
  call: Call,
  request: Record<string, unknown>,
  frames: readonly Buffer[],
): string[] {
  const data = request['data'] as InlinePayload | undefined;
  const writable = data?.kind === 'malformed' ? { ...request, data: { kind: 'none' } } : request;
  const payloads = call.encodeRequest(writable as never);
  const written = hexOf(payloads);
  if (data === undefined || data.kind === 'none') return written;
  if (data.kind === 'malformed') {
    assert.match(data.reason, /expected the opcode PROTO first/);
  } else {
    const again = call.decodeRequest(payloads, 0, reader) as unknown as typeof request;
    assert.equal(contentsOfAll(again['data'] as InlinePayload), contentsOfAll(data));
  }
  return written.with(DATA_FRAME - 2, (frames[DATA_FRAME] as Buffer).toString('hex'));
}

const WRAPPER_FRAME = 3;
const DATA_FRAME = 4;
/** Says 300 as an integer; a timeout is always written as a float. */
const INTEGER_TIMEOUT = 'int-timeout';
const EXPANDABLE = 'wrapper-cuda-expandable-segment';

for (const release of EVERY_RELEASE) {
  const dialect = dialectOf(release);
  const vectors = wireVectorsOf(release);

  suite(`request table of ${release}`, (test) => {
    test('has the names, ids and payload counts of the protocol', () => {
      for (const { op, id, payload_types } of vectors.operations) {
        const call = callOf(release, op);
        assert.is(call.id, id, op);
        assert.is(call.payloadCountMax, Math.max(payload_types.length, longestForm(op)), op);
      }
      const labels = [...dialect.callsByName.values()].map(({ label }) => label);
      const known = new Set(vectors.operations.map(({ op }) => op));
      const others = labels.filter((label) => !known.has(label));
      assert.equal(others, release === '0.5.0' ? [] : ['QUERY_PREFETCH_LOOKUP_HITS']);
    });

    test('decodes every golden request and writes it again byte for byte', () => {
      let count = 0;
      for (const vector of vectors.requests) {
        if (vector.case === EXPANDABLE) continue;
        const frames = fullFrames(release, vector);
        const call = callIn(frames, dialect);
        assert.is(call.label, vector.op);
        const request = call.decodeRequest(frames, 2, reader) as unknown as Record<string, unknown>;
        const comparable = withoutForeignWrappers(request);
        const written = writeAgain(call, comparable, frames);
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
      assert.is(count, vectors.requests.length - 1);
    });

    test('refuses a registration whose memory cannot be shared, with the remedy', () => {
      assert.throws(
        () => decodeCase('REGISTER_KV_CACHE', EXPANDABLE, release),
        (error: KvdError) => error.code === 'ERR_UNSUPPORTED' && /payload 1: /.test(error.message),
      );
    });

    test('reads and writes every golden response byte for byte', () => {
      for (const vector of vectors.responses) {
        const frames = framesInFull(vector.frames);
        const { operation } = callOf(release, vector.op);
        const value = operation.decodeReply(frames[2], reader);
        const written = operation.encodeReply(value as never);
        const label = `${vector.op} ${vector.case}`;
        if (vector.absent) assert.is(written, null, label);
        else assert.equal(hexOf([written as Uint8Array]), hexOf(frames.slice(2)), label);
      }
    });
  });

  suite(`recorded session of ${release}`, (test) => {
    for (const mode of ['handle', 'data', 'pickle'] as const) {
      test(`"${mode}" is decoded from both sides and written again byte for byte`, () => {
        for (const message of sessionMessages(release, mode)) {
          const frames = framesInFull(message.frames);
          const label = `${mode} message ${message.n}`;
          if (frames[1]?.length === 0) assert.match(String(frames[2]), /^(ack|cancel)$/, label);
          else if (message.dir === 'c2s') checkRecordedRequest(dialect, frames, label);
          else checkRecordedReply(dialect, frames, label);
        }
      });
    }
  });

  suite(`failure reply to ${release}`, (test) => {
    test('is the golden neutral value with the error map behind it, for every operation', () => {
      for (const { op, frames } of vectors.neutral_replies) {
        const [uid, id] = framesInFull(frames) as [Buffer, Buffer];
        const call = callOf(release, op);
        const message = 'payload 0: truncated msgpack';
        // The golden replies have an empty event; which one is sent is the engine's choice.
        const error = new RefusedTransferError('ERR_WIRE_PAYLOAD', message, new Uint8Array(0));
        const failed = { uid, op: id, call, client: dialect.client };
        const reply = neutralReply(failed, error);
        if (call.operation.neutral.kind === 'none') assert.is(reply, null, op);
        else if (call.operation.neutral.kind === 'explained') {
          const neutral = call.operation.neutral.frame('error text');
          assert.equal(hexOf((reply as Uint8Array[]).with(2, neutral)), frames, op);
        } else assert.equal(hexOf(reply as Uint8Array[]), frames, op);
      }
    });
  });
}

/** Frames of forms that other releases of the same dialect have. */
function longestForm(op: string): number {
  // 0.5.2 has a list of caches and the cache of each group.
  return op === 'CB_REGISTER_ROPE_V3' ? 5 : 0;
}

function checkRecordedRequest(dialect: Dialect, frames: Buffer[], label: string): void {
  const call = callIn(frames, dialect);
  const request = call.decodeRequest(frames, 2, reader) as unknown as Record<string, unknown>;
  assert.equal(writeAgain(call, request, frames), hexOf(frames.slice(2)), label);
}

function checkRecordedReply(dialect: Dialect, frames: Buffer[], label: string): void {
  const { operation } = callIn(frames, dialect);
  const written = operation.encodeReply(operation.decodeReply(frames[2], reader) as never);
  assert.equal(hexOf(written ? [written] : []), hexOf(frames.slice(2)), label);
}
