/** The canonical tensor list: golden bytes, gaps for the tensors, and messages without a copy. */

import * as assert from 'uvu/assert';
import { hostTensor, tensorsOf } from '../../../src/client/host-tensors.ts';
import { DTYPE_SIZE_BYTES, type DtypeName } from '../../../src/device/tensor-wrapper.ts';
import type { CacheKey, HostTensor, InlinePayload, RequestOf } from '../../../src/engine/api.ts';
import type { InlineTensor } from '../../../src/engine/transfer/inline-writer.ts';
import { KvdError } from '../../../src/errors.ts';
import { OPERATIONS } from '../../../src/wire/requests.ts';
import { PayloadReader } from '../../../src/wire/schema.ts';
import { readTensorList } from '../../../src/wire/tensor-list.ts';
import { tensorListWriter, writeTensorList } from '../../../src/wire/tensor-list-writer.ts';
import { callA } from '../../support/calls.ts';
import { openHasher } from '../../support/core-hasher.ts';
import fc from '../../support/property.ts';
import { suite } from '../../support/suite.ts';
import { contentsOf, contentsOfAll } from '../../support/tensor-contents.ts';
import { encodeTokens } from '../../support/token-arrays.ts';
import { CALL_TIMEOUT_MS, openWireHouse } from '../../support/wire-house.ts';
import { frameBytes, type VectorTensorPickle, wireVectors } from '../../support/wire-vectors.ts';

const DTYPES = Object.keys(DTYPE_SIZE_BYTES) as DtypeName[];
const CHUNK_SIZE_TOKENS = 16;

const reader = new PayloadReader(
  openHasher({ chunkSizeTokens: CHUNK_SIZE_TOKENS, tokenCountMax: 70_000 }),
);

/** What the engine does: plans, then has the gaps filled. */
function fill(tensors: readonly { tensor: InlineTensor; bytes: Uint8Array }[]): Uint8Array {
  const { buffer, dataOffsets } = tensorListWriter.plan(tensors.map(({ tensor }) => tensor));
  for (const [index, { bytes }] of tensors.entries()) buffer.set(bytes, dataOffsets[index]);
  return buffer;
}

function fillGolden({ tensors }: VectorTensorPickle): Uint8Array {
  return fill(
    tensors.map(({ dtype, shape, contiguous_bytes }) => {
      const bytes = frameBytes(contiguous_bytes);
      return { tensor: { dtype, shape, sizeBytes: bytes.length }, bytes };
    }),
  );
}

function countOf(shape: readonly number[]): number {
  return shape.reduce((product, size) => product * size, 1);
}

function patterned(dtype: DtypeName, shape: readonly number[], seed = 1): HostTensor {
  const bytes = new Uint8Array(countOf(shape) * DTYPE_SIZE_BYTES[dtype]);
  for (const index of bytes.keys()) bytes[index] = (index * 7 + seed) % 251;
  return hostTensor(dtype, shape, bytes);
}

function keyOf(tokenCount: number, startToken: number, endToken: number): CacheKey {
  const bytes = encodeTokens(Array.from({ length: tokenCount }, (_, index) => index));
  return {
    modelName: 'm',
    worldSize: 1,
    workerId: 0,
    tokens: { bytes, count: tokenCount },
    startToken,
    endToken,
    requestId: 'r',
    cacheSalt: '',
    readerCount: null,
    requestConfigs: null,
  };
}

function sendCommitStore(key: CacheKey, data: InlinePayload): InlinePayload {
  const frames = callA('COMMIT_STORE').encodeRequest({ key, instanceId: 7n, data });
  return callA('COMMIT_STORE').decodeRequest(frames, 0, reader).data;
}

