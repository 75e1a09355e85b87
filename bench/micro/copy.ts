/**
 * Copies between engine tensors and L1, through the whole device room:
 *
 *   node bench/micro/copy.ts [--workers N] [--nice N]
 *
 * Shapes: 32 layers of [2, NB, 8, 16, 128] bfloat16 (a 32 MiB object per 256-token chunk), blocks
 * head-major and token-major, and a 4-layer model with 512 KiB objects. Blocks are in random order,
 * as after a while of serving. Prints GB/s of payload (read once, written once) per job size, and
 * the time from submit to the promise for the smallest job.
 */
import fs from 'node:fs';
import { parseArgs } from 'node:util';
import { openCpuDevice } from '../../src/device/cpu-shm.ts';
import type { CopyPlan, Device, DeviceInstance, KernelGroupPlan } from '../../src/device/device.ts';
import { Shim } from '../../src/device/shim.ts';
import type { CpuShmWrapper } from '../../src/device/tensor-wrapper.ts';
import { openL1Memory } from '../../src/storage/l1-memory/l1-memory.ts';
import { GIB, MIB } from '../../src/units.ts';
import { silentLogger } from '../../test/support/silent-logger.ts';
import { percentile } from '../../test/support/waiting.ts';

const { values } = parseArgs({
  options: { workers: { type: 'string' }, nice: { type: 'string' } },
});
const BLOCK_TOKENS = 16;
const CHUNK_BLOCKS = 16;
const ITEM_BYTES = 2;

interface Case {
  readonly name: string;
  readonly layerCount: number;
  readonly blockCount: number;
  readonly headCount: number;
  readonly headSize: number;
  readonly isHeadMajor: boolean;
}

/** The plan that kv-layout makes for `[2, NB, …]` tensors. */
function planOf(c: Case): CopyPlan {
  const runBytes = c.headSize * ITEM_BYTES;
  const tokenBytes = c.headCount * runBytes;
  const blockBytes = tokenBytes * BLOCK_TOKENS;
  const slabBytes = blockBytes * CHUNK_BLOCKS;
  const planes = [0, 1].flatMap((kv) =>
    Array.from({ length: c.layerCount }, (_, layer) => ({
      tensorIndex: layer,
      engineOffsetBytes: kv * c.blockCount * blockBytes,
      engineBlockStrideBytes: blockBytes,
      objectOffsetBytes: (kv * c.layerCount + layer) * slabBytes,
    })),
  );
  const pattern = c.isHeadMajor
    ? {
        outerCount: BLOCK_TOKENS,
        engineOuterStrideBytes: runBytes,
        objectOuterStrideBytes: tokenBytes,
        innerCount: c.headCount,
        engineInnerStrideBytes: runBytes * BLOCK_TOKENS,
        objectInnerStrideBytes: runBytes,
        runBytes,
      }
    : {
        outerCount: 1,
        engineOuterStrideBytes: 0,
        objectOuterStrideBytes: 0,
        innerCount: 1,
        engineInnerStrideBytes: 0,
        objectInnerStrideBytes: 0,
        runBytes: blockBytes,
      };
  const group: KernelGroupPlan = {
    planes,
    objectBlockStrideBytes: blockBytes,
    objectBlockCount: CHUNK_BLOCKS,
    engineBlockCount: c.blockCount,
    ...pattern,
  };
  return { groups: [group], objectSizeBytes: 2 * c.layerCount * slabBytes };
}

function createTensors(c: Case): { wrappers: CpuShmWrapper[]; files: string[] } {
  const shape = [2, c.blockCount, c.headCount, BLOCK_TOKENS, c.headSize];
  const stride = shape.map((_, d) => shape.slice(d + 1).reduce((a, b) => a * b, 1));
  const sizeBytes = shape.reduce((a, b) => a * b, 1) * ITEM_BYTES;
  const files: string[] = [];
  const wrappers = Array.from({ length: c.layerCount }, (_, layer): CpuShmWrapper => {
    const shmName = `/lmcache_kv_bench_${process.pid}_${layer}`;
    const file = `/dev/shm${shmName}`;
    fs.writeFileSync(file, new Uint8Array(sizeBytes).fill(layer + 1));
    files.push(file);
    const geometry = { dtype: 'bfloat16', shape, stride, storageOffset: 0 } as const;
    return { kind: 'cpu-shm', ...geometry, deviceUuid: 'cpu', shmName, sizeBytes };
  });
  return { wrappers, files };
}

/** The same permutation each time, so that runs compare. */
function shuffledBlocks(count: number): Uint32Array {
  const ids = Uint32Array.from({ length: count }, (_, i) => i);
  let seed = 1;
  for (let i = count - 1; i > 0; i -= 1) {
    seed = (Math.imul(seed, 1_103_515_245) + 12_345) >>> 0;
    const j = seed % (i + 1);
    [ids[i], ids[j]] = [ids[j] as number, ids[i] as number];
  }
  return ids;
}

