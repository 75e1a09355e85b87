/**
 * What the bus hears of one transfer (spec observability 3, 14.7, 14.8).
 *
 *   submitted ──▶ start ──▶ end, with what was moved
 *       └────────────────▶ end, with the code of the error
 *
 * The three have one transfer id, because transfers of a session overlap. Exactly one end comes
 * for each transfer, whatever happens to it; what is said after it is not heard. Both transfer
 * paths report alike: PREPARE submits and starts, COMMIT ends.
 */
import type { Clock } from '../../clock.ts';
import { NO_SLOT } from '../../core/object-table.ts';
import { type ErrorCode, toKvdError } from '../../errors.ts';
import type { EventBus } from '../../observability/event-bus.ts';
import type { ChunkRange } from '../../observability/events.ts';
import type { CacheKey, InstanceId } from '../api.ts';

export interface TransferSubject {
  readonly kind: 'store' | 'retrieve';
  readonly key: CacheKey;
  readonly instanceId: InstanceId;
  /** `cpu`, `cuda:0`, … */
  readonly device: string;
}

/** What a transfer has moved. */
export interface TransferOutcome {
  readonly objectCount: number;
  readonly sizeBytes: number;
  /** Chunks of the prompt, without their names; see `chunkRuns`. */
  readonly ranges: readonly Pick<ChunkRange, 'hashes' | 'firstChunk' | 'chunkCount'>[];
}

/** What engine-driven workers move their bytes with. */
export const HOST = 'cpu';

const NOTHING: TransferOutcome = { objectCount: 0, sizeBytes: 0, ranges: [] };

/** In every event of a transfer. */
interface TransferNames {
  readonly sessionId: string;
  readonly transferId: number;
  readonly device: string;
  readonly engineId: string;
  readonly modelName: string;
}

export class TransferReport {
  static #latestId = 0;
  readonly #to: { readonly clock: Clock; readonly bus: EventBus };
  readonly #subject: TransferSubject;
  readonly #names: TransferNames;
  readonly #startMs: number;
  #isEnded = false;

  /** A request that has just come. */
  constructor(
    to: { readonly clock: Clock; readonly bus: EventBus },
    subject: TransferSubject,
    startMs: number = to.clock.preciseMs(),
  ) {
    TransferReport.#latestId += 1;
    this.#to = to;
    this.#subject = subject;
    this.#startMs = startMs;
    const { device, key, kind, instanceId } = subject;
    this.#names = {
      sessionId: key.requestId,
      transferId: TransferReport.#latestId,
      device,
      engineId: `${instanceId}`,
      modelName: key.modelName,
    };
    to.bus.publish(kind === 'store' ? 'mp.store.submitted' : 'mp.retrieve.submitted', this.#names);
  }

  /** It has been checked; what follows is its own time. */
  start(): void {
    const { kind } = this.#subject;
    this.#to.bus.publish(kind === 'store' ? 'mp.store.start' : 'mp.retrieve.start', this.#names);
  }

  end({ objectCount, sizeBytes, ranges }: TransferOutcome = NOTHING): void {
    const { kind, key } = this.#subject;
    const { modelName, cacheSalt } = key;
    if (!this.#publishEnd(objectCount, sizeBytes, null) || ranges.length === 0) return;
    const succeeded = ranges.map((range) => ({ modelName, cacheSalt, ...range }));
    const event = kind === 'store' ? 'sm.write.finished' : 'sm.read.prefetched_finished';
    this.#to.bus.publish(event, { succeeded, failedCount: 0 });
  }

  fail(error: ErrorCode): void {
    this.#publishEnd(0, 0, error);
  }

  /** False: it has ended before. */
  #publishEnd(objectCount: number, totalBytes: number, error: string | null): boolean {
    if (this.#isEnded) return false;
    this.#isEnded = true;
    const { bus, clock } = this.#to;
    const { kind, key } = this.#subject;
    const event = {
      ...this.#names,
      cacheSalt: key.cacheSalt,
      totalBytes,
      tokenCount: key.endToken - key.startToken,
      seconds: (clock.preciseMs() - this.#startMs) / 1000,
      error,
    };
    if (kind === 'store') bus.publish('mp.store.end', { ...event, storedCount: objectCount });
    else bus.publish('mp.retrieve.end', { ...event, retrievedCount: objectCount });
    return true;
  }
}

/** Runs a transfer; its failure ends the report, too. */
export async function reported<T>(report: TransferReport, run: () => Promise<T>): Promise<T> {
  try {
    return await run();
  } catch (error) {
    report.fail(toKvdError(error).code);
    throw error;
  }
}

/** The runs of consecutive chunks among those whose slot is given. */
export function chunkRuns(
  hashes: ChunkRange['hashes'],
  firstChunk: number,
  slots: Uint32Array,
): TransferOutcome['ranges'] {
  const runs: { hashes: ChunkRange['hashes']; firstChunk: number; chunkCount: number }[] = [];
  for (let i = 0; i < slots.length; i += 1) {
    if (slots[i] === NO_SLOT) continue;
    const start = i;
    while (i + 1 < slots.length && slots[i + 1] !== NO_SLOT) i += 1;
    runs.push({ hashes, firstChunk: firstChunk + start, chunkCount: i + 1 - start });
  }
  return runs;
}
