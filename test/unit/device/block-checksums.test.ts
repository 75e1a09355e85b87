/** Digests: the buffer, and the end in the middle. The rest is in test/contract. */
import { createHash } from 'node:crypto';
import * as assert from 'uvu/assert';
import {
  type DeviceHouse,
  openDeviceHouse,
  patternBytes,
  wrapperOf,
} from '../../support/device-house.ts';
import { rejects } from '../../support/rejects.ts';
import { suite } from '../../support/suite.ts';

/** One tensor [blockCount, blockBytes] of bytes. */
async function openBlocks(house: DeviceHouse, blockCount: number, blockBytes: number) {
  const content = patternBytes(blockCount * blockBytes, 3);
  const place = { name: house.segment(content).name, sizeBytes: content.length };
  const wrapper = wrapperOf(place, { shape: [blockCount, blockBytes] });
  return { content, instance: await house.device.openInstance([wrapper]) };
}

async function inHouse(body: (house: DeviceHouse) => Promise<void>): Promise<void> {
  const house = await openDeviceHouse();
  try {
    await body(house);
  } finally {
    await house.close();
  }
}

suite('block checksums', (test) => {
  test('more blocks than the buffer holds give the same digest as one stream', () =>
    inHouse(async (house) => {
      const { content, instance } = await openBlocks(house, 96, 8192);
      const blockIds = Array.from({ length: 96 }, (_, i) => i);
      const options = { blockIds, blocksPerChecksum: 96, blockAxes: [0], isLayerwise: false };
      assert.equal(await instance.checksumBlocks(options), [
        [createHash('md5').update(content).digest('hex')],
      ]);
      assert.is(instance.jobCountInFlight, 0);
    }));

  test('closing the instance in the middle ends the reading with a refusal', () =>
    inHouse(async (house) => {
      const { instance } = await openBlocks(house, 64, 4096);
      const blockIds = Array.from({ length: 6400 }, (_, i) => i % 64);
      const options = { blockIds, blocksPerChecksum: 6400, blockAxes: [0], isLayerwise: false };
      const sums = instance.checksumBlocks(options);
      await Promise.all([rejects(sums, /closing/), instance.close()]);
    }));

  test('no block is read from memory that the closing of the instance has given back', () =>
    inHouse(async (house) => {
      const { instance } = await openBlocks(house, 64, 1024);
      const { shim } = house;
      const steps: string[] = [];
      const createPlan = shim.createPlan.bind(shim);
      const closeSegment = shim.closeSegment.bind(shim);
      shim.createPlan = (options) => {
        steps.push('read');
        return createPlan(options);
      };
      shim.closeSegment = (segment) => {
        steps.push('unmap');
        return closeSegment(segment);
      };
      const blockIds = Array.from({ length: 2000 }, (_, i) => i % 64);
      const options = { blockIds, blocksPerChecksum: 1, blockAxes: [0], isLayerwise: false };
      const sums = instance.checksumBlocks(options);
      assert.is(instance.jobCountInFlight, 1);
      await Promise.all([rejects(sums, /closing/), instance.close()]);
      assert.ok(steps.includes('read'));
      assert.equal(steps.slice(steps.indexOf('unmap')), ['unmap']);
      await rejects(instance.checksumBlocks(options), /closing/);
      assert.equal(steps.slice(steps.indexOf('unmap')), ['unmap']);
    }));
});
