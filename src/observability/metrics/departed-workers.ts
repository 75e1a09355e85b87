/**
 * Takes the series of workers away that are gone (spec observability 14.5): ids of workers grow
 * with every restart, and a series that nobody moves any more costs every scrape.
 *
 *     registered ──▶ here ──dropped──▶ leaving ──600 s──▶ forgotten
 *                      ▲                  │
 *                      └────registered────┘
 *
 * The delay lets a last scrape see the last numbers. Registrations are counted and not remembered
 * as yes or no: a full queue may deliver events in another order, and the sum does not mind.
 */
import type { Clock, Timer } from '../../clock.ts';
import type { Subscriber } from '../event-bus.ts';
import type { MetricRegistry } from './registry.ts';

const DEPARTED_SECONDS = 600;
/** The labels that name a worker. */
const WORKER_LABELS = ['engine_id', 'worker_id', 'instance_id'];
/** Workers that have left and still have series. */
const LEAVING_COUNT_MAX = 10_000;

export function departedWorkers(registry: MetricRegistry, clock: Clock): Subscriber {
  const workers = new Workers(registry, clock);
  return {
    name: 'DepartedWorkersSubscriber',
    counts: {
      'instance.registered': ({ instanceId }) => workers.count(`${instanceId}`, 1),
      'instance.dropped': ({ instanceId }) => workers.count(`${instanceId}`, -1),
    },
    shutdown: () => workers.close(),
  };
}

class Workers {
  readonly #registry: MetricRegistry;
  readonly #clock: Clock;
  readonly #registrationCounts = new Map<string, number>();
  /** When each left; who left first is in front. */
  readonly #leaving = new Map<string, number>();
  /** Set while somebody is leaving. */
  #timer: Timer | null = null;

  constructor(registry: MetricRegistry, clock: Clock) {
    this.#registry = registry;
    this.#clock = clock;
  }

  count(id: string, change: 1 | -1): void {
    const count = (this.#registrationCounts.get(id) ?? 0) + change;
    this.#registrationCounts.set(id, count);
    this.#leaving.delete(id);
    if (count > 0) return;
    this.#leaving.set(id, this.#clock.nowMs());
    if (this.#leaving.size > LEAVING_COUNT_MAX) this.#forgetFirst();
    this.#arm();
  }

  close(): void {
    this.#timer?.cancel();
    this.#timer = null;
  }

  /** For the one that left first. */
  #arm(): void {
    const [leftMs] = this.#leaving.values();
    if (this.#timer || leftMs === undefined) return;
    const delayMs = Math.max(0, leftMs + DEPARTED_SECONDS * 1000 - this.#clock.nowMs());
    this.#timer = this.#clock.after(delayMs, () => {
      this.#timer = null;
      this.#sweep();
      this.#arm();
    });
  }

  #sweep(): void {
    const dueMs = this.#clock.nowMs() - DEPARTED_SECONDS * 1000;
    for (const leftMs of this.#leaving.values()) {
      if (leftMs > dueMs) return;
      this.#forgetFirst();
    }
  }

  #forgetFirst(): void {
    const [id] = this.#leaving.keys();
    if (id === undefined) return;
    this.#leaving.delete(id);
    this.#registrationCounts.delete(id);
    this.#registry.forget(WORKER_LABELS, id);
  }
}
