/** Pickled tensor lists: every golden one is read, whatever else comes is a reason and no more. */
import { existsSync } from 'node:fs';
import * as assert from 'uvu/assert';
import { DTYPE_SIZE_BYTES } from '../../../src/device/tensor-wrapper.ts';
import type { HostTensor, InlinePayload } from '../../../src/engine/api.ts';
import { readTensorList } from '../../../src/wire/tensor-list.ts';
import { writeTensorList } from '../../../src/wire/tensor-list-writer.ts';
import fc from '../../support/property.ts';
import { suite } from '../../support/suite.ts';
import { contentsOfAll, type TensorContents } from '../../support/tensor-contents.ts';
import {
  type BlobParts,
  blob,
  bytesOpcode,
  global,
  integers,
  LOAD,
  latin1,
  list,
  ORDERED,
  size,
  type TensorParts,
  tensor,
  tensorOf,
  text,
  UNTYPED,
  V3,
} from '../../support/tensor-pickles.ts';
import { frameBytes, type VectorTensorPickle, wireVectors } from '../../support/wire-vectors.ts';

const COUNT_MAX = 4;
const PROTOCOL_2 = 'protocol-2';

const recorded = new Map(wireVectors.tensor_pickles.map((vector) => [vector.case, vector]));

function recordedBytes(name: string): Buffer {
  return frameBytes((recorded.get(name) as VectorTensorPickle).hex);
}

function goldenContents({ tensors }: VectorTensorPickle): TensorContents[] {
  return tensors.map(({ dtype, shape, contiguous_bytes }) => ({
    dtype,
    shape,
    bytes: frameBytes(contiguous_bytes).toString('hex'),
  }));
}

function reasonOf(data: Uint8Array, tensorCountMax = COUNT_MAX): string {
  const payload = readTensorList(data, tensorCountMax);
  if (payload.kind !== 'malformed') return assert.unreachable(`read as ${payload.kind}`) as never;
  return payload.reason;
}

function tensorsIn(payload: InlinePayload): readonly HostTensor[] {
  return payload.kind === 'tensors' ? payload.tensors : [];
}

/** Every element that the view of a tensor reaches lies in `data`. */
function assertInside(tensor: HostTensor, data: Uint8Array): void {
  const { shape, stride, offsetBytes, bytes } = tensor;
  assert.is(bytes.buffer, data.buffer);
  assert.ok(bytes.byteOffset >= data.byteOffset);
  assert.ok(bytes.byteOffset + bytes.length <= data.byteOffset + data.length);
  if (shape.includes(0)) return;
  const item = DTYPE_SIZE_BYTES[tensor.dtype];
  const last = shape.reduce((sum, size, axis) => sum + (size - 1) * (stride[axis] as number), 0);
  assert.ok(offsetBytes + (last + 1) * item <= bytes.length);
}

