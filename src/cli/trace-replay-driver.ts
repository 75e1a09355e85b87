/**
 * Makes the calls of a trace, one after the other, each when it was made: never earlier, and later
 * when the one before took longer than in the recording.
 */
import type { Clock } from '../clock.ts';
import type { TraceRecord } from '../observability/trace-file/frames.ts';
import { printable } from './trace-problem.ts';
import { readCall } from './trace-replay-calls.ts';
import type { ReplayedRecord } from './trace-replay-report.ts';
import type { ReplayStorage } from './trace-replay-storage.ts';

/** Longest wait of one timer; they take 2^31 ms at most. */
const WAIT_MAX_MS = 60_000;

export interface ReplayRun {
  readonly records: AsyncIterable<TraceRecord>;
  readonly storage: ReplayStorage;
  readonly clock: Clock;
  /** Infinite: nothing waits. */
  readonly speed: number;
  readonly signal: AbortSignal;
  readonly onRecord: (record: ReplayedRecord) => void;
  readonly warn: (message: string) => void;
}

/** Answers how many seconds it took. */
export async function replayTrace(run: ReplayRun): Promise<number> {
  const { records, clock, speed, signal, onRecord } = run;
  const startMs = clock.preciseMs();
  for await (const record of records) {
    await waitUntil(startMs + (record.monoSeconds * 1000) / speed, clock, signal);
    if (signal.aborted) break;
    onRecord(await replayRecord(run, record));
  }
  return (clock.preciseMs() - startMs) / 1000;
}

/** At least one turn of the event loop, so that loads and stores of slower tiers go on. */
async function waitUntil(dueMs: number, clock: Clock, signal: AbortSignal): Promise<void> {
  await new Promise((resolve) => setImmediate(resolve));
  // A timer may come a little early.
  for (let leftMs = dueMs - clock.preciseMs(); leftMs > 0 && !signal.aborted; ) {
    await sleep(Math.min(Math.ceil(leftMs), WAIT_MAX_MS), clock, signal);
    leftMs = dueMs - clock.preciseMs();
  }
}

function sleep(delayMs: number, clock: Clock, signal: AbortSignal): Promise<void> {
  return new Promise((resolve) => {
    const end = () => {
      timer.cancel();
      signal.removeEventListener('abort', end);
      resolve();
    };
    const timer = clock.after(delayMs, end);
    signal.addEventListener('abort', end);
  });
}

async function replayRecord(
  { storage, clock, warn }: ReplayRun,
  record: TraceRecord,
): Promise<ReplayedRecord> {
  const { qualname } = record;
  let startMs = clock.preciseMs();
  try {
    const call = readCall(record);
    if ('skipped' in call) {
      warn(`skipping ${printable(qualname)}: ${call.skipped}`);
      return { qualname, latencyMs: 0, outcome: 'skipped' };
    }
    const prepared = await storage.prepare(call);
    startMs = clock.preciseMs();
    prepared.run();
    const latencyMs = clock.preciseMs() - startMs;
    prepared.after();
    return { qualname, latencyMs, outcome: 'done' };
  } catch (error) {
    warn(`${printable(qualname)} failed: ${(error as Error).message}`);
    return { qualname, latencyMs: clock.preciseMs() - startMs, outcome: 'failed' };
  }
}
