/**
 * `kvd trace replay FILE`: makes the calls of a trace again, of a fresh storage room, each when it
 * was made (never earlier) or `--speed` times faster, one after the other.
 *
 *   exit code  0    every call that could be made was
 *              1    one has failed, or the file is no trace, or the room cannot be opened
 *              2    the command line
 *              130  broken off by a signal; what was measured until then is printed
 */
import fs from 'node:fs';
import path from 'node:path';
import { MessageChannel } from 'node:worker_threads';
import { type Clock, systemClock } from '../clock.ts';
import type { ServerConfig } from '../config/config.ts';
import { describeConfig } from '../config/describe-config.ts';
import { KvdError } from '../errors.ts';
import { createLogger, type Logger } from '../observability/log.ts';
import type { TraceRecord } from '../observability/trace-file/frames.ts';
import { describeStorageConfig } from '../observability/trace-file/storage-config.ts';
import { TraceReader } from '../observability/trace-file/trace-reader.ts';
import { CommandError } from './arguments.ts';
import { writeReport } from './report.ts';
import { summarizeTrace, type TraceSummary } from './trace-info.ts';
import { printable, traceProblem } from './trace-problem.ts';
import { parseReplayArguments, type ReplayArguments } from './trace-replay-arguments.ts';
import { readCall } from './trace-replay-calls.ts';
import { openReplayStorage } from './trace-replay-house.ts';
import {
  formatReplayCsv,
  formatReplayJson,
  formatReplayLine,
  type ReplayedRecord,
  ReplayStatistics,
  type ReplaySummary,
  replayReport,
} from './trace-replay-report.ts';
import type { ReplayStorage } from './trace-replay-storage.ts';

const EXIT_CODE_SIGNAL = 130;
/** Longest wait of one timer; they take 2^31 ms at most. */
const WAIT_MAX_MS = 60_000;
/** Lines that are written together. */
const LINES_BYTES = 64 * 1024;
const COMMAND = 'kvd trace replay';

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
  for (;;) {
    const leftMs = dueMs - clock.preciseMs();
    if (!(leftMs > 0) || signal.aborted) return;
    await new Promise<void>((resolve) => {
      const timer = clock.after(Math.min(Math.ceil(leftMs), WAIT_MAX_MS), resolve);
      signal.addEventListener('abort', () => {
        timer.cancel();
        resolve();
      });
    });
  }
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
