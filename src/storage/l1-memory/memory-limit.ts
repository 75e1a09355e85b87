/**
 * The memory limit of the container, so that an L1 that cannot fit is noticed at the start and not
 * by the OOM killer under load (field lessons 12.2).
 */
import { readFileSync } from 'node:fs';

/** cgroup v2 says `max` and v1 a number near 2^63 when there is no limit. */
const NO_LIMIT_FROM_BYTES = 2 ** 62;
const LIMIT_FILES = [
  '/sys/fs/cgroup/memory.max',
  '/sys/fs/cgroup/memory/memory.limit_in_bytes',
] as const;

/** Server memory besides L1: runtime, tables, queues. */
export const OVERHEAD_BYTES = 256 * 1024 * 1024;

/** Bytes that this process and its container may use; null = no limit is set or readable. */
export function readMemoryLimitBytes(files: readonly string[] = LIMIT_FILES): number | null {
  for (const file of files) {
    let text: string;
    try {
      text = readFileSync(file, 'utf8').trim();
    } catch {
      // Not this version of cgroups, or none: the next file may answer.
      continue;
    }
    const bytes = Number(text);
    return Number.isFinite(bytes) && bytes < NO_LIMIT_FROM_BYTES ? bytes : null;
  }
  return null;
}
