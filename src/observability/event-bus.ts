/**
 * The event bus: rooms publish, observers listen, and no room ever waits for an observer.
 *
 *   publish ─┬─▶ followers           at once, inside of publish: those who must see every event in
 *            │                       the order in which it happens (KV events)
 *            ├─▶ `counts`            at once: counters of the subscribers
 *            └─▶ queue ─▶ drain ─▶ `subscriptions`   later, in slices of the event loop
 *                  └ full: the event is lost for them, and counted for everybody who misses it
 *
 * So counters are exact at any moment, whatever happens (field lesson 13.5); histograms, spans and
 * log lines of an overload are lost, visibly. A listener that throws is counted under its
 * subscriber's name, and everybody else goes on. Nobody listens to an event: `publish` is one look
 * into a table.
 *
 * `publish` gets an event as it is and keeps it (events.ts says why nobody may change it), so it
 * costs well under a microsecond; the time of the event is taken there.
 */
import { type Clock, systemClock } from '../clock.ts';
import type { EventCatalogue, EventName } from './events.ts';
import type { Logger } from './log.ts';

/** `atSeconds`: when it was published, wall clock, to the microsecond. */
export type Listener<N extends EventName> = (event: EventCatalogue[N], atSeconds: number) => void;
export type Subscriptions = { readonly [N in EventName]?: Listener<N> };

export interface Subscriber {
  /** `subscriber_name` of the self metrics. */
  readonly name: string;
  /** Adds to counters: gets every event, when it happens. Cheap: the publisher waits for it. */
  readonly counts?: Subscriptions;
  /** Everything else: gets events in order, and loses those for which the queue has no room. */
  readonly subscriptions?: Subscriptions;
  /** After its last event. */
  shutdown?(): void | Promise<void>;
}

export interface EventBusOptions {
  readonly clock?: Clock;
  /** Events that wait for the drain; 0 = none ever does, so only counters live. */
  readonly queueSize?: number;
  readonly log?: Logger;
}

export const EVENT_QUEUE_SIZE = 10_000;
/** Nobody looks at metrics, spans and lines sooner. */
const DRAIN_DELAY_MS = 10;
const HURRY_DEPTH_MAX = 1000;
/** What a request may wait behind the drain. */
const SLICE_MS = 2;
/** Events between two looks at the clock. */
const EVENTS_PER_LOOK = 32;
/** The wall clock counts whole milliseconds; beyond that somebody has set it. */
const CLOCK_TOLERANCE_MS = 2;
/** Consumed entries at the head of the queue that are worth moving the rest for. */
const COMPACT_COUNT = 4096;

type AnyListener = (event: never, atSeconds: number) => void;
interface Entry {
  readonly subscriber: Subscriber;
  readonly listener: AnyListener;
}

class Listeners {
  readonly followers: ((event: never) => void)[] = [];
  counts: readonly Entry[] = [];
  others: readonly Entry[] = [];

  get isEmpty(): boolean {
    return this.followers.length + this.counts.length + this.others.length === 0;
  }
}

export class EventBus {
  readonly #clock: Clock;
  readonly #queueSize: number;
  /** Of the queue, from which on the drain is in a hurry. */
  readonly #hurryDepth: number;
  readonly #log: Logger | null;
  readonly #listeners = new Map<EventName, Listeners>();
  readonly #subscribers: Subscriber[] = [];
  readonly #lost = new Map<string, number>();
  readonly #exceptions = new Map<string, number>();
  /** The queue: three lists of equal length, consumed up to `#head`. */
  #names: EventName[] = [];
  #events: unknown[] = [];
  #times: number[] = [];
  #head = 0;
  /** A drain is due, at once or in a while. */
  #isArmed = false;
  #isHurried = false;
  #isClosed = false;
  #droppedCount = 0;
  /** From the precise clock to the wall clock. */
  #offsetMs = 0;
  /** Followers that threw; shown in `/status`. */
  listenerErrorCount = 0;

  constructor({ clock = systemClock, queueSize = EVENT_QUEUE_SIZE, log }: EventBusOptions = {}) {
    this.#clock = clock;
    this.#queueSize = queueSize;
    this.#hurryDepth = Math.min(queueSize / 2, HURRY_DEPTH_MAX);
    this.#log = log ?? null;
  }

  /** Runs inside of every `publish` of that event. For those who must miss nothing. */
  subscribe<N extends EventName>(name: N, follower: (event: EventCatalogue[N]) => void): void {
    this.#of(name).followers.push(follower as (event: never) => void);
  }

  /** Returns the way out: what waits in the queue then is not handed to the subscriber any more. */
  attach(subscriber: Subscriber): () => void {
    this.#subscribers.push(subscriber);
    const enter = (subscriptions: Subscriptions | undefined, kind: 'counts' | 'others') => {
      for (const [name, listener] of Object.entries(subscriptions ?? {})) {
        const entry = { subscriber, listener: listener as AnyListener };
        const listeners = this.#of(name as EventName);
        listeners[kind] = [...listeners[kind], entry];
      }
    };
    enter(subscriber.counts, 'counts');
    enter(subscriber.subscriptions, 'others');
    return () => this.#detach(subscriber);
  }

  /** True when an event is worth building. */
  hasListeners(name: EventName): boolean {
    return this.#listeners.has(name);
  }

  get queueDepth(): number {
    return this.#names.length - this.#head;
  }

