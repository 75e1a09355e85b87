/**
 * What every device promises (src/device/device.ts): what it maps, what it copies and in which
 * order, what it refuses, and how it ends.
 */
import * as assert from 'uvu/assert';
import type { CopyJob, Device } from '../../src/device/device.ts';
import type { CudaIpcWrapper } from '../../src/device/tensor-wrapper.ts';
import type { KvdError } from '../../src/errors.ts';
import { contractSuite, type Skip } from '../support/contract.ts';
import { blockPlan, patternBytes, wrapperOf } from '../support/device-house.ts';
import { refuses } from '../support/rejects.ts';
import { checksumTests } from './device-checksums.ts';

/** Memory of an engine, as the device sees it by its name. */
export interface EngineSegment {
  readonly name: string;
  read(): Uint8Array;
}

export interface DeviceSetup {
  readonly device: Device;
  /** All of L1. */
  readonly l1: Uint8Array;
  segment(content: Uint8Array): EngineSegment;
  /** Closes the device, too, if that has not been done. */
  close(): Promise<void>;
}

export interface DeviceContract {
  readonly name: string;
  open(l1SizeBytes: number): Promise<DeviceSetup>;
  readonly skip?: readonly Skip[];
}

const MIB = 1 << 20;
const BLOCK_BYTES = 1024;
const BLOCK_COUNT = 64;

/** An instance whose objects are `objectBlockCount` blocks of one tensor [BLOCK_COUNT, bytes]. */
async function openBlocks(setup: DeviceSetup, objectBlockCount: number) {
  const content = patternBytes(BLOCK_COUNT * BLOCK_BYTES, 1);
  const segment = setup.segment(content);
  const place = { name: segment.name, sizeBytes: content.length };
  const wrapper = wrapperOf(place, { shape: [BLOCK_COUNT, BLOCK_BYTES] });
  const instance = await setup.device.openInstance([wrapper]);
  const plan = blockPlan({
    blockBytes: BLOCK_BYTES,
    engineBlockCount: BLOCK_COUNT,
    objectBlockCount,
  });
  const block = (id: number) => content.subarray(id * BLOCK_BYTES, (id + 1) * BLOCK_BYTES);
  return { instance, plan, segment, block };
}

const jobOf = (direction: CopyJob['direction'], ids: readonly number[], offset = 0): CopyJob => ({
  direction,
  objectOffsets: Float64Array.of(offset),
  blockIds: [Uint32Array.from(ids)],
});

const gather = (ids: readonly number[], offset = 0) => jobOf('gather', ids, offset);

const isSame = (a: Uint8Array, b: Uint8Array): boolean => Buffer.compare(a, b) === 0;

/** A behaviour, tried on a device of its own. */
export type Check = (title: string, body: (setup: DeviceSetup) => Promise<void>) => void;

function registrationTests(check: Check): void {
  check('a tensor begins at its storage offset', async ({ device, l1, segment }) => {
    const content = patternBytes(100 + 16 * BLOCK_BYTES, 1);
    const place = { name: segment(content).name, sizeBytes: content.length };
    const wrapper = wrapperOf(place, { shape: [16, BLOCK_BYTES], storageOffset: 100 });
    const instance = await device.openInstance([wrapper]);
    const sizes = { blockBytes: BLOCK_BYTES, engineBlockCount: 16, objectBlockCount: 4 };
    instance.addPlan(blockPlan(sizes));
    const ids = [15, 0, 3, 8];
    await instance.submit(gather(ids));
    for (const [k, id] of ids.entries()) {
      const at = 100 + id * BLOCK_BYTES;
      const stored = l1.subarray(k * BLOCK_BYTES, (k + 1) * BLOCK_BYTES);
      assert.ok(isSame(stored, content.subarray(at, at + BLOCK_BYTES)));
    }
  });

  check('permuted tensors are shown in the order of memory', async ({ device, segment }) => {
    const place = { name: segment(patternBytes(60, 1)).name, sizeBytes: 60 };
    const geometry = { dtype: 'bfloat16', shape: [2, 5, 3], stride: [15, 1, 5] } as const;
    const { tensors } = await device.openInstance([wrapperOf(place, geometry)]);
    assert.equal(tensors, [{ dtype: 'bfloat16', shape: [2, 3, 5], stride: [15, 5, 1] }]);
  });

  check(
    'memory that is missing, short or of another kind is refused',
    async ({ device, segment }) => {
      const { name } = segment(new Uint8Array(4096));
      const missing = '/lmcache_kv_test_missing';
      const cases = [
        wrapperOf({ name: missing, sizeBytes: 16 }, { shape: [16] }),
        wrapperOf({ name, sizeBytes: 4097 }, { shape: [4097] }),
        wrapperOf({ name, sizeBytes: 4096 }, { shape: [4097] }),
      ];
      for (const wrapper of cases) {
        await refuses(device.openInstance([wrapper]), 'ERR_DEVICE_MEMORY', /lmcache_kv_/);
      }
      await refuses(device.openInstance([CUDA_WRAPPER]), 'ERR_UNSUPPORTED', /cuda-ipc/);
    },
  );

  check(
    'a segment made anew under its name is other memory, the same one is not',
    async ({ device, segment }) => {
      const open = (name: string) =>
        device.openInstance([wrapperOf({ name, sizeBytes: 16 }, { shape: [16] })]);
      const [first, second] = [segment(new Uint8Array(16)), segment(new Uint8Array(16))];
      const known = await open(first.name);
      assert.equal((await open(first.name)).mappingIds, known.mappingIds);
      assert.not.equal((await open(second.name)).mappingIds, known.mappingIds);
    },
  );
}