async function seconds(run: () => Promise<unknown>): Promise<number> {
  const start = process.hrtime.bigint();
  await run();
  return Number(process.hrtime.bigint() - start) / 1e9;
}

async function measure(instance: DeviceInstance, c: Case, objectCount: number): Promise<string> {
  const plan = planOf(c);
  const ids = shuffledBlocks(c.blockCount);
  const places = Math.floor(c.blockCount / CHUNK_BLOCKS / objectCount);
  const cells: string[] = [];
  for (const direction of ['gather', 'scatter'] as const) {
    const rates: number[] = [];
    for (let run = 0; run < places + 16; run += 1) {
      const first = (run % places) * objectCount;
      const job = {
        direction,
        objectOffsets: Float64Array.from(
          { length: objectCount },
          (_, o) => (first + o) * plan.objectSizeBytes,
        ),
        blockIds: [ids.subarray(first * CHUNK_BLOCKS, (first + objectCount) * CHUNK_BLOCKS)],
      };
      const took = await seconds(() => instance.submit(job));
      // The first rounds meet pages for the first time.
      if (run >= places) rates.push((objectCount * plan.objectSizeBytes) / took / 1e9);
    }
    const [middle, best] = [percentile(rates, 0.5), Math.max(...rates)];
    cells.push(`${direction} ${middle.toFixed(2)} GB/s (best ${best.toFixed(2)})`);
  }
  return cells.join('  ');
}

async function smallJobs(instance: DeviceInstance, ids: Uint32Array): Promise<string> {
  const job = {
    direction: 'gather',
    objectOffsets: new Float64Array(1),
    blockIds: [ids.subarray(0, 1)],
  } as const;
  const single: number[] = [];
  for (let i = 0; i < 2000; i += 1) single.push(await seconds(() => instance.submit(job)));
  const burst = await seconds(() =>
    Promise.all(Array.from({ length: 10_000 }, () => instance.submit(job))),
  );
  const p = (q: number): string =>
    ((single[Math.floor(single.length * q)] as number) * 1e6).toFixed(1);
  single.sort((a, b) => a - b);
  const perJob = (burst * 100).toFixed(2);
  return `one at a time p50 ${p(0.5)} us, p99 ${p(0.99)} us; burst ${perJob} us/job`;
}

async function runCase(device: Device, c: Case): Promise<void> {
  const { wrappers, files } = createTensors(c);
  try {
    const instance = await device.openInstance(wrappers);
    instance.addPlan(planOf(c));
    const mib = planOf(c).objectSizeBytes / MIB;
    for (const objectCount of [1, 4]) {
      const result = await measure(instance, c, objectCount);
      console.log(`${c.name.padEnd(28)} ${objectCount} × ${mib} MiB  ${result}`);
    }
    await instance.close();
  } finally {
    for (const file of files) fs.rmSync(file, { force: true });
  }
}

async function runSmall(device: Device): Promise<void> {
  const c = {
    name: '',
    layerCount: 1,
    blockCount: 64,
    headCount: 1,
    headSize: 128,
    isHeadMajor: false,
  };
  const { wrappers, files } = createTensors(c);
  try {
    const instance = await device.openInstance(wrappers);
    const plan = planOf(c);
    const group = { ...(plan.groups[0] as KernelGroupPlan), objectBlockCount: 1 };
    instance.addPlan({ ...plan, groups: [group] });
    console.log(`smallest job (8 KiB)         ${await smallJobs(instance, shuffledBlocks(64))}`);
    await instance.close();
  } finally {
    for (const file of files) fs.rmSync(file, { force: true });
  }
}

const shim = Shim.load();
const memory = await openL1Memory({
  shim,
  log: silentLogger,
  sizeBytes: 1 * GIB,
  hugePages: 'transparent',
  shm: null,
});
const device = openCpuDevice({
  shim,
  arena: memory.memory,
  log: silentLogger,
  ...(values.workers === undefined ? {} : { workerCount: Number(values.workers) }),
  ...(values.nice === undefined ? {} : { workerNice: Number(values.nice) }),
});
const large = { layerCount: 32, blockCount: 192, headCount: 8, headSize: 128 };
const small = { layerCount: 4, blockCount: 1024, headCount: 2, headSize: 64 };
await runCase(device, { name: '32 layers, head-major', ...large, isHeadMajor: true });
await runCase(device, { name: '32 layers, token-major', ...large, isHeadMajor: false });
await runCase(device, { name: '4 layers, head-major', ...small, isHeadMajor: true });
await runCase(device, { name: '4 layers, token-major', ...small, isHeadMajor: false });
await runSmall(device);
await device.close();
await memory.close();
