import * as assert from 'uvu/assert';
import { openCoreParts } from '../support/core-parts.ts';
import { policyVectors } from '../support/policy-vectors.ts';
import fc from '../support/property.ts';
import { suite } from '../support/suite.ts';

type Range = [start: number, size: number];

interface AddressTrace {
  name: string;
  size: number;
  align: number;
  ops: {
    op: 'allocate' | 'batched_allocate' | 'free' | 'sbrk';
    args: number[];
    result?: Range | Range[] | 'OOM';
    free: number;
    heap: number;
    free_list: Range[];
  }[];
}

const OUT_OF_MEMORY = -6;
const { parts, scratch } = openCoreParts(4096);

function freeBlocks(): Range[] {
  const count = parts.address_blocks();
  return Array.from({ length: count }, (_, i) => [scratch[2 * i]!, scratch[2 * i + 1]!]);
}

/** The traces in bytes over a part that counts units and leaves the odd tail to its caller. */
class ByteSpace {
  readonly #align: number;
  readonly #tail: number;

  constructor(size: number, align: number) {
    this.#align = align;
    this.#tail = size % align;
    parts.address_reset(Math.floor(size / align));
  }

  allocate(size: number, count: number): Range[] | 'OOM' {
    const units = Math.ceil(size / this.#align);
    const result = parts.address_allocate(units, count);
    if (result === OUT_OF_MEMORY) return 'OOM';
    assert.is(result, 0);
    return Array.from({ length: count }, (_, i) => [
      scratch[i]! * this.#align,
      units * this.#align,
    ]);
  }

  free(start: number, size: number): void {
    parts.address_free(start / this.#align, Math.ceil(size / this.#align));
  }

  grow(size: number): void {
    parts.address_grow(Math.ceil(size / this.#align));
  }

  get heap(): number {
    return parts.address_heap_units() * this.#align + this.#tail;
  }

  get freeSize(): number {
    return parts.address_free_units() * this.#align + this.#tail;
  }

  get freeList(): Range[] {
    const list: Range[] = freeBlocks().map(([start, size]) => [
      start * this.#align,
      size * this.#align,
    ]);
    if (this.#tail === 0) return list;
    const end = parts.address_heap_units() * this.#align;
    const last = list.at(-1);
    if (last && last[0] + last[1] === end) last[1] += this.#tail;
    else list.push([end, this.#tail]);
    return list;
  }
}

function replay(trace: AddressTrace): void {
  const space = new ByteSpace(trace.size, trace.align);
  for (const [index, step] of trace.ops.entries()) {
    const [first = 0, second = 0] = step.args;
    const where = `step ${index}: ${step.op}(${step.args})`;
    if (step.op === 'free') space.free(first, second);
    else if (step.op === 'sbrk') space.grow(first);
    else {
      const result = space.allocate(first, step.op === 'allocate' ? 1 : second);
      const expected =
        step.op === 'allocate' && step.result !== 'OOM' ? [step.result] : step.result;
      assert.equal(result, expected, where);
    }
    assert.is(space.freeSize, step.free, where);
    assert.is(space.heap, step.heap, where);
    assert.equal(space.freeList, step.free_list, where);
  }
}

/** First fit as the specification words it, over an array of units. */
class UnitModel {
  readonly taken: boolean[];

  constructor(units: number) {
    this.taken = new Array(units).fill(false);
  }

  blocks(): Range[] {
    const blocks: Range[] = [];
    for (const [unit, isTaken] of this.taken.entries()) {
      if (isTaken) continue;
      const last = blocks.at(-1);
      if (last && last[0] + last[1] === unit) last[1] += 1;
      else blocks.push([unit, 1]);
    }
    return blocks;
  }

  allocate(units: number, count: number): number[] | null {
    const starts: number[] = [];
    for (const [start, size] of this.blocks()) {
      const fitting = Math.min(count - starts.length, Math.floor(size / units));
      for (let i = 0; i < fitting; i += 1) starts.push(start + i * units);
    }
    if (starts.length < count) return null;
    for (const start of starts) this.taken.fill(true, start, start + units);
    return starts;
  }

  free(start: number, units: number): void {
    this.taken.fill(false, start, start + units);
  }
}

suite('address space', (test) => {
  for (const trace of policyVectors<AddressTrace[]>('address_manager')) {
    test(`follows the reference: ${trace.name}`, () => replay(trace));
  }

  test('agrees with a plain first fit in any order of operations', () => {
    const operation = fc.record({
      isAllocation: fc.boolean(),
      units: fc.integer({ min: 1, max: 9 }),
      count: fc.integer({ min: 0, max: 12 }),
      victim: fc.nat(),
    });
    fc.assert(
      fc.property(fc.integer({ min: 0, max: 90 }), fc.array(operation), (units, operations) => {
        parts.address_reset(units);
        const model = new UnitModel(units);
        const live: Range[] = [];
        for (const step of operations) {
          if (step.isAllocation) {
            const expected = model.allocate(step.units, step.count);
            const result = parts.address_allocate(step.units, step.count);
            assert.is(result, expected ? 0 : OUT_OF_MEMORY);
            const starts = expected ?? [];
            assert.equal([...scratch.subarray(0, starts.length)], starts);
            for (const start of starts) live.push([start, step.units]);
          } else if (live.length > 0) {
            const [[start, size] = [0, 0]] = live.splice(step.victim % live.length, 1);
            model.free(start, size);
            parts.address_free(start, size);
          }
          assert.equal(freeBlocks(), model.blocks());
        }
      }),
      { numRuns: 300 },
    );
  });

  test('refuses to free a range that is free already, or outside of the heap', () => {
    for (const [start, units] of [
      [0, 1],
      [4, 2],
      [7, 2],
      [9, 1],
    ] as const) {
      // taken 1-4, free 0 and 5-7
      parts.address_reset(8);
      assert.is(parts.address_allocate(1, 8), 0);
      parts.address_free(0, 1);
      parts.address_free(5, 3);
      assert.throws(() => parts.address_free(start, units), /assertion/, `${start}+${units}`);
    }
  });
});
