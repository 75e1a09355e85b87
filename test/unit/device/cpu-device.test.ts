/** What the CPU device accepts, refuses and survives. Queue behaviour: copy-queue.test.ts. */
import fs from 'node:fs';
import * as assert from 'uvu/assert';
import type { CopyJob } from '../../../src/device/device.ts';
import type { TensorWrapper } from '../../../src/device/tensor-wrapper.ts';
import { KvdError } from '../../../src/errors.ts';
import {
  blockPlan,
  blockTensor,
  type DeviceHouse,
  openDeviceHouse,
  patternBytes,
  wrapperOf,
} from '../../support/device-house.ts';
import { rejects } from '../../support/rejects.ts';
import { suite } from '../../support/suite.ts';

const BLOCK_BYTES = 4096;
const PLAN = blockPlan({ blockBytes: BLOCK_BYTES, engineBlockCount: 16, objectBlockCount: 4 });

const gather = (ids: number[], offset = 0): CopyJob => ({
  direction: 'gather',
  objectOffsets: Float64Array.of(offset),
  blockIds: [Uint32Array.from(ids)],
});

async function inHouse(body: (house: DeviceHouse) => Promise<void>): Promise<void> {
  const house = await openDeviceHouse();
  try {
    await body(house);
  } finally {
    await house.close();
  }
}

async function refuses(house: DeviceHouse, wrapper: TensorWrapper, expected: RegExp) {
  const error = await rejects(house.device.openInstance([wrapper]), expected);
  return (error as KvdError).code;
}

const hasMapping = (name: string): boolean =>
  fs.readFileSync('/proc/self/maps', 'utf8').includes(name);

