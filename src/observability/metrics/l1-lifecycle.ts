/**
 * How long objects live in L1, and whether they are wanted again after they have left (spec
 * observability 5.2). Only sampled objects are followed; the storage room samples.
 *
 *                 written                       removed
 *     unknown ───────────────▶ tracked ─────────────────────▶ gone ──▶ 300 s: unknown again
 *                              │  ▲  ▲ read, written: gap       │      (gap of exactly 300)
 *                              └──┘  └──────────────────────────┘
 *                                      written again: gap, at most 300
 *
 * Both maps are in order of time, so the oldest is in front: `gone` expires from there. What leaves
 * unnoticed (an event that the queue had no room for) would stay tracked for ever, so both are
 * bounded, and the oldest makes room.
 */
import type { Subscriber } from '../event-bus.ts';
import type { KeyReport, SampledKey } from '../events.ts';
import { KVD } from './catalogue/kvd.ts';
import { L1 } from './catalogue/l1.ts';
import { elapsedSeconds } from './elapsed.ts';
import type { MetricRegistry } from './registry.ts';

/** Longer gaps are not told apart. */
const GONE_SECONDS = 300;
/** Of each map; an entry takes about 300 bytes. */
const TRACKED_COUNT_MAX = 100_000;

interface Life {
  allocSeconds: number;
  lastSeconds: number;
}

export interface L1LifecycleOptions {
  readonly registry: MetricRegistry;
  readonly trackedCountMax?: number;
}

export function l1Lifecycle(options: L1LifecycleOptions): Subscriber {
  const lives = new Lives(options);
  const onWritten = ({ sampledKeys }: KeyReport, now: number) => lives.written(sampledKeys, now);
  return {
    name: 'L1LifecycleSubscriber',
    subscriptions: {
      'l1.read.finished': ({ sampledKeys }, now) => lives.read(sampledKeys, now),
      'l1.write.finished': onWritten,
      'l1.write_finished_and_read_reserved': onWritten,
      'l1.keys.evicted': ({ sampledKeys, isEverything }, now) => {
        if (isEverything) lives.removeAll(now);
        else for (const key of sampledKeys) lives.remove(nameOf(key), now);
        lives.sweep(now);
      },
    },
  };
}

class Lives {
  readonly #tracked = new Map<string, Life>();
  readonly #gone = new Map<string, number>();
  readonly #countMax: number;
  readonly #lifetime;
  readonly #idle;
  readonly #reuseGap;
  readonly #evictReuseGap;
  readonly #expired;

  constructor({ registry, trackedCountMax = TRACKED_COUNT_MAX }: L1LifecycleOptions) {
    this.#countMax = trackedCountMax;
    this.#lifetime = registry.histogram(L1.chunkLifetime);
    this.#idle = registry.histogram(L1.chunkIdleBeforeEvict);
    this.#reuseGap = registry.histogram(L1.chunkReuseGap);
    this.#evictReuseGap = registry.histogram(L1.chunkEvictReuseGap);
    this.#expired = registry.counter(KVD.expiredPending);
  }

  read(keys: readonly SampledKey[], now: number): void {
    for (const key of keys) {
      const life = this.#tracked.get(nameOf(key));
      if (!life) continue;
      this.#reuseGap.record(elapsedSeconds(life.lastSeconds, now));
      life.lastSeconds = now;
    }
  }

  written(keys: readonly SampledKey[], now: number): void {
    for (const key of keys) {
      const name = nameOf(key);
      const goneSeconds = this.#gone.get(name);
      if (goneSeconds !== undefined) {
        this.#gone.delete(name);
        this.#evictReuseGap.record(Math.min(elapsedSeconds(goneSeconds, now), GONE_SECONDS));
      }
      const life = this.#tracked.get(name);
      if (life) {
        this.#reuseGap.record(elapsedSeconds(life.lastSeconds, now));
        life.allocSeconds = now;
        life.lastSeconds = now;
      } else {
        this.#makeRoom(this.#tracked, 'l1_tracked');
        this.#tracked.set(name, { allocSeconds: now, lastSeconds: now });
      }
    }
    this.sweep(now);
  }

  remove(name: string, now: number): void {
    const life = this.#tracked.get(name);
    if (!life) return;
    this.#tracked.delete(name);
    this.#lifetime.record(elapsedSeconds(life.allocSeconds, now));
    this.#idle.record(elapsedSeconds(life.lastSeconds, now));
    this.#makeRoom(this.#gone, 'l1_gone');
    this.#gone.set(name, now);
  }

  removeAll(now: number): void {
    for (const name of [...this.#tracked.keys()]) this.remove(name, now);
  }

  sweep(now: number): void {
    for (const [name, goneSeconds] of this.#gone) {
      if (now - goneSeconds < GONE_SECONDS) return;
      this.#gone.delete(name);
      this.#evictReuseGap.record(GONE_SECONDS);
    }
  }

  #makeRoom(map: Map<string, unknown>, kind: string): void {
    if (map.size < this.#countMax) return;
    map.delete(map.keys().next().value as string);
    this.#expired.add(1, kind);
  }
}

function nameOf({ chunkHash, modelName, kvRank, objectGroupId, cacheSalt }: SampledKey): string {
  // With the length of the salt, so that no two keys have one name.
  return `${chunkHash}${kvRank},${objectGroupId},${cacheSalt.length},${cacheSalt}${modelName}`;
}
