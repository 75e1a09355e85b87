/** What every kind of L1 memory promises (src/storage/l1-memory/l1-memory.ts). */
import * as assert from 'uvu/assert';
import type { L1Memory } from '../../src/storage/l1-memory/l1-memory.ts';
import { MIB } from '../../src/units.ts';
import { contractSuite, type Skip } from '../support/contract.ts';
import { rejects } from '../support/rejects.ts';

export interface L1MemoryContract {
  readonly kind: L1Memory['kind'];
  open(sizeBytes: number): Promise<L1Memory>;
  readonly skip?: readonly Skip[];
}

const SIZE_BYTES = 8 * MIB;

/** Resolves when the preparer has come to `bytes`; the suite's deadline ends a vain wait. */
async function prepared(memory: L1Memory, bytes: number): Promise<void> {
  while (memory.preparedBytes < bytes) await new Promise(setImmediate);
}

export function l1MemoryContract({ kind, open, skip = [] }: L1MemoryContract): void {
  async function withMemory(sizeBytes: number, body: (memory: L1Memory) => unknown) {
    const memory = await open(sizeBytes);
    try {
      await body(memory);
    } finally {
      await memory.close();
    }
  }

  contractSuite(`L1 memory: ${kind}`, skip, (test) => {
    test('every byte is zero at first and keeps what is written', () =>
      withMemory(SIZE_BYTES, (memory) => {
        assert.is(memory.kind, kind);
        assert.is(memory.sizeBytes, SIZE_BYTES);
        assert.ok(memory.view(0, SIZE_BYTES).every((byte) => byte === 0));
        memory.view(5 * MIB, 3).set([1, 2, 3]);
        assert.equal([...memory.view(5 * MIB - 1, 5)], [0, 1, 2, 3, 0]);
      }));

    test('views outside the memory are refused', () =>
      withMemory(SIZE_BYTES, (memory) => {
        assert.is(memory.view(SIZE_BYTES, 0).length, 0);
        for (const [offset, length] of [
          [SIZE_BYTES, 1],
          [-1, 1],
          [0, SIZE_BYTES + 1],
          [0.5, 1],
          [0, Number.NaN],
        ] as const) {
          assert.throws(() => memory.view(offset, length), /view/);
        }
      }));

    test('pages are prepared ahead of the high-water mark and never change bytes', () =>
      withMemory(65 * MIB + 4096, async (memory) => {
        assert.is(memory.preparedBytes, 0);
        memory.view(40 * MIB, 1)[0] = 7;
        memory.prepareAhead(1);
        await prepared(memory, 32 * MIB);
        memory.prepareAhead(33 * MIB);
        await prepared(memory, memory.sizeBytes);
        assert.is(memory.preparedBytes, memory.sizeBytes);
        assert.is(memory.view(40 * MIB, 1)[0], 7);
        assert.is(memory.view(memory.sizeBytes - 1, 1)[0], 0);
        assert.is(memory.memory.preparationCode, null);
      }));

    test('views are empty after close, and later ones are refused', async () => {
      const memory = await open(SIZE_BYTES);
      const view = memory.view(0, 16);
      await memory.close();
      assert.is(view.length, 0);
      assert.throws(() => memory.view(0, 1), /closed/);
      await memory.close();
    });

    test('memory that a device holds cannot be closed', async () => {
      const memory = await open(SIZE_BYTES);
      memory.memory.retain();
      await rejects(memory.memory.close(), /under 1 devices/);
      memory.memory.release();
      await memory.close();
    });
  });
}