  /** Age of the oldest event in the queue; 0 when it is empty. */
  get oldestEventLagSeconds(): number {
    const oldest = this.#times[this.#head];
    return oldest === undefined ? 0 : Math.max(0, this.#nowSeconds() - oldest);
  }

  get droppedEventsCount(): number {
    return this.#droppedCount;
  }

  /** Events that a subscriber did not get, by subscriber. */
  get lostCounts(): ReadonlyMap<string, number> {
    return this.#lost;
  }

  get subscriberExceptionCounts(): ReadonlyMap<string, number> {
    return this.#exceptions;
  }

  publish<N extends EventName>(name: N, event: EventCatalogue[N]): void {
    const listeners = this.#listeners.get(name);
    if (!listeners || this.#isClosed) return;
    if (listeners.followers.length > 0) this.#follow(listeners, event);
    if (listeners.counts.length === 0 && listeners.others.length === 0) return;
    const atSeconds = this.#nowSeconds();
    for (const entry of listeners.counts) this.#run(entry, event, atSeconds);
    if (listeners.others.length === 0) return;
    if (this.queueDepth >= this.#queueSize) {
      this.#drop(listeners);
      return;
    }
    this.#names.push(name);
    this.#events.push(event);
    this.#times.push(atSeconds);
    this.#arm();
  }

  /** Hands everything over that waits. For those who read what subscribers have made of it. */
  drain(): void {
    while (this.queueDepth > 0) this.#handOverNext();
  }

  /** Drains, then shuts the subscribers down, in the order in which they came. */
  async close(): Promise<void> {
    this.drain();
    this.#isClosed = true;
    for (const subscriber of this.#subscribers) {
      try {
        await subscriber.shutdown?.();
      } catch (error) {
        this.#log?.error(`${subscriber.name} cannot be closed: ${String(error)}`);
      }
    }
  }

  /** Wall clock with the precision of the other one, so that short transfers have a length. */
  #nowSeconds(): number {
    const preciseMs = this.#clock.preciseMs();
    const wallMs = this.#clock.wallMs();
    if (Math.abs(preciseMs + this.#offsetMs - wallMs) > CLOCK_TOLERANCE_MS) {
      this.#offsetMs = wallMs - preciseMs;
    }
    return (preciseMs + this.#offsetMs) / 1000;
  }

  #of(name: EventName): Listeners {
    let listeners = this.#listeners.get(name);
    if (!listeners) {
      listeners = new Listeners();
      this.#listeners.set(name, listeners);
    }
    return listeners;
  }

  /** Lists are replaced and not changed: an event may be on its way through them. */
  #detach(subscriber: Subscriber): void {
    const index = this.#subscribers.indexOf(subscriber);
    if (index >= 0) this.#subscribers.splice(index, 1);
    for (const [name, listeners] of this.#listeners) {
      listeners.counts = listeners.counts.filter((entry) => entry.subscriber !== subscriber);
      listeners.others = listeners.others.filter((entry) => entry.subscriber !== subscriber);
      if (listeners.isEmpty) this.#listeners.delete(name);
    }
  }

  #follow({ followers }: Listeners, event: unknown): void {
    for (const follower of followers) {
      try {
        follower(event as never);
      } catch {
        // A broken observer must not fail the request that it observes; the count shows it.
        this.listenerErrorCount += 1;
      }
    }
  }

  /**
   * Events of a while are handed over together: the loop then turns less often, and the code of the
   * subscribers is warm. A queue that fills up is not kept waiting.
   */
  #arm(): void {
    const isFilling = this.queueDepth >= this.#hurryDepth;
    if (isFilling && !this.#isHurried) {
      this.#isHurried = true;
      setImmediate(() => this.#drainSlice());
    }
    if (this.#isArmed) return;
    this.#isArmed = true;
    this.#clock.after(DRAIN_DELAY_MS, () => this.#drainSlice());
  }

  #drop({ others }: Listeners): void {
    this.#droppedCount += 1;
    for (const { subscriber } of others) {
      this.#lost.set(subscriber.name, (this.#lost.get(subscriber.name) ?? 0) + 1);
    }
    this.#log?.limited(
      'warn',
      'event-queue-full',
      `the event queue is full (${this.#queueSize}); ${this.#droppedCount} events are lost so far`,
    );
  }

  #drainSlice(): void {
    this.#isArmed = false;
    this.#isHurried = false;
    const endMs = this.#clock.preciseMs() + SLICE_MS;
    while (this.queueDepth > 0) {
      for (let i = 0; i < EVENTS_PER_LOOK && this.queueDepth > 0; i += 1) this.#handOverNext();
      if (this.queueDepth > 0 && this.#clock.preciseMs() >= endMs) {
        this.#isArmed = true;
        this.#isHurried = true;
        setImmediate(() => this.#drainSlice());
        return;
      }
    }
  }

  #handOverNext(): void {
    const name = this.#names[this.#head] as EventName;
    const event = this.#events[this.#head];
    const atSeconds = this.#times[this.#head] as number;
    this.#events[this.#head] = null;
    this.#head += 1;
    if (this.#head === this.#names.length || this.#head >= COMPACT_COUNT) this.#compact();
    const listeners = this.#listeners.get(name);
    // Its last subscriber has left meanwhile.
    if (!listeners) return;
    for (const entry of listeners.others) this.#run(entry, event, atSeconds);
  }

  #compact(): void {
    this.#names = this.#names.slice(this.#head);
    this.#events = this.#events.slice(this.#head);
    this.#times = this.#times.slice(this.#head);
    this.#head = 0;
  }

  #run({ subscriber, listener }: Entry, event: unknown, atSeconds: number): void {
    try {
      listener(event as never, atSeconds);
    } catch (error) {
      const { name } = subscriber;
      this.#exceptions.set(name, (this.#exceptions.get(name) ?? 0) + 1);
      this.#log?.limited('error', `subscriber:${name}`, `${name} failed: ${String(error)}`, {
        error: error instanceof Error ? (error.stack ?? error.message) : String(error),
      });
    }
  }
}
