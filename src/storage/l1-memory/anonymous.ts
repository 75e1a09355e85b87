/** L1 in anonymous memory of this process: reachable by our own copies only. */
import { HostMemory } from '../../device/host-memory.ts';
import { MEMORY_FLAGS, type Segment, type Shim, ShimError } from '../../device/shim.ts';
import { KvdError } from '../../errors.ts';
import { formatBytes, MIB } from '../../units.ts';
import type { HugePages, L1Memory } from './l1-memory.ts';

/** Spec storage 4.3: what `MAP_HUGETLB` maps by default on the platforms that we support. */
const HUGE_PAGE_BYTES = 2 * MIB;

export const HUGE_PAGE_FLAGS: Readonly<Record<HugePages, number>> = {
  transparent: MEMORY_FLAGS.transparentHuge,
  explicit: MEMORY_FLAGS.explicitHuge,
  none: 0,
};

export interface AnonymousOptions {
  readonly shim: Shim;
  readonly sizeBytes: number;
  readonly hugePages: HugePages;
}

/** Throws `ERR_CONFIG` when the system cannot give the memory. */
export function openAnonymousMemory(options: AnonymousOptions): L1Memory {
  const { shim, sizeBytes } = options;
  const memory = new HostMemory(shim, reserve(options), sizeBytes);
  return {
    kind: 'anonymous',
    sizeBytes,
    shmName: null,
    memory,
    get preparedBytes() {
      return memory.preparedBytes;
    },
    view: (offset, length) => memory.view(offset, length),
    prepareAhead: (highWaterBytes) => memory.prepareAhead(highWaterBytes),
    close: () => memory.close(),
  };
}

function reserve({ shim, sizeBytes, hugePages }: AnonymousOptions): Segment {
  try {
    return shim.reserveMemory(sizeBytes, HUGE_PAGE_FLAGS[hugePages]);
  } catch (error) {
    if (!(error instanceof ShimError)) throw error;
    const pageCount = Math.ceil(sizeBytes / HUGE_PAGE_BYTES);
    const remedy =
      hugePages === 'explicit'
        ? `it takes ${pageCount} free huge pages of 2 MiB (sysctl vm.nr_hugepages)`
        : 'lower --l1-size-gb, or see sysctl vm.overcommit_memory and ulimit -v';
    throw new KvdError(
      'ERR_CONFIG',
      `cannot reserve ${formatBytes(sizeBytes)} for L1: ${error.message}; ${remedy}`,
      { cause: error },
    );
  }
}