suite('CPU device: registration', (test) => {
  test('a tensor is mapped at its offset, and unmapped when the instance closes', () =>
    inHouse(async (house) => {
      const content = patternBytes(100 + 16 * BLOCK_BYTES, 1);
      const segment = house.segment(content);
      const instance = await house.device.openInstance([
        wrapperOf(
          { name: segment.name, sizeBytes: content.length },
          { shape: [16, BLOCK_BYTES], storageOffset: 100 },
        ),
      ]);
      assert.ok(hasMapping(segment.name));
      const { dev, ino } = fs.statSync(segment.path);
      assert.equal(instance.mappingIds, [`${segment.name}:${dev}:${ino}:${content.length}`]);
      instance.addPlan(PLAN);
      await instance.submit(gather([15, 0, 3, 8]));
      const stored = house.memory.view(0, PLAN.objectSizeBytes);
      for (const [k, id] of [15, 0, 3, 8].entries()) {
        const at = 100 + id * BLOCK_BYTES;
        const block = stored.subarray(k * BLOCK_BYTES, (k + 1) * BLOCK_BYTES);
        assert.equal(Buffer.compare(block, content.subarray(at, at + BLOCK_BYTES)), 0);
      }
      await instance.close();
      assert.not.ok(hasMapping(segment.name));
    }));

  test('tensors that share a segment share its mapping, at the largest size named', () =>
    inHouse(async (house) => {
      const segment = house.segment(patternBytes(8192, 1));
      const small = wrapperOf({ name: segment.name, sizeBytes: 4096 }, { shape: [4096] });
      const large = wrapperOf(
        { name: segment.name, sizeBytes: 8192 },
        { shape: [4096], storageOffset: 4096 },
      );
      const instance = await house.device.openInstance([small, large]);
      assert.is(instance.mappingIds.length, 1);
      assert.match(instance.mappingIds[0] as string, /:8192$/);
      assert.is(instance.tensors.length, 2);
      await instance.close();
    }));

  test('an empty tensor needs no segment', () =>
    inHouse(async (house) => {
      const empty = wrapperOf({ name: '', sizeBytes: 0 }, { shape: [0, 16] });
      const instance = await house.device.openInstance([empty]);
      assert.equal(instance.mappingIds, []);
      await instance.close();
    }));

  test('a segment shorter than announced is refused', () =>
    inHouse(async (house) => {
      const segment = house.segment(new Uint8Array(4096));
      const wrapper = wrapperOf({ name: segment.name, sizeBytes: 4097 }, { shape: [4097] });
      const code = await refuses(house, wrapper, /4097 bytes of .*shorter than announced/);
      assert.is(code, 'ERR_DEVICE_MEMORY');
      assert.not.ok(hasMapping(segment.name), 'nothing stays mapped');
    }));

  test('when one segment of several is missing, the others are unmapped again', () =>
    inHouse(async (house) => {
      const segment = house.segment(new Uint8Array(4096));
      const good = wrapperOf({ name: segment.name, sizeBytes: 4096 }, { shape: [4096] });
      const missing = wrapperOf(
        { name: '/lmcache_kv_test_missing', sizeBytes: 4096 },
        { shape: [4096] },
      );
      await rejects(house.device.openInstance([good, missing]), /ENOENT/);
      assert.not.ok(hasMapping(segment.name));
    }));

  test('when an instance gets no queue, its segments are unmapped again', () =>
    inHouse(async (house) => {
      const segment = house.segment(new Uint8Array(4096));
      const wrapper = wrapperOf({ name: segment.name, sizeBytes: 4096 }, { shape: [4096] });
      const openLane = house.shim.openLane.bind(house.shim);
      house.shim.openLane = () => {
        throw new Error('no queue');
      };
      await rejects(house.device.openInstance([wrapper]), /no queue/);
      house.shim.openLane = openLane;
      assert.not.ok(hasMapping(segment.name));
      assert.is(house.device.status()['instance_count'], 0);
    }));

  test('names that could lead elsewhere are refused unopened', () =>
    inHouse(async (house) => {
      const names = [
        '/lmcache_kv_/../../etc/passwd',
        '/lmcache_kv_a/b',
        '/etc/passwd',
        'lmcache_kv_1_1',
        '/lmcache_l1_pool_1',
        '/lmcache_kv_',
        '/lmcache_kv_\0',
        '/lmcache_kv_ä',
        `/lmcache_kv_${'x'.repeat(201)}`,
        '',
      ];
      for (const name of names) {
        const wrapper = wrapperOf({ name, sizeBytes: 16 }, { shape: [16] });
        const code = await refuses(house, wrapper, /segment name .*expected \/lmcache_kv_/);
        assert.is(code, 'ERR_DEVICE_MEMORY', name);
      }
    }));

  test('a symbolic link in place of a segment is refused', () =>
    inHouse(async (house) => {
      const segment = house.segment(new Uint8Array(4096));
      const name = `${segment.name}_link`;
      fs.symlinkSync(segment.path, `/dev/shm${name}`);
      try {
        const wrapper = wrapperOf({ name, sizeBytes: 4096 }, { shape: [4096] });
        await refuses(house, wrapper, /ELOOP/);
      } finally {
        fs.rmSync(`/dev/shm${name}`);
      }
    }));

  test('views that leave their segment, or are no views, are refused', () =>
    inHouse(async (house) => {
      const segment = house.segment(new Uint8Array(4096));
      const at = { name: segment.name, sizeBytes: 4096 };
      const cases: [Partial<TensorWrapper>, RegExp][] = [
        [{ shape: [4097], stride: [1] }, /needs 4097 bytes/],
        [{ shape: [2, 16], stride: [4096, 1] }, /needs 4112 bytes/],
        [{ shape: [4096], stride: [1], storageOffset: 1 }, /needs 4097 bytes/],
        [{ shape: [1025], stride: [1], dtype: 'float32' }, /needs 4100 bytes/],
        [{ shape: [16], stride: [-1] }, /must be whole numbers/],
        [{ shape: [16], stride: [0.5] }, /must be whole numbers/],
        [{ shape: [16], stride: [1, 1] }, /1 dimensions with 2 strides/],
        [{ shape: [2 ** 40, 2 ** 40], stride: [2 ** 40, 1] }, /beyond any memory/],
        [{ shape: new Array(17).fill(1), stride: new Array(17).fill(1) }, /17 dimensions/],
      ];
      for (const [change, expected] of cases) {
        const wrapper = { ...wrapperOf(at, { shape: [16] }), ...change } as TensorWrapper;
        assert.is(await refuses(house, wrapper, expected), 'ERR_DEVICE_MEMORY');
      }
    }));

  test('a plan that leaves its tensor or its object is refused', () =>
    inHouse(async (house) => {
      const { wrapper } = blockTensor(house, patternBytes(16 * BLOCK_BYTES, 1), BLOCK_BYTES);
      const instance = await house.device.openInstance([wrapper]);
      const isLayoutError = (error: unknown): boolean =>
        error instanceof KvdError && error.code === 'ERR_LAYOUT';
      const [group] = PLAN.groups as [(typeof PLAN.groups)[number]];
      const bad = [
        { ...PLAN, groups: [{ ...group, engineBlockCount: 17 }] },
        { ...PLAN, objectSizeBytes: PLAN.objectSizeBytes - 1 },
        { ...PLAN, groups: [{ ...group, runBytes: Number.NaN }] },
        { ...PLAN, groups: [{ ...group, runBytes: -1 }] },
        { ...PLAN, groups: [{ ...group, outerCount: 2, engineOuterStrideBytes: 1 }] },
      ];
      for (const plan of bad) assert.throws(() => instance.addPlan(plan), isLayoutError);
      instance.addPlan(PLAN);
      await instance.close();
    }));
});

