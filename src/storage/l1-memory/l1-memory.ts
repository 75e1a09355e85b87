/**
 * Where the bytes of L1 lie (spec storage 4): anonymous memory, or one POSIX shared memory segment
 * that engines map themselves (engine-driven transport).
 *
 * Both only reserve addresses at start, so 100 GB open in milliseconds and an idle server stays
 * small; pages follow ahead of use (`device/host-memory.ts`). Offsets into the memory are the
 * business of the core's address allocator; here is only the ground that it divides.
 *
 * Which one: with `shm` the segment, and the name is what clients are told. When /dev/shm has no
 * room for it, a name that the user chose is a configuration error; a default name falls back to
 * anonymous memory with a warning, because the server works without it, only slower for
 * engine-driven workers.
 */
import type { HostMemory } from '../../device/host-memory.ts';
import type { Shim } from '../../device/shim.ts';
import { KvdError } from '../../errors.ts';
import type { Logger } from '../../observability/log.ts';
import { openAnonymousMemory } from './anonymous.ts';
import { openShmMemory } from './posix-shm.ts';

export interface L1Memory {
  readonly kind: 'anonymous' | 'posix-shm';
  readonly sizeBytes: number;
  /** Name that clients open, without slash; null when they cannot. */
  readonly shmName: string | null;
  /** The memory as devices copy to it. */
  readonly memory: HostMemory;
  /** Bytes from the start on that are in use or whose pages exist. */
  readonly preparedBytes: number;
  view(offset: number, length: number): Uint8Array;
  /** To be called as the end of the highest object grows. */
  prepareAhead(highWaterBytes: number): void;
  /** Unlinks the name, then unmaps. Devices that copy to the memory must be closed before. */
  close(): Promise<void>;
}

export type HugePages = 'transparent' | 'explicit' | 'none';

export interface ShmOptions {
  /** As the user gave it; null = the default name with our pid. */
  readonly name: string | null;
  /** Permission bits, e.g. 0o600. */
  readonly mode: number;
}

export interface L1MemoryOptions {
  readonly shim: Shim;
  readonly log: Logger;
  readonly sizeBytes: number;
  readonly hugePages: HugePages;
  /** Null: no shared memory. */
  readonly shm: ShmOptions | null;
}

export async function openL1Memory(options: L1MemoryOptions): Promise<L1Memory> {
  const { shm, log, ...rest } = options;
  if (shm === null) return openAnonymousMemory(rest);
  try {
    return await openShmMemory({ ...rest, ...shm, log });
  } catch (error) {
    if (shm.name !== null || !(error instanceof KvdError)) throw error;
    log.warn(`engine-driven workers get no shared memory: ${error.message}`);
    return openAnonymousMemory(rest);
  }
}