function planTests(check: Check): void {
  check('a plan that leaves its tensor or its object is refused', async (setup) => {
    const { instance, plan } = await openBlocks(setup, 4);
    const [group] = plan.groups as [(typeof plan.groups)[number]];
    const bad = [
      { ...plan, groups: [{ ...group, engineBlockCount: BLOCK_COUNT + 1 }] },
      { ...plan, objectSizeBytes: plan.objectSizeBytes - 1 },
      { ...plan, groups: [{ ...group, runBytes: Number.NaN }] },
      { ...plan, groups: [{ ...group, outerCount: 2, engineOuterStrideBytes: 1 }] },
    ];
    for (const one of bad) {
      assert.throws(
        () => instance.addPlan(one),
        (error: KvdError) => error.code === 'ERR_LAYOUT',
      );
    }
    instance.addPlan(plan);
  });

  check('there is an event for everything, and any event can be waited for', async ({ device }) => {
    const instance = await device.openInstance([]);
    assert.ok(device.anyEvent().length > 0);
    assert.ok(instance.completionEvent().length > 0);
    instance.waitForEvent(new Uint8Array(3));
  });
}

const CUDA_WRAPPER: CudaIpcWrapper = {
  kind: 'cuda-ipc',
  dtype: 'float16',
  shape: [1],
  stride: [1],
  storageOffset: 0,
  deviceUuid: 'x',
  memoryHandle: new Uint8Array(64),
  storageSizeBytes: 2,
  storageOffsetBytes: 0,
};

function jobTests(check: Check): void {
  check(
    'what was gathered is scattered back, without the blocks that the engine has',
    async (setup) => {
      const { instance, plan, segment, block } = await openBlocks(setup, 4);
      instance.addPlan(plan);
      await instance.submit(gather([0, 1, 2, 3], 4096));
      const scatter = jobOf('scatter', [10, 11, 12, 13], 4096);
      await instance.submit({ ...scatter, skipBlocks: [Uint32Array.of(1)] });
      const after = segment.read();
      const at = (id: number) => after.subarray(id * BLOCK_BYTES, (id + 1) * BLOCK_BYTES);
      assert.ok(isSame(at(10), block(10)), 'left out');
      for (const k of [1, 2, 3]) assert.ok(isSame(at(10 + k), block(k)));
    },
  );

  check('jobs of one instance run and settle in the order of submission', async (setup) => {
    const { instance, plan, segment, block } = await openBlocks(setup, 16);
    instance.addPlan(plan);
    const range = (first: number) => Array.from({ length: 16 }, (_, i) => first + i);
    // Every job writes the same place in L1 or reads it, so only the right order gives this end:
    // part 0 → L1 → part 1, part 2 → L1 → part 3, twenty times over.
    const jobs: Promise<void>[] = [];
    const settled: number[] = [];
    for (let round = 0; round < 20; round += 1) {
      for (const [direction, first] of [
        ['gather', 0],
        ['scatter', 16],
        ['gather', 32],
        ['scatter', 48],
      ] as const) {
        const number = jobs.length;
        const done = instance.submit(jobOf(direction, range(first)));
        jobs.push(done.then(() => void settled.push(number)));
      }
    }
    assert.is(instance.jobCountInFlight, 80);
    await Promise.all(jobs);
    assert.equal(settled, Array.from(jobs.keys()));
    assert.is(instance.jobCountInFlight, 0);
    const after = segment.read();
    for (const k of range(0)) {
      const at = (id: number) => after.subarray(id * BLOCK_BYTES, (id + 1) * BLOCK_BYTES);
      assert.ok(isSame(at(16 + k), block(k)));
      assert.ok(isSame(at(48 + k), block(32 + k)));
    }
  });
}