suite('CPU device: jobs that cannot run', (test) => {
  test('a segment cut short fails its jobs, and the other instances go on', () =>
    inHouse(async (house) => {
      const content = patternBytes(16 * BLOCK_BYTES, 1);
      const victim = blockTensor(house, content, BLOCK_BYTES);
      const other = blockTensor(house, content, BLOCK_BYTES);
      const instance = await house.device.openInstance([victim.wrapper]);
      const neighbour = await house.device.openInstance([other.wrapper]);
      instance.addPlan(PLAN);
      neighbour.addPlan(PLAN);
      victim.segment.truncate(BLOCK_BYTES);
      for (const direction of ['gather', 'scatter'] as const) {
        const job = { ...gather([12, 13, 14, 15]), direction };
        const error = await rejects(instance.submit(job), /shorter than when it was registered/);
        assert.is((error as KvdError).code, 'ERR_DEVICE_COPY');
      }
      await neighbour.submit(gather([1, 2, 3, 4]));
      const stored = house.memory.view(0, BLOCK_BYTES);
      assert.is(Buffer.compare(stored, content.subarray(BLOCK_BYTES, 2 * BLOCK_BYTES)), 0);
      await instance.close();
    }));

  test('a segment cut short while jobs run never ends the process', () =>
    inHouse(async (house) => {
      const content = patternBytes(16 * BLOCK_BYTES, 1);
      const { segment, wrapper } = blockTensor(house, content, BLOCK_BYTES);
      const instance = await house.device.openInstance([wrapper]);
      instance.addPlan(PLAN);
      let failedCount = 0;
      for (let round = 0; round < 50; round += 1) {
        const jobs = Array.from({ length: 40 }, () =>
          instance.submit(gather([12, 13, 14, 15])).catch((error: KvdError) => {
            assert.is(error.code, 'ERR_DEVICE_COPY');
            failedCount += 1;
          }),
        );
        segment.truncate(BLOCK_BYTES);
        await Promise.all(jobs);
        segment.truncate(content.length);
      }
      assert.ok(failedCount > 0, 'no job met the missing memory');
      await instance.submit(gather([0, 1, 2, 3]));
      await instance.close();
    }));

  test('an unlinked segment stays usable until the instance closes', () =>
    inHouse(async (house) => {
      const { segment, wrapper } = blockTensor(
        house,
        patternBytes(16 * BLOCK_BYTES, 1),
        BLOCK_BYTES,
      );
      const instance = await house.device.openInstance([wrapper]);
      instance.addPlan(PLAN);
      segment.remove();
      await instance.submit(gather([0, 1, 2, 3]));
      await instance.close();
    }));

  test('events are the stub that CPU clients send', () =>
    inHouse(async (house) => {
      const instance = await house.device.openInstance([]);
      const text = (bytes: Uint8Array): string => new TextDecoder().decode(bytes);
      assert.is(text(house.device.anyEvent()), 'stub_ipc_handle');
      assert.is(text(instance.completionEvent()), 'stub_ipc_handle');
      instance.waitForEvent(new Uint8Array(3));
      await instance.close();
    }));
});