suite('tensor list', (test) => {
  test('of every golden case is read with dtype, shape and contents', () => {
    for (const vector of [...wireVectors.tensor_pickles, ...wireVectors.tensor_pickles_canonical]) {
      if (vector.case === PROTOCOL_2) continue;
      const payload = readTensorList(frameBytes(vector.hex), vector.tensors.length);
      assert.equal(contentsOfAll(payload), goldenContents(vector), vector.case);
    }
  });

  test('of protocol 2 is not read: it writes bytes as a call', () => {
    assert.match(reasonOf(recordedBytes(PROTOCOL_2)), /"_codecs\.encode" is not allowed/);
  });

  test('without bytes is none', () => {
    assert.equal(readTensorList(new Uint8Array(0), 1), { kind: 'none' });
  });

  test('is a list of views of the data, with offset and stride of their own', () => {
    const data = recordedBytes('shared-storage-views');
    const [first, second] = tensorsIn(readTensorList(data, 2)) as [HostTensor, HostTensor];
    assert.is(first.bytes.buffer, data.buffer);
    // Each carries the whole storage of 64 float16.
    assert.equal([first.bytes.length, first.offsetBytes], [128, 0]);
    assert.equal([second.bytes.length, second.offsetBytes], [128, 64]);
    const [turned] = tensorsIn(readTensorList(recordedBytes('non-contiguous'), 1));
    assert.equal(
      [turned?.shape, turned?.stride],
      [
        [4, 3],
        [1, 4],
      ],
    );
  });

  test('may have many frames, 8-byte lengths and references to what came before', () => {
    const bytes = blob();
    const frame = `\x95${size(2, 8)}`;
    const storage = `${frame}${LOAD}${frame}\x8e${size(bytes.length, 8)}${bytes}\x85R\x94`;
    const data = list(tensor({ storage }), tensor({ storage: 'h\0', offset: 'K\0' }));
    const [first, second] = tensorsIn(readTensorList(data, 2));
    assert.is(first?.bytes, second?.bytes);
    assert.equal(contentsOfAll(readTensorList(data, 2)).length, 2);
  });

  test('has younger dtypes over a storage of bytes', () => {
    const torchDtype = (name: string) => ({ rebuild: V3, more: global('torch', name) });
    const data = list(tensorOf(UNTYPED, torchDtype('uint32')));
    const [read] = tensorsIn(readTensorList(data, 1));
    assert.equal([read?.dtype, read?.bytes.length], ['uint32', 16]);
    const byte = { ...UNTYPED, storageClass: global('torch', 'ByteStorage') };
    const other = list(tensorOf(byte, { ...torchDtype('float8_e8m0fnu'), offset: 'K\x0c' }));
    const [view] = tensorsIn(readTensorList(other, 1));
    assert.equal([view?.dtype, view?.offsetBytes], ['float8_e8m0fnu', 12]);
  });

  test('of 64 MiB is read in less than a millisecond, without a copy', () => {
    const shape = [2, 32, 256, 2048];
    const bytes = new Uint8Array(64 << 20);
    const data = writeTensorList({
      kind: 'tensors',
      tensors: [
        { dtype: 'bfloat16', shape, stride: [1 << 24, 1 << 19, 2048, 1], offsetBytes: 0, bytes },
      ],
    });
    let fastestMs = Number.POSITIVE_INFINITY;
    for (let run = 0; run < 20; run += 1) {
      const startMs = performance.now();
      const [read] = tensorsIn(readTensorList(data, 1));
      fastestMs = Math.min(fastestMs, performance.now() - startMs);
      assert.is(read?.bytes.buffer, data.buffer);
    }
    assert.ok(fastestMs < 1, `${fastestMs} ms`);
  });
});

suite('damaged tensor list', (test) => {
  test('is malformed at every truncation', () => {
    const younger = list(tensorOf(UNTYPED, { rebuild: V3, more: global('torch', 'uint32') }));
    const all = [recordedBytes('shared-storage-views'), recordedBytes('scalar'), younger];
    for (const data of all) {
      for (let length = 1; length < data.length; length += 1) {
        reasonOf(data.subarray(0, length));
      }
    }
  });

  test('with any bytes changed is read inside its bounds or malformed, never an exception', () => {
    const byte = fc.nat(255);
    for (const name of ['shared-storage-views', 'one-float8_e4m3fn', 'non-contiguous']) {
      const data = recordedBytes(name);
      const change = fc.tuple(fc.nat(data.length - 1), byte);
      fc.assert(
        fc.property(fc.array(change, { minLength: 1, maxLength: 3 }), (changes) => {
          const damaged = Uint8Array.from(data);
          for (const [index, value] of changes) damaged[index] = value;
          for (const read of tensorsIn(readTensorList(damaged, 2))) assertInside(read, damaged);
        }),
        { numRuns: 2000 },
      );
    }
  });

  test('may be any bytes at all', () => {
    fc.assert(
      fc.property(fc.uint8Array({ maxLength: 200 }), (data) => {
        readTensorList(data, 2);
        readTensorList(Uint8Array.from([0x80, 4, ...data]), 2);
      }),
      { numRuns: 2000 },
    );
  });
});

