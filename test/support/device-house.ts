/**
 * What device tests need: the shim, an arena, real segments in /dev/shm as a client would make
 * them, and a promise that all of it is gone afterwards.
 */
import fs from 'node:fs';
import { openCpuDevice } from '../../src/device/cpu-shm.ts';
import type { CopyPlan, Device, KernelGroupPlan } from '../../src/device/device.ts';
import { Shim } from '../../src/device/shim.ts';
import { type CpuShmWrapper, DTYPE_SIZE_BYTES } from '../../src/device/tensor-wrapper.ts';
import { type L1Memory, openL1Memory } from '../../src/storage/l1-memory/l1-memory.ts';
import { silentLogger } from './silent-logger.ts';

let segmentCount = 0;

/** A segment of a client; `bytes` writes and reads its file, which is the same memory. */
export class ClientSegment {
  readonly name: string;
  readonly path: string;

  constructor(content: Uint8Array) {
    segmentCount += 1;
    this.name = `/lmcache_kv_test${process.pid}_${segmentCount}`;
    this.path = `/dev/shm${this.name}`;
    fs.writeFileSync(this.path, content, { flag: 'wx', mode: 0o600 });
  }

  read(): Uint8Array {
    return new Uint8Array(fs.readFileSync(this.path));
  }

  truncate(sizeBytes: number): void {
    fs.truncateSync(this.path, sizeBytes);
  }

  remove(): void {
    fs.rmSync(this.path, { force: true });
  }
}

export interface DeviceHouse {
  readonly shim: Shim;
  readonly memory: L1Memory;
  readonly device: Device;
  /** A segment that is removed when the house closes. */
  segment(content: Uint8Array): ClientSegment;
  close(): Promise<void>;
}

export async function openDeviceHouse(
  options: { sizeBytes?: number; workerCount?: number; jobCountMax?: number } = {},
): Promise<DeviceHouse> {
  const { sizeBytes = 1 << 20, workerCount = 2, jobCountMax = 16_384 } = options;
  const shim = Shim.load();
  const log = silentLogger;
  const memory = await openL1Memory({ shim, log, sizeBytes, hugePages: 'none', shm: null });
  const device = openCpuDevice({ shim, arena: memory.memory, log, workerCount, jobCountMax });
  const segments: ClientSegment[] = [];
  return {
    shim,
    memory,
    device,
    segment(content) {
      const segment = new ClientSegment(content);
      segments.push(segment);
      return segment;
    },
    async close() {
      await device.close();
      await memory.close();
      for (const segment of segments) segment.remove();
    },
  };
}

/** Bytes that differ from place to place and from seed to seed. */
export function patternBytes(length: number, seed: number): Uint8Array {
  const bytes = new Uint8Array(length);
  let state = (seed * 2_654_435_761 + 1) >>> 0;
  for (let i = 0; i < length; i += 1) {
    state = (Math.imul(state, 1_664_525) + 1_013_904_223) >>> 0;
    bytes[i] = state >>> 24;
  }
  return bytes;
}

export function wrapperOf(
  segment: { readonly name: string; readonly sizeBytes: number },
  geometry: Partial<CpuShmWrapper> & Pick<CpuShmWrapper, 'shape'>,
): CpuShmWrapper {
  const { shape } = geometry;
  return {
    kind: 'cpu-shm',
    dtype: 'uint8',
    stride: shape.map((_, d) => shape.slice(d + 1).reduce((a, b) => a * b, 1)),
    storageOffset: 0,
    deviceUuid: 'cpu',
    shmName: segment.name,
    sizeBytes: segment.sizeBytes,
    ...geometry,
  };
}

/** A contiguous tensor `[blockCount, blockBytes]` of uint8 in a segment of its own. */
export function blockTensor(house: DeviceHouse, content: Uint8Array, blockBytes: number) {
  const segment = house.segment(content);
  const shape = [content.length / blockBytes, blockBytes];
  const sizeBytes = content.length * DTYPE_SIZE_BYTES.uint8;
  return { segment, wrapper: wrapperOf({ name: segment.name, sizeBytes }, { shape }) };
}

/** Objects of `objectBlockCount` whole blocks of the only tensor. */
export function blockPlan(options: {
  readonly blockBytes: number;
  readonly engineBlockCount: number;
  readonly objectBlockCount: number;
}): CopyPlan {
  const { blockBytes, engineBlockCount, objectBlockCount } = options;
  const group: KernelGroupPlan = {
    planes: [
      {
        tensorIndex: 0,
        engineOffsetBytes: 0,
        engineBlockStrideBytes: blockBytes,
        objectOffsetBytes: 0,
      },
    ],
    objectBlockStrideBytes: blockBytes,
    outerCount: 1,
    engineOuterStrideBytes: 0,
    objectOuterStrideBytes: 0,
    innerCount: 1,
    engineInnerStrideBytes: 0,
    objectInnerStrideBytes: 0,
    runBytes: blockBytes,
    objectBlockCount,
    engineBlockCount,
  };
  return { groups: [group], objectSizeBytes: blockBytes * objectBlockCount };
}
