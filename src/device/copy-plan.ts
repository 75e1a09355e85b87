/**
 * A copy plan before it is bound: checked against the tensors that it names, and written down in
 * the words that `kv_plan_create` reads.
 *
 * Two checks, two owners. This one knows tensors, so it can say which plane is wrong and that a
 * plan leaves a tensor although it stays in the segment. The shim's knows segments and guards the
 * memory itself.
 */
import { KvdError } from '../errors.ts';
import type { CopyJob, CopyPlan, CopyPlane, KernelGroupPlan, MappedTensor } from './device.ts';
import { reachElements } from './tensor-geometry.ts';
import { DTYPE_SIZE_BYTES } from './tensor-wrapper.ts';

/** Where a tensor lies: segment of the instance, and bytes from its start to the first element. */
export interface TensorPlace {
  /** −1 for an empty tensor. */
  readonly segmentIndex: number;
  readonly offsetBytes: number;
}

/** Throws `ERR_LAYOUT` when a plane would touch bytes outside its tensor or its object. */
export function checkPlan(plan: CopyPlan, tensors: readonly MappedTensor[]): void {
  for (const [g, group] of plan.groups.entries()) {
    for (const [p, plane] of group.planes.entries()) {
      const problem = planeProblem(plan, group, plane, tensors);
      if (problem) throw new KvdError('ERR_LAYOUT', `kernel group ${g}, plane ${p}: ${problem}`);
    }
  }
}

function planeProblem(
  plan: CopyPlan,
  group: KernelGroupPlan,
  plane: CopyPlane,
  tensors: readonly MappedTensor[],
): string | null {
  const tensor = tensors[plane.tensorIndex];
  if (!tensor) return `tensor ${plane.tensorIndex} of ${tensors.length}`;
  const tensorBytes = reachElements(tensor) * DTYPE_SIZE_BYTES[tensor.dtype];
  const engineEnd =
    plane.engineOffsetBytes +
    reach(group.engineBlockCount, plane.engineBlockStrideBytes) +
    reach(group.outerCount, group.engineOuterStrideBytes) +
    reach(group.innerCount, group.engineInnerStrideBytes) +
    group.runBytes;
  if (group.engineBlockCount > 0 && !(engineEnd <= tensorBytes)) {
    return `blocks end at byte ${engineEnd} of a tensor of ${tensorBytes} bytes`;
  }
  const objectEnd =
    plane.objectOffsetBytes +
    reach(group.objectBlockCount, group.objectBlockStrideBytes) +
    reach(group.outerCount, group.objectOuterStrideBytes) +
    reach(group.innerCount, group.objectInnerStrideBytes) +
    group.runBytes;
  if (group.objectBlockCount > 0 && !(objectEnd <= plan.objectSizeBytes)) {
    return `blocks end at byte ${objectEnd} of an object of ${plan.objectSizeBytes} bytes`;
  }
  return null;
}

const reach = (count: number, strideBytes: number): number => Math.max(0, count - 1) * strideBytes;

/** The plan in the words of `kv_shim.h`. */
export function encodePlan(plan: CopyPlan, places: readonly TensorPlace[]): Float64Array {
  const words = [plan.groups.length, plan.objectSizeBytes];
  for (const group of plan.groups) {
    words.push(
      group.planes.length,
      group.objectBlockCount,
      group.engineBlockCount,
      group.objectBlockStrideBytes,
      group.outerCount,
      group.engineOuterStrideBytes,
      group.objectOuterStrideBytes,
      group.innerCount,
      group.engineInnerStrideBytes,
      group.objectInnerStrideBytes,
      group.runBytes,
    );
    for (const plane of group.planes) {
      const place = places[plane.tensorIndex] as TensorPlace;
      words.push(
        place.segmentIndex,
        place.offsetBytes + plane.engineOffsetBytes,
        plane.engineBlockStrideBytes,
        plane.objectOffsetBytes,
      );
    }
  }
  return Float64Array.from(words);
}

/** One list behind the other, as a job carries them; the list itself where there is only one. */
export function joinLists(lists: readonly Uint32Array[]): Uint32Array {
  if (lists.length === 1) return lists[0] as Uint32Array;
  const joined = new Uint32Array(lists.reduce((sum, list) => sum + list.length, 0));
  let at = 0;
  for (const list of lists) {
    joined.set(list, at);
    at += list.length;
  }
  return joined;
}

/** Null when the lists of a job fit the plan, else what does not. */
export function jobProblem(plan: CopyPlan, job: CopyJob): string | null {
  const objectCount = job.objectOffsets.length;
  if (job.blockIds.length !== plan.groups.length) {
    return `${job.blockIds.length} lists of block ids for ${plan.groups.length} kernel groups`;
  }
  for (const [g, group] of plan.groups.entries()) {
    const expected = objectCount * group.objectBlockCount;
    const count = job.blockIds[g]?.length;
    if (count !== expected) return `kernel group ${g}: ${count} block ids, expected ${expected}`;
    const skipCount = job.skipBlocks ? job.skipBlocks[g]?.length : objectCount;
    if (skipCount !== objectCount) {
      return `kernel group ${g}: ${skipCount} skip counts for ${objectCount} objects`;
    }
  }
  return null;
}
