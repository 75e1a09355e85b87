/** Memory of inline replies that are being filled (`READ_BYTES_MAX`). */
import * as assert from 'uvu/assert';
import { InlineTransfer } from '../../../src/engine/transfer/inline-transfer.ts';
import { LIVE_ATTEMPT } from '../../support/attempts.ts';
import { MemoryDevice } from '../../support/memory-device.ts';
import { rejects } from '../../support/rejects.ts';
import { suite } from '../../support/suite.ts';

const CHUNK = { shape: [8], dtype: 'uint8' } as const;
const CHUNK_BYTES = 8;
const GIB = 1024 ** 3;

function noStore(): never {
  throw new Error('nothing is stored here');
}

function open(readBytesMax?: number) {
  const device = new MemoryDevice(64);
  const planned: number[] = [];
  const transfer = new InlineTransfer({
    device,
    storage: { finishStore: noStore, discardStore: noStore },
    writer: {
      plan: (tensors) => {
        planned.push(tensors.length);
        const dataOffsets = tensors.map((_, i) => i * CHUNK_BYTES);
        return { buffer: new Uint8Array(tensors.length * CHUNK_BYTES), dataOffsets };
      },
    },
    ...(readBytesMax !== undefined && { readBytesMax }),
  });
  const read = (count: number, attempt = LIVE_ATTEMPT) =>
    transfer.read(
      CHUNK,
      CHUNK_BYTES,
      Float64Array.from({ length: count }, (_, i) => i),
      attempt,
    );
  return { device, planned, transfer, read };
}

suite('inline replies', (test) => {
  test('have a gibibyte of room by default', () => {
    assert.equal(open().transfer.status(), {
      inline_read_bytes: 0,
      inline_read_bytes_max: GIB,
      inline_reads_waiting: 0,
    });
  });

  test('beyond the bound take no memory until others have been filled', async () => {
    const { device, planned, transfer, read } = open(4 * CHUNK_BYTES);
    const release = device.hold();
    const reads = [read(3), read(1), read(2)];
    assert.equal(planned, [3, 1]);
    assert.equal(transfer.status(), {
      inline_read_bytes: 32,
      inline_read_bytes_max: 32,
      inline_reads_waiting: 1,
    });
    release();
    const sizes = (await Promise.all(reads)).map((bytes) => bytes.length);
    assert.equal(sizes, [24, 8, 16]);
    assert.equal(planned, [3, 1, 2]);
    assert.is(transfer.status()['inline_read_bytes'], 0);
  });

  test('that nobody wants any more are not filled when their turn comes', async () => {
    const { device, planned, transfer, read } = open(CHUNK_BYTES);
    const release = device.hold();
    const first = read(1);
    const attempt = { ...LIVE_ATTEMPT, isAbandoned: false };
    const second = read(1, attempt);
    attempt.isAbandoned = true;
    release();
    await first;
    await rejects(second, /met its deadline while it waited for room/);
    assert.equal(planned, [1]);
    assert.is(transfer.status()['inline_read_bytes'], 0);
  });

  test('whose copy fails give their room back', async () => {
    const { device, transfer, read } = open(CHUNK_BYTES);
    device.failNextJob = 'broken';
    await rejects(read(1), /broken/);
    assert.is(transfer.status()['inline_read_bytes'], 0);
    assert.is((await read(5)).length, 40, 'more than the bound, alone');
  });
});
