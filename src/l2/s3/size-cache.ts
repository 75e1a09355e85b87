/**
 * Sizes of objects that were seen a short time ago: a prefix of many chunks is looked up again and
 * again, and a HEAD costs a round trip and money. An entry is wrong when another server deletes the
 * object meanwhile; that load is a miss and drops it.
 */
import type { Clock } from '../../clock.ts';

const TTL_MS = 60_000;
/** About 200 bytes each. */
const ENTRY_COUNT_MAX = 100_000;

export class SizeCache {
  readonly #clock: Clock;
  readonly #entries = new Map<string, { readonly sizeBytes: number; readonly dueMs: number }>();

  constructor(clock: Clock) {
    this.#clock = clock;
  }

  get entryCount(): number {
    return this.#entries.size;
  }

  get(name: string): number | null {
    const entry = this.#entries.get(name);
    if (entry === undefined) return null;
    if (entry.dueMs > this.#clock.nowMs()) return entry.sizeBytes;
    this.#entries.delete(name);
    return null;
  }

  set(name: string, sizeBytes: number): void {
    // Out and in again: the map stays in the order of the due times.
    this.#entries.delete(name);
    if (this.#entries.size >= ENTRY_COUNT_MAX) {
      for (const [oldest] of this.#entries) {
        this.#entries.delete(oldest);
        break;
      }
    }
    this.#entries.set(name, { sizeBytes, dueMs: this.#clock.nowMs() + TTL_MS });
  }

  drop(name: string): void {
    this.#entries.delete(name);
  }
}