suite('tensor list writer', (test) => {
  test('writes every golden list byte for byte', () => {
    for (const vector of wireVectors.tensor_pickles_canonical) {
      const written = Buffer.from(fillGolden(vector)).toString('hex');
      assert.is(written, frameBytes(vector.hex).toString('hex'), vector.case);
    }
  });

  test('writes every dtype so that it is read again', () => {
    for (const dtype of DTYPES) {
      const tensors = [patterned(dtype, [2, 3, 5]), patterned(dtype, [4], 9)];
      const written = writeTensorList({ kind: 'tensors', tensors });
      const read = readTensorList(written, 2);
      assert.equal(contentsOfAll(read), tensors.map(contentsOf), dtype);
    }
  });

  test('writes the elements of any strided view in order', () => {
    const dimension = fc.record({ size: fc.nat(4), stride: fc.nat(9) });
    fc.assert(
      fc.property(
        fc.constantFrom(...DTYPES),
        fc.array(dimension, { maxLength: 5 }),
        fc.nat(5),
        (dtype, dimensions, offset) => {
          const shape = dimensions.map(({ size }) => size);
          const stride = dimensions.map(({ stride }) => stride);
          const item = DTYPE_SIZE_BYTES[dtype];
          const reach = dimensions.reduce((sum, { size, stride }) => sum + size * stride, 1);
          const { bytes } = patterned(dtype, [offset + reach]);
          const tensor = { dtype, shape, stride, offsetBytes: offset * item, bytes };
          const written = writeTensorList({ kind: 'tensors', tensors: [tensor] });
          const [read] = tensorsOf(written, 1);
          assert.equal(elementsOf(read as HostTensor), elementsOf(tensor));
        },
      ),
      { numRuns: 500 },
    );
  });

  test('writes sizes of every integer width', () => {
    for (const size of [255, 256, 65_535, 65_536, 300_000]) {
      const [read] = tensorsOf(
        writeTensorList({ kind: 'tensors', tensors: [patterned('uint8', [size, 1])] }),
        1,
      );
      assert.equal(read?.shape, [size, 1]);
    }
  });

  test('refuses what does not fit into one message, before it allocates', () => {
    const tensor: InlineTensor = { dtype: 'uint8', shape: [2 ** 31], sizeBytes: 2 ** 31 };
    const isUnsupported = (error: KvdError) => error.code === 'ERR_UNSUPPORTED';
    assert.throws(() => tensorListWriter.plan([tensor, tensor]), isUnsupported);
    // The bytes alone would fit, the list does not.
    const most = { dtype: 'uint8', shape: [2 ** 32 - 64], sizeBytes: 2 ** 32 - 64 } as const;
    assert.throws(() => tensorListWriter.plan([most]), isUnsupported);
  });

  test('refuses sizes that do not belong to the shape', () => {
    const tensor: InlineTensor = { dtype: 'float16', shape: [4], sizeBytes: 4 };
    assert.throws(() => tensorListWriter.plan([tensor]), /float16 tensor of shape \[4\] has not 4/);
  });
});

/** Element by element with nothing but the definition of a stride. */
function elementsOf({ dtype, shape, stride, offsetBytes, bytes }: HostTensor): string[] {
  const item = DTYPE_SIZE_BYTES[dtype];
  const elements: string[] = [];
  for (let ordinal = 0; ordinal < countOf(shape); ordinal += 1) {
    let rest = ordinal;
    let at = 0;
    for (let axis = shape.length - 1; axis >= 0; axis -= 1) {
      at += (rest % (shape[axis] as number)) * (stride[axis] as number);
      rest = Math.floor(rest / (shape[axis] as number));
    }
    const start = offsetBytes + at * item;
    elements.push(Buffer.from(bytes.subarray(start, start + item)).toString('hex'));
  }
  return elements;
}

suite('PREPARE_RETRIEVE reply', (test) => {
  const tensor: InlineTensor = { dtype: 'float16', shape: [64, 64], sizeBytes: 8192 };

  test('with planned data is encoded around it, without a copy', () => {
    const data = fill([{ tensor, bytes: new Uint8Array(8192).fill(5) }]);
    const plain = Uint8Array.from(data);
    const reply = { success: true, context: {} };
    const frame = OPERATIONS.PREPARE_RETRIEVE.encodeReply({ ...reply, data });
    const copied = OPERATIONS.PREPARE_RETRIEVE.encodeReply({ ...reply, data: plain });
    assert.is(frame?.buffer, data.buffer);
    assert.is.not(copied?.buffer, plain.buffer);
    assert.is(Buffer.compare(frame as Uint8Array, copied as Uint8Array), 0);
    const read = OPERATIONS.PREPARE_RETRIEVE.decodeReply(frame as Uint8Array, reader);
    assert.is(contentsOf(tensorsOf(read.data, 1)[0] as HostTensor).bytes, '05'.repeat(8192));
  });

  test('with few planned bytes is right, too, and leaves them alone', () => {
    const small = { dtype: 'uint8', shape: [3], sizeBytes: 3 } as const;
    const data = fill([{ tensor: small, bytes: Uint8Array.from([1, 2, 3]) }]);
    const before = Buffer.from(data).toString('hex');
    const encode = () =>
      OPERATIONS.PREPARE_RETRIEVE.encodeReply({ success: true, data, context: {} }) as Uint8Array;
    const frame = encode();
    OPERATIONS.NOOP.encodeReply('something else');
    assert.is(Buffer.compare(frame, encode()), 0);
    assert.is(Buffer.from(data).toString('hex'), before);
  });

  test('with a context too long for the room behind the data is right, too', () => {
    const data = fill([{ tensor, bytes: new Uint8Array(8192).fill(6) }]);
    const slot = { offset: 1, length: 2, shape: [3, 4], dtype: 'bfloat16' };
    const reply = { success: true, data, context: { slots: [slot, slot, slot] } };
    const frame = OPERATIONS.PREPARE_RETRIEVE.encodeReply(reply) as Uint8Array;
    const read = OPERATIONS.PREPARE_RETRIEVE.decodeReply(frame, reader);
    assert.equal(read.context, reply.context);
    assert.is(Buffer.compare(read.data, data), 0);
  });
});

