/**
 * Keeps L1 below its watermark.
 *
 * Crossing the watermark wakes the controller at once (`notifyUsage`, called after every
 * reservation); a timer only looks after it and publishes the tick. Eviction runs in slices on the
 * event loop until usage is at most `watermark − ratio` of L1, so a LOOKUP never waits for more
 * than one slice. When a store finds no room, `makeRoom` evicts synchronously just enough for it.
 *
 *              usage ≥ watermark                 target reached, or nothing evictable
 *      idle ───────────────────────▶ evicting ─────────────────────────────────────▶ idle
 *                                      │  ▲
 *                                      └──┘ one slice per turn of the event loop
 *
 * A slice that throws is logged and counted, and the next tick starts afresh: the loop cannot die
 * silently. `isAlive` is what readiness asks (spec storage 10.6, 18.16, 18.17).
 */
import type { Clock, Timer } from '../clock.ts';
import type { EventBus } from '../observability/event-bus.ts';
import type { Logger } from '../observability/log.ts';
import type { L1Manager } from './l1-manager.ts';

/** 1 s, as in the reference: readers of `l1.eviction.loop_tick` expect this pace. */
const TICK_INTERVAL_MS = 1000;
/** About 2 ms of work: one LOOKUP must not wait longer behind eviction. */
const SLICE_FAMILY_BUDGET = 512;
/** What a store that finds no room may cost everybody else. */
const MAKE_ROOM_MS_MAX = 5;
/** A loop without a tick for this long is stuck (http.md 10.1). */
const STALE_AFTER_MS = 30_000;

/** Both in (0, 1]. */
export interface EvictionLimits {
  readonly watermarkRatio: number;
  readonly evictionRatio: number;
}

export interface EvictionControllerOptions extends EvictionLimits {
  readonly l1: L1Manager;
  readonly policy: string;
  readonly clock: Clock;
  readonly bus: EventBus;
  readonly log: Logger;
}

export class EvictionController {
  readonly #options: EvictionControllerOptions;
  #limits: EvictionLimits;
  readonly #timer: Timer;
  #sliceTimer: Timer | null = null;
  #lastTickMs: number;
  #failureCount = 0;
  /** `makeRoom` stopped in the middle of its walk. */
  #isRoomWalkOpen = false;
  /** Eviction has begun since the last tick. */
  #hasBegun = false;
  #isClosed = false;

  constructor(options: EvictionControllerOptions) {
    this.#options = options;
    this.#limits = options;
    this.#lastTickMs = options.clock.nowMs();
    this.#timer = options.clock.every(TICK_INTERVAL_MS, () => this.#tick());
  }

  /** Takes effect at once. */
  changeLimits(limits: Partial<EvictionLimits>): EvictionLimits {
    const { watermarkRatio, evictionRatio } = { ...this.#limits, ...limits };
    this.#limits = { watermarkRatio, evictionRatio };
    this.notifyUsage();
    return this.#limits;
  }

  /** Starts eviction when usage is at or above the watermark. Cheap; called on every store. */
  notifyUsage(): void {
    if (this.#sliceTimer || this.#isClosed || !this.#isOverWatermark()) return;
    this.#hasBegun = true;
    this.#sliceTimer = this.#options.clock.after(0, () => this.#runSlice(false));
  }

  /**
   * Evicts at least `bytes` now, if that much is evictable, and returns the bytes freed. When
   * everything old is held the walk takes long: it stops in time, and the next call goes on there.
   */
  makeRoom(bytes: number): number {
    const { l1, clock } = this.#options;
    const endMs = clock.preciseMs() + MAKE_ROOM_MS_MAX;
    let freedBytes = 0;
    while (freedBytes < bytes) {
      const slice = l1.evict(bytes - freedBytes, SLICE_FAMILY_BUDGET, this.#isRoomWalkOpen);
      freedBytes += slice.freedBytes;
      this.#isRoomWalkOpen = slice.result === 'more';
      if (!this.#isRoomWalkOpen || clock.preciseMs() >= endMs) break;
    }
    return freedBytes;
  }

  get isAlive(): boolean {
    return this.#options.clock.nowMs() - this.#lastTickMs < STALE_AFTER_MS;
  }

  /** `storage_manager.l1_eviction_controller` of `GET /status`. */
  status(): Record<string, unknown> {
    return {
      is_healthy: this.isAlive,
      thread_alive: this.isAlive,
      eviction_policy: this.#options.policy,
      trigger_watermark: this.#limits.watermarkRatio,
      eviction_ratio: this.#limits.evictionRatio,
      is_evicting: this.#sliceTimer !== null,
      failure_count: this.#failureCount,
    };
  }

  close(): void {
    this.#isClosed = true;
    this.#timer.cancel();
    this.#sliceTimer?.cancel();
    this.#sliceTimer = null;
  }

  #isOverWatermark(): boolean {
    const { l1 } = this.#options;
    return l1.totalBytes > 0 && l1.usedBytes >= this.#limits.watermarkRatio * l1.totalBytes;
  }

  #tick(): void {
    this.#lastTickMs = this.#options.clock.nowMs();
    const { l1, bus } = this.#options;
    const usage = l1.totalBytes > 0 ? l1.usedBytes / l1.totalBytes : 0;
    const { watermarkRatio: watermark } = this.#limits;
    const triggered = this.#hasBegun || this.#isOverWatermark();
    this.#hasBegun = false;
    bus.publish('l1.eviction.loop_tick', { usage, watermark, triggered });
    this.notifyUsage();
  }

  #runSlice(isContinued: boolean): void {
    this.#sliceTimer = null;
    const { l1, clock, log } = this.#options;
    const { watermarkRatio, evictionRatio } = this.#limits;
    const targetBytes = Math.max(0, watermarkRatio - evictionRatio) * l1.totalBytes;
    const excessBytes = l1.usedBytes - targetBytes;
    if (excessBytes <= 0 || this.#isClosed) return;
    try {
      const { result } = l1.evict(excessBytes, SLICE_FAMILY_BUDGET, isContinued);
      if (result === 'more') this.#sliceTimer = clock.after(0, () => this.#runSlice(true));
    } catch (error) {
      this.#failureCount += 1;
      log.limited('error', 'eviction-slice', `eviction slice failed: ${String(error)}`);
    }
  }
}
