/** Copies between buffers of this process and L1 against the obvious loop, on the real shim. */

import * as assert from 'uvu/assert';
import type { HostTensorCopy } from '../../../src/device/device.ts';
import { type DeviceHouse, openDeviceHouse, patternBytes } from '../../support/device-house.ts';
import fc from '../../support/property.ts';
import { rejects } from '../../support/rejects.ts';
import { suite } from '../../support/suite.ts';

const MIB = 1 << 20;

async function withHouse(sizeBytes: number, run: (house: DeviceHouse) => Promise<void>) {
  const house = await openDeviceHouse({ sizeBytes });
  try {
    await run(house);
  } finally {
    await house.close();
  }
}

const contiguous = (shape: readonly number[]): number[] =>
  shape.map((_, d) => shape.slice(d + 1).reduce((a, b) => a * b, 1));

const bytesOf = (shape: readonly number[], itemSizeBytes: number): number =>
  shape.reduce((a, b) => a * b, itemSizeBytes);

/** The elements of a strided view, one behind the other. */
function elementsOf(
  copy: Pick<HostTensorCopy, 'bytes' | 'offsetBytes' | 'stride'>,
  shape: readonly number[],
  itemSizeBytes: number,
): Uint8Array {
  const out = new Uint8Array(bytesOf(shape, itemSizeBytes));
  let at = 0;
  const walk = (dimension: number, offset: number): void => {
    if (dimension === shape.length) {
      out.set(copy.bytes.subarray(offset, offset + itemSizeBytes), at);
      at += itemSizeBytes;
      return;
    }
    for (let i = 0; i < (shape[dimension] as number); i += 1) {
      walk(dimension + 1, offset + i * (copy.stride[dimension] as number) * itemSizeBytes);
    }
  };
  walk(0, copy.offsetBytes);
  return out;
}

