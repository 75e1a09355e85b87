/** Random plans and jobs through the real shim, against `runCopyJob` in plain JavaScript. */

import * as assert from 'uvu/assert';
import type { CopyJob, CopyPlan, KernelGroupPlan } from '../../../src/device/device.ts';
import { runCopyJob } from '../../support/copy-plan.ts';
import {
  type DeviceHouse,
  openDeviceHouse,
  patternBytes,
  wrapperOf,
} from '../../support/device-house.ts';
import fc from '../../support/property.ts';
import { suite } from '../../support/suite.ts';

interface GroupShape {
  readonly outerCount: number;
  readonly innerCount: number;
  readonly runBytes: number;
  readonly isTransposed: boolean;
  readonly paddingBytes: number;
  readonly planeCount: number;
  readonly objectBlockCount: number;
  readonly engineBlockCount: number;
}

const groupShape: fc.Arbitrary<GroupShape> = fc.record({
  outerCount: fc.integer({ min: 1, max: 4 }),
  innerCount: fc.integer({ min: 1, max: 4 }),
  runBytes: fc.constantFrom(1, 2, 24, 64, 96, 128, 192, 256, 512, 1024, 1500, 4096),
  isTransposed: fc.boolean(),
  paddingBytes: fc.constantFrom(0, 2, 64, 128),
  planeCount: fc.integer({ min: 1, max: 4 }),
  objectBlockCount: fc.integer({ min: 0, max: 6 }),
  engineBlockCount: fc.integer({ min: 1, max: 12 }),
});

/** A plan whose planes lie one behind the other in one tensor, and that tensor's size. */
function planOf(shapes: readonly GroupShape[], shiftBytes: number) {
  let engineEnd = shiftBytes;
  let objectEnd = 0;
  const groups = shapes.map((shape): KernelGroupPlan => {
    const { outerCount, innerCount, runBytes, isTransposed, paddingBytes } = shape;
    const blockBytes = outerCount * innerCount * runBytes;
    const rowBytes = { outer: innerCount * runBytes, inner: runBytes };
    const columnBytes = { outer: runBytes, inner: outerCount * runBytes };
    const engine = isTransposed ? columnBytes : rowBytes;
    const planes = Array.from({ length: shape.planeCount }, () => {
      const plane = {
        tensorIndex: 0,
        engineOffsetBytes: engineEnd,
        engineBlockStrideBytes: blockBytes + paddingBytes,
        objectOffsetBytes: objectEnd,
      };
      engineEnd += (blockBytes + paddingBytes) * shape.engineBlockCount;
      objectEnd += blockBytes * shape.objectBlockCount;
      return plane;
    });
    return {
      planes,
      objectBlockStrideBytes: blockBytes,
      outerCount,
      innerCount,
      engineOuterStrideBytes: engine.outer,
      engineInnerStrideBytes: engine.inner,
      objectOuterStrideBytes: rowBytes.outer,
      objectInnerStrideBytes: rowBytes.inner,
      runBytes,
      objectBlockCount: shape.objectBlockCount,
      engineBlockCount: shape.engineBlockCount,
    };
  });
  const plan: CopyPlan = { groups, objectSizeBytes: objectEnd };
  return { plan, tensorBytes: engineEnd };
}

/** Distinct blocks per group, so that the order of copies cannot matter, and some left out. */
function jobOf(plan: CopyPlan, seed: number, direction: CopyJob['direction']): CopyJob {
  const picks = patternBytes(64, seed);
  const objectCount = Math.min(
    3,
    ...plan.groups.map((g) =>
      g.objectBlockCount === 0 ? 3 : Math.floor(g.engineBlockCount / g.objectBlockCount),
    ),
  );
  const places = [2, 0, 1];
  const objectOffsets = Float64Array.from({ length: objectCount }, (_, o) =>
    (picks[o] as number) % 4 === 0 ? -1 : (places[o] as number) * plan.objectSizeBytes + 64 * seed,
  );
  const blockIds = plan.groups.map((group, g) => {
    const ids = Array.from({ length: group.engineBlockCount }, (_, i) => i);
    ids.sort((a, b) => (picks[(a + g) % 64] as number) - (picks[(b + g) % 64] as number));
    return Uint32Array.from(ids.slice(0, objectCount * group.objectBlockCount));
  });
  if (direction === 'gather' || seed % 2 === 0) return { direction, objectOffsets, blockIds };
  const skipBlocks = plan.groups.map((group) =>
    Uint32Array.from(
      { length: objectCount },
      (_, o) => (picks[8 + o] as number) % (group.objectBlockCount + 2),
    ),
  );
  return { direction, objectOffsets, blockIds, skipBlocks };
}

async function checkCase(house: DeviceHouse, shapes: GroupShape[], seed: number): Promise<void> {
  const { plan, tensorBytes } = planOf(shapes, seed % 3);
  const content = patternBytes(tensorBytes, seed);
  const segment = house.segment(content);
  const wrapper = wrapperOf(
    { name: segment.name, sizeBytes: tensorBytes },
    { shape: [tensorBytes] },
  );
  const instance = await house.device.openInstance([wrapper]);
  try {
    instance.addPlan(plan);
    const arena = house.memory.view(0, house.memory.sizeBytes);
    const l1 = arena.slice();
    const model = { engine: [content], l1 };
    for (const direction of ['gather', 'scatter'] as const) {
      const job = jobOf(plan, seed, direction);
      runCopyJob(plan, model, job);
      await instance.submit(job);
      assert.is(Buffer.compare(arena, l1), 0, `L1 after ${direction}`);
      assert.is(Buffer.compare(segment.read(), content), 0, `tensor after ${direction}`);
    }
  } finally {
    await instance.close();
    segment.remove();
  }
}

suite('copy plans', (test) => {
  test('any plan copies what the model copies, in both directions', async () => {
    const house = await openDeviceHouse({ sizeBytes: 16 << 20 });
    house.memory.view(0, 16 << 20).set(patternBytes(16 << 20, 7));
    try {
      await fc.assert(
        fc.asyncProperty(
          fc.array(groupShape, { minLength: 1, maxLength: 3 }),
          fc.nat({ max: 1000 }),
          (shapes, seed) => checkCase(house, shapes, seed),
        ),
        { numRuns: 120 },
      );
    } finally {
      await house.close();
    }
  });

  test('a job larger than many pieces arrives whole', async () => {
    const house = await openDeviceHouse({ sizeBytes: 32 << 20, workerCount: 3 });
    try {
      const shape: GroupShape = {
        outerCount: 16,
        innerCount: 8,
        runBytes: 256,
        isTransposed: true,
        paddingBytes: 0,
        planeCount: 8,
        objectBlockCount: 16,
        engineBlockCount: 48,
      };
      await checkCase(house, [shape], 1);
    } finally {
      await house.close();
    }
  });
});