function oddJobTests(check: Check): void {
  check('objects left out and an empty job complete without a copy', async (setup) => {
    const { instance, plan } = await openBlocks(setup, 1);
    instance.addPlan(plan);
    await instance.submit(gather([5], -1));
    await instance.submit({ ...gather([]), objectOffsets: new Float64Array(0) });
    assert.ok(setup.l1.every((byte) => byte === 0));
  });

  check('block ids, objects and lists are checked before anything moves', async (setup) => {
    const { instance, plan } = await openBlocks(setup, 4);
    instance.addPlan(plan);
    const bad: [CopyJob, RegExp][] = [
      [gather([0, 1, 2, BLOCK_COUNT]), /block id lies beyond/],
      [gather([0, 1, 2, 0xffff_ffff]), /block id lies beyond/],
      [gather([0, 1, 2, 3], setup.l1.length - plan.objectSizeBytes + 1), /outside L1/],
      [gather([0, 1, 2, 3], Number.NaN), /outside L1/],
      [gather([0, 1, 2]), /3 block ids, expected 4/],
      [{ ...gather([]), blockIds: [] }, /0 lists of block ids for 1 kernel groups/],
      [{ ...gather([0, 1, 2, 3]), skipBlocks: [new Uint32Array(2)] }, /2 skip counts/],
    ];
    for (const [job, expected] of bad) {
      await refuses(instance.submit(job), 'ERR_DEVICE_COPY', expected);
    }
    assert.ok(setup.l1.every((byte) => byte === 0));
    assert.is(instance.jobCountInFlight, 0);
  });

  check(
    'strided tensors of this process go to L1 as their elements in order, and back',
    async ({ device, l1 }) => {
      const bytes = Uint8Array.from({ length: 12 }, (_, i) => i + 1);
      const copies = [
        // Two columns of three elements.
        { bytes, offsetBytes: 0, stride: [1, 2], objectOffset: 0 },
        // A broadcast row.
        { bytes, offsetBytes: 0, stride: [0, 1], objectOffset: 4096 },
      ];
      const job = { direction: 'to-l1', shape: [2, 3], itemSizeBytes: 2, copies } as const;
      await device.copyHostTensors(job);
      assert.equal([...l1.subarray(0, 13)], [1, 2, 5, 6, 9, 10, 3, 4, 7, 8, 11, 12, 0]);
      assert.equal([...l1.subarray(4096, 4109)], [1, 2, 3, 4, 5, 6, 1, 2, 3, 4, 5, 6, 0]);
      const target = new Uint8Array(14);
      const back = { bytes: target, offsetBytes: 1, stride: [1, 2], objectOffset: 0 };
      await device.copyHostTensors({ ...job, direction: 'from-l1', copies: [back] });
      assert.equal([...target], [0, ...bytes, 0]);
    },
  );
}

function endTests(check: Check): void {
  check('close lets running jobs end and refuses later ones', async (setup) => {
    const { instance, plan } = await openBlocks(setup, 16);
    instance.addPlan(plan);
    const ids = Array.from({ length: 16 }, (_, i) => i);
    let doneCount = 0;
    const jobs = Array.from({ length: 10 }, () =>
      instance.submit(gather(ids)).then(() => {
        doneCount += 1;
      }),
    );
    const closed = instance.close();
    await refuses(instance.submit(gather(ids)), 'ERR_SHUTTING_DOWN');
    await closed;
    assert.is(doneCount, 10);
    await Promise.all(jobs);
    await instance.close();
  });

  check(
    'closing the device ends its instances and copies, and nothing starts afterwards',
    async (setup) => {
      const { device } = setup;
      const { instance, plan } = await openBlocks(setup, 1);
      instance.addPlan(plan);
      const bytes = new Uint8Array(4096);
      const copy = { bytes, offsetBytes: 0, stride: [1], objectOffset: 4096 };
      const hostJob = { direction: 'to-l1', shape: [4096], itemSizeBytes: 1 } as const;
      let doneCount = 0;
      const running = [
        instance.submit(gather([0])),
        device.copyHostTensors({ ...hostJob, copies: [copy] }),
      ].map((promise) =>
        promise.then(() => {
          doneCount += 1;
        }),
      );
      await device.close();
      assert.is(doneCount, 2);
      await Promise.all(running);
      await refuses(instance.submit(gather([0])), 'ERR_SHUTTING_DOWN');
      await refuses(device.openInstance([]), 'ERR_SHUTTING_DOWN');
      await refuses(device.copyHostTensors({ ...hostJob, copies: [copy] }), 'ERR_SHUTTING_DOWN');
    },
  );
}

export function deviceContract({ name, open, skip = [] }: DeviceContract): void {
  contractSuite(`device: ${name}`, skip, (test) => {
    const check: Check = (title, body) =>
      test(title, async () => {
        const setup = await open(MIB);
        try {
          await body(setup);
        } finally {
          await setup.close();
        }
      });
    registrationTests(check);
    planTests(check);
    jobTests(check);
    oddJobTests(check);
    checksumTests(check);
    endTests(check);
  });
}