suite('hostile tensor list', (test) => {
  test('of every golden case is malformed, and nothing is executed', () => {
    for (const hostile of wireVectors.hostile_pickles) {
      const data = frameBytes(hostile.hex);
      if (data.length > 0) reasonOf(data);
    }
    assert.not.ok(existsSync('pwned_by_pickle'));
  });

  test('cannot use an opcode that is not on the list', () => {
    const allowed =
      '2e809528 4e88894a4b4d8a 8c588d43428e 29858687745d61657d7375 947172686a 6393816252';
    const known = new Set(Buffer.from(allowed.replaceAll(' ', ''), 'hex'));
    for (let opcode = 0; opcode < 256; opcode += 1) {
      if (known.has(opcode)) continue;
      assert.match(reasonOf(Buffer.from([0x80, 4, opcode])), /is not allowed at byte 2/);
    }
    // No call inside a storage, no persistent id outside.
    const call = `${global('torch.storage', 'UntypedStorage')})R`;
    assert.match(reasonOf(list(tensorOf({ system: call }))), /opcode 0x52 is not allowed/);
  });

  test('cannot refer to anything but the four functions and dtypes', () => {
    for (const [module, name] of [
      ['builtins', 'eval'],
      ['os', 'system'],
      ['torch', 'load'],
      ['torch', '__proto__'],
      ['torch', 'FloatStorage'],
      ['torch._utils', '_rebuild_tensor'],
      ['torch._utils', '_rebuild_tensor_v2 x'],
      ['torch._utils _rebuild_tensor_v2', ''],
      ['torch.storage', 'UntypedStorage'],
      ['collections', 'defaultdict'],
    ] as const) {
      assert.match(reasonOf(list(global(module, name))), /not allowed/, `${module}.${name}`);
    }
    for (const [module, name] of [
      ['torch.storage', '_load_from_bytes'],
      ['torch', 'float32'],
      ['torch', 'DoubleTensor'],
      ['os', 'system'],
    ] as const) {
      const parts = { storageClass: global(module, name) };
      assert.match(reasonOf(list(tensorOf(parts))), /not allowed/, `${module}.${name}`);
    }
  });

  test('cannot make objects or give them attributes', () => {
    const made = `${global('collections', 'OrderedDict')})\x81`;
    assert.match(reasonOf(list(made)), /expected a wrapper class for NEWOBJ/);
    const built = `${global('collections', 'OrderedDict')})R}b`;
    assert.match(reasonOf(list(tensor({ hooks: built }))), /for BUILD/);
  });

  const DTYPE = global('torch', 'float32');
  const refusals: readonly (readonly [string, TensorParts, RegExp])[] = [
    ['a dtype as function', { rebuild: DTYPE }, /a dtype cannot be called/],
    ['an argument too many', { more: 'N' }, /expected six arguments/],
    ['an argument too few', { hooks: '' }, /expected six arguments/],
    ['no storage', { storage: 'K\0' }, /a storage first/],
    ['bytes in place of a storage', { storage: bytesOpcode(blob()) }, /a storage first/],
    ['no arguments for the storage', { storage: `${LOAD})R` }, /the bytes of a storage/],
    ['a text for the storage', { storage: `${LOAD}${text('x')}\x85R` }, /the bytes of a storage/],
    ['no tuple of arguments', { storage: `${LOAD}K\0R` }, /expected a reference and a tuple/],
    ['a negative offset', { offset: 'J\xff\xff\xff\xff' }, /sizes, strides and offset/],
    ['a huge offset', { offset: `\x8a\x08${'\xff'.repeat(7)}\x7f` }, /sizes, strides and offset/],
    ['an offset that is true', { offset: '\x88' }, /sizes, strides and offset/],
    ['no tuple as shape', { shape: 'K\x04' }, /expected a tuple/],
    ['a negative size', { shape: integers(2, -2) }, /sizes, strides and offset/],
    ['a text as size', { shape: `(K\x02${text('2')}t` }, /sizes, strides and offset/],
    ['nine dimensions', { shape: integers(...new Array(9).fill(1)) }, /more than 8 dimensions/],
    ['more strides than sizes', { stride: integers(4, 2, 1) }, /2 dimensions with 3 strides/],
    ['a gradient', { gradient: '\x88' }, /without gradient/],
    ['hooks that are a dictionary', { hooks: '}' }, /without gradient and hooks/],
    ['hooks that are named', { hooks: `${ORDERED}(N\x85tR` }, /an empty OrderedDict/],
    ['a view behind the storage', { offset: 'K\x01' }, /ends at byte 20 of a storage of 16/],
    ['a stride behind the storage', { stride: integers(3, 1) }, /ends at byte 20/],
    ['v3 without a dtype', { rebuild: V3 }, /expected seven arguments/],
    ['v3 with no dtype', { rebuild: V3, more: 'N' }, /expected a dtype/],
    ['v3 with a function as dtype', { rebuild: V3, more: ORDERED }, /expected a dtype/],
    ['v3 over floats', { rebuild: V3, more: DTYPE }, /expected a storage of bytes/],
  ];
  for (const [what, parts, reason] of refusals) {
    test(`cannot hold a tensor with ${what}`, () => {
      assert.match(reasonOf(list(tensor(parts))), reason);
    });
  }

  const TRUE_ENDIAN = text('little_endian');
  const blobRefusals: readonly (readonly [string, BlobParts, RegExp])[] = [
    ['another magic number', { magic: '\x80\x02K\0.' }, /the legacy format/],
    ['another version', { version: '\x80\x02M\xea\x03.' }, /the legacy format/],
    ['big-endian numbers', { system: `}(${TRUE_ENDIAN}\x89u` }, /expected little_endian/],
    ['unknown endianness', { system: '}' }, /expected little_endian/],
    ['no dictionary', { system: ')' }, /expected a dictionary/],
    ['another kind of id', { kind: text('module') }, /persistent id of a storage/],
    ['a class that is a text', { storageClass: text('x') }, /persistent id of a storage/],
    ['a key that is a number', { key: 'K\0' }, /storage of host memory/],
    ['a place on a GPU', { place: text('cuda:0') }, /storage of host memory/],
    ['a view of another storage', { view: ')' }, /storage of host memory/],
    ['a short id', { view: '' }, /six values/],
    ['a negative count', { count: 'J\xff\xff\xff\xff' }, /an element count/],
    ['a count that is true', { count: '\x88' }, /an element count/],
    ['two keys', { keys: `](${text('k')}${text('k')}e` }, /a list of one key/],
    ['the key of another', { keys: `]${text('j')}a` }, /the key of the persistent id/],
    ['another count', { countAgain: size(5, 8) }, /two different element counts/],
    ['a negative count again', { countAgain: '\xff'.repeat(8) }, /two different element counts/],
    ['too few bytes', { data: '123' }, /expected 16 bytes, got 3/],
    ['too many bytes', { data: '1'.repeat(17) }, /expected 16 bytes, got 17/],
    ['no bytes and no count', { countAgain: '1234', data: '' }, /truncated/],
  ];
  for (const [what, parts, reason] of blobRefusals) {
    test(`cannot hold a storage with ${what}`, () => {
      assert.match(reasonOf(list(tensorOf(parts))), reason);
    });
  }

  test('cannot be longer than the caller expects, nor load more storages', () => {
    const data = list(tensor(), tensor());
    assert.is(tensorsIn(readTensorList(data, 2)).length, 2);
    // A tensor that is put twice has been made once.
    assert.match(reasonOf(list(`${tensor()}\x94h\0`), 1), /at most 1 tensors, got 2/);
    assert.match(reasonOf(data, 1), /more than 1 storages/);
  });

  test('cannot be anything else than a list of tensors', () => {
    assert.match(reasonOf(latin1('\x80\x04}.')), /expected a list/);
    assert.match(reasonOf(list('N')), /expected tensors/);
    assert.match(reasonOf(list(`](${tensor()}e`)), /expected tensors/);
    assert.match(reasonOf(latin1('\x80\x04]\x94h\0a.')), /expected tensors/);
  });

  test('cannot grow beyond the bounds of steps, stack, memo, nesting and texts', () => {
    assert.match(reasonOf(latin1(`\x80\x04]${'Na'.repeat(10_000)}.`)), /more than 768 opcodes/);
    assert.match(reasonOf(list('N'.repeat(100))), /more than 68 values/);
    assert.match(reasonOf(list('Nr\xff\xff\xff\xff')), /memo index 4294967295/);
    assert.match(reasonOf(list(`N${'\x85'.repeat(40)}`)), /nesting deeper/);
    assert.match(reasonOf(list(`X${size(70_000, 4)}${'x'.repeat(70_000)}`)), /too long/);
    assert.match(reasonOf(list(tensorOf({ system: '}'.repeat(33) }))), /more than 32 values/);
    const sets = `}${'(u'.repeat(40)}`;
    assert.match(reasonOf(list(tensorOf({ system: sets }))), /more than 64 opcodes/);
  });
});