suite('COMMIT_STORE request', (test) => {
  const tensors = [patterned('bfloat16', [2, 2, 16, 64]), patterned('bfloat16', [2, 2, 16, 64], 3)];

  test('carries tensors from client to server, as views of the frame', () => {
    const key = keyOf(32, 0, 32);
    const request = { key, instanceId: 7n, data: { kind: 'tensors', tensors } } as const;
    const frames = callA('COMMIT_STORE').encodeRequest(request);
    const read = callA('COMMIT_STORE').decodeRequest(frames, 0, reader);
    assert.equal([read.instanceId, read.key.tokens.count], [7n, 32]);
    assert.equal(contentsOfAll(read.data), tensors.map(contentsOf));
    const [first] = read.data.kind === 'tensors' ? read.data.tensors : [];
    assert.is(first?.bytes.buffer, frames[2]?.buffer);
  });

  test('without data is a commit of slots', () => {
    assert.equal(sendCommitStore(keyOf(32, 0, 32), { kind: 'none' }), { kind: 'none' });
  });

  test('with bytes that are no list is decoded as malformed, with the reason', () => {
    const request = { key: keyOf(32, 0, 32), instanceId: 7n, data: { kind: 'none' } } as const;
    const frames = callA('COMMIT_STORE').encodeRequest(request);
    const decode = () => callA('COMMIT_STORE').decodeRequest(frames, 0, reader).data;
    frames[2] = Buffer.from('c40200ff', 'hex');
    const data = decode();
    assert.is(data.kind, 'malformed');
    assert.match(data.kind === 'malformed' ? data.reason : '', /expected the opcode PROTO first/);
    frames[2] = Buffer.from('a161', 'hex');
    assert.throws(decode, (error: KvdError) => error.code === 'ERR_WIRE_PAYLOAD');
  });

  test('cannot hold more tensors than its range has chunks', () => {
    const data = { kind: 'tensors', tensors } as const;
    const kindFor = (key: CacheKey) => sendCommitStore(key, data).kind;
    assert.is(kindFor(keyOf(48, 16, 48)), 'tensors');
    assert.is(kindFor(keyOf(48, 32, 48)), 'malformed');
    // Not aligned: three chunks are touched.
    assert.is(kindFor(keyOf(48, 15, 33)), 'tensors');
    // Nonsense names no chunk.
    for (const [start, end] of [
      [48, 0],
      [32, 1e15],
      [-1e15, -1e14],
    ] as const) {
      assert.is(kindFor(keyOf(48, start, end)), 'malformed', `${start} to ${end}`);
    }
    assert.is(kindFor(keyOf(48, -1e15, 1e15)), 'tensors');
  });

  test('cannot be written when it is malformed', () => {
    const data = { kind: 'malformed', reason: 'why' } as const;
    assert.throws(() => sendCommitStore(keyOf(32, 0, 32), data), /cannot be written/);
  });
});

suite('client tensors', (test) => {
  test('go to a server and come back through real sockets', async () => {
    const tensor = patterned('float8_e4m3fn', [2, 4, 16, 1024]);
    let stored: InlinePayload = { kind: 'none' };
    const house = await openWireHouse({
      COMMIT_STORE: ({ data }: RequestOf<'COMMIT_STORE'>) => {
        stored = data;
        return true;
      },
      PREPARE_RETRIEVE: () => {
        const { dtype, shape, bytes } = tensor;
        const data = fill([{ tensor: { dtype, shape, sizeBytes: bytes.length }, bytes }]);
        return { success: true, data, context: {} };
      },
    });
    try {
      const client = house.client();
      const key = keyOf(16, 0, 16);
      const data = { kind: 'tensors', tensors: [tensor] } as const;
      const keyed = { key, instanceId: 7n };
      await client.call('COMMIT_STORE', { ...keyed, data }, CALL_TIMEOUT_MS);
      assert.equal(contentsOfAll(stored), [contentsOf(tensor)]);
      const { value } = await client.call('PREPARE_RETRIEVE', keyed, CALL_TIMEOUT_MS);
      const [read] = tensorsOf(value?.data as Uint8Array, 1);
      assert.equal(contentsOf(read as HostTensor), contentsOf(tensor));
    } finally {
      await house.close();
    }
  });

  test('are none in an empty reply, and an error in a broken one', () => {
    assert.equal(tensorsOf(new Uint8Array(0), 1), []);
    assert.throws(
      () => tensorsOf(Uint8Array.from([0x80, 4]), 1),
      (error: KvdError) => error instanceof KvdError && error.code === 'ERR_WIRE_PAYLOAD',
    );
  });
});