suite('copies between buffers and L1', (test) => {
  test('several large tensors in one buffer arrive, and come back into another', () =>
    withHouse(8 * MIB, async ({ device, memory }) => {
      const shape = [2, 3, 256, 301];
      const itemSizeBytes = 2;
      const sizeBytes = bytesOf(shape, itemSizeBytes);
      const bytes = patternBytes(3 * (sizeBytes + 77), 5).subarray(1);
      const stride = contiguous(shape);
      const copies = [0, 1].map((i) => ({
        bytes,
        stride,
        offsetBytes: 13 + i * (sizeBytes + 77),
        objectOffset: (1 + i) * 2 * MIB,
      }));
      await device.copyHostTensors({ direction: 'to-l1', shape, itemSizeBytes, copies });
      for (const { offsetBytes, objectOffset } of copies) {
        const stored = memory.view(objectOffset, sizeBytes);
        const sent = bytes.subarray(offsetBytes, offsetBytes + sizeBytes);
        assert.is(Buffer.compare(stored, sent), 0);
      }
      const target = new Uint8Array(2 * sizeBytes + 100);
      const back = copies.map((copy, i) => ({
        ...copy,
        bytes: target,
        offsetBytes: 7 + i * (sizeBytes + 3),
      }));
      await device.copyHostTensors({ direction: 'from-l1', shape, itemSizeBytes, copies: back });
      for (const [i, { offsetBytes }] of back.entries()) {
        const sent = bytes.subarray(copies[i]?.offsetBytes as number).subarray(0, sizeBytes);
        assert.is(Buffer.compare(target.subarray(offsetBytes, offsetBytes + sizeBytes), sent), 0);
      }
      // What lies between the tensors belongs to the message and stays as it was.
      assert.is(target[6], 0);
      assert.is(target[7 + sizeBytes], 0);
    }));

  test('any strided view arrives as its elements in order', () =>
    withHouse(MIB, async ({ device, memory }) => {
      const dimension = fc.record({
        count: fc.integer({ min: 1, max: 5 }),
        gap: fc.integer({ min: 0, max: 3 }),
      });
      await fc.assert(
        fc.asyncProperty(
          fc.array(dimension, { minLength: 0, maxLength: 5 }),
          fc.constantFrom(1, 2, 4, 8),
          fc.nat({ max: 9 }),
          fc.nat({ max: 1000 }),
          async (dimensions, itemSizeBytes, offsetBytes, shuffle) => {
            const shape = dimensions.map(({ count }) => count);
            // Innermost first in some order of the dimensions, each with a gap behind it.
            const order = shape.map((_, d) => d).sort((a, b) => mix(a, shuffle) - mix(b, shuffle));
            const stride = new Array<number>(shape.length).fill(0);
            let step = 1;
            for (const d of order) {
              stride[d] = step;
              step = step * (shape[d] as number) + (dimensions[d]?.gap as number);
            }
            const bytes = patternBytes(offsetBytes + step * itemSizeBytes, shuffle);
            const copy = { bytes, offsetBytes, stride, objectOffset: 4096 };
            memory.view(0, MIB).fill(0xee);
            await device.copyHostTensors({
              direction: 'to-l1',
              shape,
              itemSizeBytes,
              copies: [copy],
            });
            const sizeBytes = bytesOf(shape, itemSizeBytes);
            const expected = elementsOf(copy, shape, itemSizeBytes);
            assert.is(Buffer.compare(memory.view(4096, sizeBytes), expected), 0);
            assert.is(memory.view(4095, 1)[0], 0xee);
            assert.is(memory.view(4096 + sizeBytes, 1)[0], 0xee);
          },
        ),
        { numRuns: 200 },
      );
    }));

  test('a broadcast view (stride 0) is written out', () =>
    withHouse(MIB, async ({ device, memory }) => {
      const copy = { bytes: Uint8Array.of(9, 8), offsetBytes: 0, stride: [0, 1], objectOffset: 0 };
      const job = { direction: 'to-l1', shape: [3, 2], itemSizeBytes: 1, copies: [copy] } as const;
      await device.copyHostTensors(job);
      assert.equal([...memory.view(0, 6)], [9, 8, 9, 8, 9, 8]);
    }));

  test('copies with different strides and buffers run in one job', () =>
    withHouse(MIB, async ({ device, memory }) => {
      const a = patternBytes(6, 1);
      const b = patternBytes(6, 2);
      const copies = [
        { bytes: a, offsetBytes: 0, stride: [3, 1], objectOffset: 0 },
        { bytes: a, offsetBytes: 0, stride: [1, 2], objectOffset: 4096 },
        { bytes: b, offsetBytes: 0, stride: [3, 1], objectOffset: 8192 },
      ];
      const shape = [2, 3];
      await device.copyHostTensors({ direction: 'to-l1', shape, itemSizeBytes: 1, copies });
      for (const copy of copies) {
        assert.equal(
          [...memory.view(copy.objectOffset, 6)],
          [...elementsOf(copy, shape, 1)],
          String(copy.objectOffset),
        );
      }
    }));

  test('an object outside of L1 is refused, and the device stays usable', () =>
    withHouse(MIB, async ({ device }) => {
      const bytes = new Uint8Array(8192);
      const job = (objectOffset: number) => ({
        direction: 'to-l1' as const,
        shape: [8192],
        itemSizeBytes: 1,
        copies: [{ bytes, offsetBytes: 0, stride: [1], objectOffset }],
      });
      await rejects(device.copyHostTensors(job(MIB - 4096)), /block id/);
      await device.copyHostTensors(job(MIB - 8192));
    }));

  test('a tensor that leaves its buffer is a broken rule of ours', () =>
    withHouse(MIB, async ({ device }) => {
      const copy = { bytes: new Uint8Array(9), offsetBytes: 2, stride: [1], objectOffset: 0 };
      const job = { direction: 'to-l1', shape: [8], itemSizeBytes: 1, copies: [copy] } as const;
      await rejects(device.copyHostTensors(job), /leaves its buffer/);
    }));

  test('a tensor without elements is done at once', () =>
    withHouse(MIB, async ({ device }) => {
      const copy = { bytes: new Uint8Array(0), offsetBytes: 0, stride: [1, 1], objectOffset: 0 };
      await device.copyHostTensors({
        direction: 'to-l1',
        shape: [0, 4],
        itemSizeBytes: 4,
        copies: [copy],
      });
    }));

  test('closing the device waits for copies that run', () =>
    withHouse(32 * MIB, async ({ device }) => {
      const bytes = new Uint8Array(32 * MIB);
      let isDone = false;
      const copy = { bytes, offsetBytes: 0, stride: [1], objectOffset: 0 };
      const job = {
        direction: 'to-l1',
        shape: [32 * MIB],
        itemSizeBytes: 1,
        copies: [copy],
      } as const;
      const running = device.copyHostTensors(job).then(() => {
        isDone = true;
      });
      await device.close();
      assert.ok(isDone);
      await running;
      await rejects(device.copyHostTensors(job), /closed/);
    }));
});

/** A number that puts dimensions in an order of their own for each `shuffle`. */
function mix(dimension: number, shuffle: number): number {
  return Math.imul(dimension + 1, shuffle * 2 + 1) % 7;
}
