/** Parallelism and bounds of the copy queue. Order and end: test/contract/device.ts. */
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
import { suite } from '../../support/suite.ts';

const BLOCK_BYTES = 1024;
const BLOCK_COUNT = 4096;

/** An instance whose objects are `objectBlockCount` blocks of a 4 MiB tensor. */
async function openBlocks(house: DeviceHouse, objectBlockCount: number, seed = 1) {
  const content = patternBytes(BLOCK_COUNT * BLOCK_BYTES, seed);
  const { wrapper, segment } = blockTensor(house, content, BLOCK_BYTES);
  const instance = await house.device.openInstance([wrapper]);
  const engineBlockCount = BLOCK_COUNT;
  instance.addPlan(blockPlan({ blockBytes: BLOCK_BYTES, engineBlockCount, objectBlockCount }));
  return { instance, content, segment };
}

const job = (direction: CopyJob['direction'], firstBlock: number, count: number): CopyJob => ({
  direction,
  objectOffsets: Float64Array.of(0),
  blockIds: [Uint32Array.from({ length: count }, (_, i) => firstBlock + i)],
});

suite('copy queue', (test) => {
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
});
