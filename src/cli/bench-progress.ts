/** Progress of a benchmark: a bar on stderr when that is a terminal, and otherwise nothing. */
import type { BenchOptions } from '../client/load/bench-run.ts';

export interface BenchProgress {
  readonly update: BenchOptions['onProgress'];
  /** Removes the bar and gives the cursor back. Safe to call twice. */
  stop(): void;
}

const NO_PROGRESS: BenchProgress = { update: () => {}, stop: () => {} };

export async function showProgress(
  bench: Pick<BenchOptions, 'firstSequence' | 'endSequence' | 'durationMs'>,
  isQuiet: boolean,
): Promise<BenchProgress> {
  if (isQuiet || process.stderr.isTTY !== true) return NO_PROGRESS;
  const { SingleBar, Presets } = (await import('cli-progress')).default;
  const total = bench.endSequence - bench.firstSequence;
  // Without a last request the time is what comes to its end.
  const isTimed = !Number.isFinite(total);
  const figures = isTimed
    ? '{value}/{total} s, {requests} requests'
    : '{value}/{total} requests, {eta_formatted} to go';
  const bar = new SingleBar(
    {
      format: `kvd bench |{bar}| ${figures}`,
      stream: process.stderr,
      hideCursor: true,
      clearOnComplete: true,
    },
    Presets.shades_classic,
  );
  bar.start(isTimed ? Math.ceil(bench.durationMs / 1000) : total, 0, { requests: 0 });
  return {
    update: (requests, elapsedMs) =>
      bar.update(isTimed ? Math.floor(elapsedMs / 1000) : requests, { requests }),
    stop: () => bar.stop(),
  };
}
