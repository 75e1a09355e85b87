/** Runs a `CopyJob` in plain JavaScript: the meaning of a `CopyPlan`, without speed or threads. */
import { ok } from 'uvu/assert';
import type { CopyJob, CopyPlan, KernelGroupPlan } from '../../src/device/device.ts';

export interface CopyMemory {
  /** Bytes of each tensor from its first element on. */
  readonly engine: readonly Uint8Array[];
  readonly l1: Uint8Array;
}

export function runCopyJob(plan: CopyPlan, memory: CopyMemory, job: CopyJob): void {
  for (const [g, group] of plan.groups.entries()) {
    const ids = job.blockIds[g] as Uint32Array;
    for (const [object, offset] of job.objectOffsets.entries()) {
      if (offset < 0) continue;
      const skipped = job.direction === 'scatter' ? (job.skipBlocks?.[g]?.[object] ?? 0) : 0;
      for (let k = skipped; k < group.objectBlockCount; k += 1) {
        const blockId = ids[object * group.objectBlockCount + k] as number;
        ok(blockId < group.engineBlockCount, `block id ${blockId} beyond the cache`);
        copyBlock(group, memory, { isGather: job.direction === 'gather', blockId, k, offset });
      }
    }
  }
}

interface BlockCopy {
  readonly isGather: boolean;
  readonly blockId: number;
  /** Position of the block in its object. */
  readonly k: number;
  /** Of the object in L1. */
  readonly offset: number;
}

function copyBlock(group: KernelGroupPlan, memory: CopyMemory, copy: BlockCopy): void {
  for (const plane of group.planes) {
    const engine = memory.engine[plane.tensorIndex] as Uint8Array;
    const engineBase = plane.engineOffsetBytes + copy.blockId * plane.engineBlockStrideBytes;
    const objectBase =
      copy.offset + plane.objectOffsetBytes + copy.k * group.objectBlockStrideBytes;
    for (let outer = 0; outer < group.outerCount; outer += 1) {
      for (let inner = 0; inner < group.innerCount; inner += 1) {
        const from =
          engineBase + outer * group.engineOuterStrideBytes + inner * group.engineInnerStrideBytes;
        const to =
          objectBase + outer * group.objectOuterStrideBytes + inner * group.objectInnerStrideBytes;
        ok(from + group.runBytes <= engine.length, 'a run ends behind the tensor');
        if (copy.isGather) memory.l1.set(engine.subarray(from, from + group.runBytes), to);
        else engine.set(memory.l1.subarray(to, to + group.runBytes), from);
      }
    }
  }
}
