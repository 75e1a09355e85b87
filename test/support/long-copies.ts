/**
 * Copies that take so long that something can happen in the middle of them: 16 chunks of 8 MiB and
 * one thread are some hundred milliseconds where pages are new, and no less than 15 anywhere. The
 * copy is seen to run before; what holds afterwards holds also if it ended meanwhile.
 */
import { type KvGeometry, objectSizeOf, promptOf } from './fake-worker.ts';
import type { Flags, ServerProcess } from './server-process.ts';
import type { ChunkGeometry } from './slot-worker.ts';
import { until } from './waiting.ts';

const BEGIN_DEADLINE_MS = 10_000;
const END_DEADLINE_MS = 15_000;

/** For one prompt and a half. */
export const LONG_COPY_FLAGS: Flags = { '--l1-size-gb': 0.2, '--max-cpu-workers': 1 };

export const LONG_GEOMETRY: KvGeometry = {
  layerCount: 16,
  blockCount: 16,
  headCount: 8,
  slotsPerBlock: 16,
  headSize: 1024,
};
export const LONG_CHUNK: ChunkGeometry = { layerCount: 16, hiddenSize: 8192 };
export const LONG_CHUNKS = LONG_GEOMETRY.blockCount;
export const LONG_PROMPT = promptOf(7, LONG_CHUNKS);
export const LONG_SIZE = { objectSizeBytes: objectSizeOf(LONG_GEOMETRY) };

async function isCopying(server: ServerProcess): Promise<boolean> {
  return ((await server.status()).device['job_count_in_flight'] as number) > 0;
}

/** Does something in the middle of a copy, and waits for its end. */
export async function inCopy(server: ServerProcess, act: () => unknown): Promise<void> {
  await until(() => isCopying(server), BEGIN_DEADLINE_MS, 'the copy has begun');
  await act();
  await until(async () => !(await isCopying(server)), END_DEADLINE_MS, 'the copy ends');
}
