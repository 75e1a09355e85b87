/**
 * After how much time, and how many other chunks, a chunk is wanted again, wherever it was in
 * between (spec observability 5.3). That is what the size of a cache is about: one that keeps as
 * many chunks as the gap says has the hit.
 *
 * Every chunk moves its tenant's access count, sampled or not; a write moves the anchor from which
 * a gap counts and records nothing. Series are for each tenant and have many lines, so fewer
 * tenants than elsewhere have their own; the others share one series and one access count.
 */
import type { Subscriber } from '../event-bus.ts';
import type { ChunkRange } from '../events.ts';
import { ENGINE } from './catalogue/engine.ts';
import { elapsedSeconds } from './elapsed.ts';
import {
  hashThresholdOf,
  hashWordAt,
  isSampled,
  type Random,
  systemRandom,
} from './key-sampling.ts';
import { LabelBounds } from './label-bounds.ts';
import type { MetricRegistry } from './registry.ts';
import { ReuseTable } from './reuse-table.ts';

const TRACKED_COUNT_MAX = 100_000;
/** Two histograms of 200 tenants are half a megabyte of text in each scrape. */
const SALT_COUNT_MAX = 200;

export interface SmLifecycleOptions {
  readonly registry: MetricRegistry;
  /** `--metrics-sample-rate`. */
  readonly sampleRate: number;
  readonly random?: Random;
  readonly trackedCountMax?: number;
}

export function smLifecycle(options: SmLifecycleOptions): Subscriber {
  const reuses = new Reuses(options);
  return {
    name: 'SMLifecycleSubscriber',
    subscriptions: {
      'sm.read.prefetched_finished': ({ succeeded }, now) => reuses.used(succeeded, now, true),
      'sm.write.finished': ({ succeeded }, now) => reuses.used(succeeded, now, false),
    },
  };
}

class Reuses {
  readonly #threshold: number;
  readonly #table: ReuseTable;
  readonly #bounds = new LabelBounds(SALT_COUNT_MAX);
  readonly #accessCounts = new Map<string, number>();
  readonly #gapSeconds;
  readonly #gapObjects;

  constructor(options: SmLifecycleOptions) {
    const { registry, sampleRate, random = systemRandom } = options;
    this.#threshold = hashThresholdOf(sampleRate);
    this.#table = new ReuseTable(options.trackedCountMax ?? TRACKED_COUNT_MAX, random);
    this.#gapSeconds = registry.histogram(ENGINE.realReuseGap);
    this.#gapObjects = registry.histogram(ENGINE.realReuseGapObjects);
  }

  used(ranges: readonly ChunkRange[], now: number, isRead: boolean): void {
    for (const range of ranges) {
      const { bytes, hashSizeBytes } = range.hashes;
      const salt = this.#bounds.bound('cache_salt', range.cacheSalt);
      let accessCount = this.#accessCounts.get(salt) ?? 0;
      let offset = range.firstChunk * hashSizeBytes;
      for (let i = 0; i < range.chunkCount; i += 1, offset += hashSizeBytes) {
        accessCount += 1;
        if (!isSampled(hashWordAt(bytes, offset), this.#threshold)) continue;
        const hash = bytes.subarray(offset, offset + hashSizeBytes);
        const last = this.#table.find(nameOf(range.cacheSalt, hash));
        if (last && isRead) {
          this.#gapSeconds.record(elapsedSeconds(last.atSeconds, now), salt);
          this.#gapObjects.record(accessCount - last.accessCount, salt);
        }
        if (last) Object.assign(last, { atSeconds: now, accessCount });
        else this.#table.admit(nameOf(range.cacheSalt, hash), { atSeconds: now, accessCount });
      }
      this.#accessCounts.set(salt, accessCount);
    }
  }
}

function nameOf(salt: string, hash: Uint8Array): string {
  return salt + Buffer.from(hash.buffer, hash.byteOffset, hash.length).toString('latin1');
}
