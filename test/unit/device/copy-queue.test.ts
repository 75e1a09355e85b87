/** Order, parallelism, bounds and the end of the copy queue. */
import * as assert from 'uvu/assert';
import type { CopyJob, DeviceInstance } from '../../../src/device/device.ts';
import type { KvdError } from '../../../src/errors.ts';
import {
  blockPlan,
  blockTensor,
  type DeviceHouse,
  openDeviceHouse,
  patternBytes,
} from '../../support/device-house.ts';
import { rejects } from '../../support/rejects.ts';
import { suite } from '../../support/suite.ts';

const BLOCK_BYTES = 1024;
const BLOCK_COUNT = 4096;

/** An instance whose objects are `objectBlockCount` blocks of a 4 MiB tensor. */
async function openBlocks(house: DeviceHouse, objectBlockCount: number, seed = 1) {
  const content = patternBytes(BLOCK_COUNT * BLOCK_BYTES, seed);
  const { wrapper, segment } = blockTensor(house, content, BLOCK_BYTES);
  const instance = await house.device.openInstance([wrapper]);
  const engineBlockCount = BLOCK_COUNT;
  instance.setPlan(blockPlan({ blockBytes: BLOCK_BYTES, engineBlockCount, objectBlockCount }));
  return { instance, content, segment };
}

const job = (direction: CopyJob['direction'], firstBlock: number, count: number): CopyJob => ({
  direction,
  objectOffsets: Float64Array.of(0),
  blockIds: [Uint32Array.from({ length: count }, (_, i) => firstBlock + i)],
});

suite('copy queue', (test) => {
  test('jobs of one instance run in the order of submission', async () => {
    const house = await openDeviceHouse({ sizeBytes: 2 << 20, workerCount: 4 });
    try {
      const { instance, content, segment } = await openBlocks(house, 1024);
      // Every job writes the same MiB of L1 or reads it, so only the right order gives this end:
      // part 0 → L1 → part 1, part 2 → L1 → part 3, twenty times over.
      const jobs: Promise<void>[] = [];
      const settled: number[] = [];
      for (let round = 0; round < 20; round += 1) {
        const steps = [
          job('gather', 0, 1024),
          job('scatter', 1024, 1024),
          job('gather', 2048, 1024),
          job('scatter', 3072, 1024),
        ];
        for (const step of steps) {
          const number = jobs.length;
          jobs.push(instance.submit(step).then(() => void settled.push(number)));
        }
      }
      assert.is(instance.jobCountInFlight, 80);
      await Promise.all(jobs);
      assert.equal(settled, Array.from(jobs.keys()));
      const after = segment.read();
      const part = (bytes: Uint8Array, n: number) => bytes.subarray(n << 20, (n + 1) << 20);
      assert.is(Buffer.compare(part(after, 1), part(content, 0)), 0);
      assert.is(Buffer.compare(part(after, 3), part(content, 2)), 0);
    } finally {
      await house.close();
    }
  });

  test('a small job of another instance overtakes a queue of large ones', async () => {
    const house = await openDeviceHouse({ sizeBytes: 8 << 20, workerCount: 1 });
    try {
      const large = await openBlocks(house, 4096, 1);
      const small = await openBlocks(house, 1, 2);
      let largeDoneCount = 0;
      const jobs = Array.from({ length: 20 }, () =>
        large.instance.submit(job('gather', 0, 4096)).then(() => {
          largeDoneCount += 1;
        }),
      );
      await small.instance.submit({
        ...job('gather', 7, 1),
        objectOffsets: Float64Array.of(4 << 20),
      });
      assert.ok(largeDoneCount < 20, 'the small job waited for all large ones');
      await Promise.all(jobs);
      const stored = house.memory.view(4 << 20, BLOCK_BYTES);
      const expected = small.content.subarray(7 * BLOCK_BYTES, 8 * BLOCK_BYTES);
      assert.is(Buffer.compare(stored, expected), 0);
    } finally {
      await house.close();
    }
  });

  test('10,000 small jobs on four instances all settle', async () => {
    const house = await openDeviceHouse({ sizeBytes: 2 << 20 });
    try {
      const opened = await Promise.all([1, 2, 3, 4].map((seed) => openBlocks(house, 1, seed)));
      const jobs: Promise<void>[] = [];
      for (let i = 0; i < 10_000; i += 1) {
        const { instance } = opened[i % 4] as { instance: DeviceInstance };
        const offset = (i % 1024) * BLOCK_BYTES;
        jobs.push(
          instance.submit({
            ...job('gather', i % BLOCK_COUNT, 1),
            objectOffsets: Float64Array.of(offset),
          }),
        );
      }
      await Promise.all(jobs);
      assert.is(house.device.status()['job_count_in_flight'], 0);
    } finally {
      await house.close();
    }
  });

  test('jobs beyond the bound are refused at once, and room comes back', async () => {
    const house = await openDeviceHouse({ sizeBytes: 8 << 20, jobCountMax: 8 });
    try {
      const { instance } = await openBlocks(house, 4096);
      const results = await Promise.allSettled(
        Array.from({ length: 20 }, () => instance.submit(job('gather', 0, 4096))),
      );
      const refused = results.filter((result) => result.status === 'rejected');
      assert.is(refused.length, 12);
      for (const { reason } of refused) assert.is((reason as KvdError).code, 'ERR_OVERLOADED');
      await instance.submit(job('gather', 0, 4096));
    } finally {
      await house.close();
    }
  });

  test('objects left out and an empty job complete without a copy', async () => {
    const house = await openDeviceHouse({ sizeBytes: 1 << 20 });
    try {
      const { instance } = await openBlocks(house, 1);
      await instance.submit({ ...job('gather', 0, 1), objectOffsets: Float64Array.of(-1) });
      await instance.submit({ ...job('gather', 0, 0), objectOffsets: new Float64Array(0) });
      assert.ok(house.memory.view(0, BLOCK_BYTES).every((byte) => byte === 0));
    } finally {
      await house.close();
    }
  });

  test('close lets running jobs end and refuses later ones', async () => {
    const house = await openDeviceHouse({ sizeBytes: 8 << 20 });
    try {
      const { instance, content } = await openBlocks(house, 4096);
      let doneCount = 0;
      const jobs = Array.from({ length: 10 }, () =>
        instance.submit(job('gather', 0, 4096)).then(() => {
          doneCount += 1;
        }),
      );
      const closed = instance.close();
      const late = await rejects(instance.submit(job('gather', 0, 4096)), /closing/);
      assert.is((late as KvdError).code, 'ERR_SHUTTING_DOWN');
      await closed;
      assert.is(doneCount, 10);
      await Promise.all(jobs);
      assert.is(Buffer.compare(house.memory.view(0, content.length), content), 0);
      assert.is(instance.close(), instance.close(), 'closing again waits for the same end');
    } finally {
      await house.close();
    }
  });

  test('closing the device closes its instances, and nothing opens afterwards', async () => {
    const house = await openDeviceHouse({ sizeBytes: 8 << 20 });
    const { instance } = await openBlocks(house, 4096);
    const running = instance.submit(job('gather', 0, 4096));
    await house.close();
    await running;
    await rejects(house.device.openInstance([]), /device is closed/);
  });
});
