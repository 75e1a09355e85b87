/**
 * The event bus: rooms publish, observers listen, and no room ever waits for an observer.
 *
 *   publish ─┬─▶ followers     at once, inside of publish: those who must see every event in the
 *            │                 order in which it happens (KV events)
 *            └─▶ queue ─▶ drain, in slices of the event loop ─▶ `counts`, then `subscriptions`
 *                  └ full: `counts` at once; the event is lost for `subscriptions`, and counted for
 *                    everybody who misses it
 *
 * So counters miss nothing, whatever happens (field lesson 13.5), and who reads them drains first;
 * histograms, spans and log lines of an overload are lost, visibly. A listener that throws is
 * counted under its subscriber's name, and everybody else goes on. Nobody listens to an event:
 * `publish` is one look into a table.
 *
 * Everything that can wait does, because a request in a server that has just slept finds no code
 * and no data in the caches of the processor: what a subscriber does in a tenth of a microsecond
 * among hundreds of events takes it a whole one between two requests. `publish` gets an event as
 * it is and keeps it (events.ts says why nobody may change it); the time of the event is taken
 * there.
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
  /** Adds to counters: gets every event; out of order, and at once, when the queue is full. */
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
/**
 * Nobody looks at spans and lines sooner. Short delays are dear: each drain is a turn of the loop
 * more and, with lines, a system call that wakes whoever reads them.
 */
const DRAIN_DELAY_MS = 50;
const HURRY_DEPTH_MAX = 4000;
/** What a request may wait behind the drain. */
const SLICE_MS = 2;
/** Events; the ring grows from there to the size that is allowed. */
const FIRST_CAPACITY = 1024;
/** Events between two looks at the clock. */
const EVENTS_PER_LOOK = 32;
/** The wall clock counts whole milliseconds; beyond that somebody has set it. */
const CLOCK_TOLERANCE_MS = 2;
/** So long events may bear the time of before. */
const CLOCK_CHECK_MS = 10;

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
  /** The queue: a ring in three arrays of one length; `#depth` entries from `#head` on wait. */
  #targets: Listeners[] = [];
  #events: unknown[] = [];
  #times = new Float64Array(0);
  #head = 0;
  #depth = 0;
  /** A drain is due, at once or in a while. */
  #isArmed = false;
  #isHurried = false;
  #isClosed = false;
  #droppedCount = 0;
  /** From the precise clock to the wall clock. */
  #offsetMs = 0;
  #nextCheckMs = Number.NEGATIVE_INFINITY;
  /** Followers that threw; shown in `/status`. */
  listenerErrorCount = 0;

  constructor({ clock = systemClock, queueSize = EVENT_QUEUE_SIZE, log }: EventBusOptions = {}) {
    this.#clock = clock;
    this.#queueSize = queueSize;
    this.#resize(Math.min(queueSize, FIRST_CAPACITY));
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
    return this.#depth;
  }

  /** Age of the oldest event in the queue; 0 when it is empty. */
  get oldestEventLagSeconds(): number {
    if (this.#depth === 0) return 0;
    return Math.max(0, this.#nowSeconds() - (this.#times[this.#head] as number));
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
    if (this.#depth >= this.#queueSize) {
      this.#drop(listeners, event);
      return;
    }
    if (this.#depth === this.#times.length) {
      this.#resize(Math.min(2 * this.#depth, this.#queueSize));
    }
    const place = (this.#head + this.#depth) % this.#times.length;
    this.#targets[place] = listeners;
    this.#events[place] = event;
    this.#times[place] = this.#nowSeconds();
    this.#depth += 1;
    if (!this.#isArmed || this.#depth >= this.#hurryDepth) this.#arm();
  }

  /** Hands everything over that waits. For those who read what subscribers have made of it. */
  drain(): void {
    while (this.#depth > 0) this.#handOverNext();
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
    if (preciseMs >= this.#nextCheckMs) this.#checkClock(preciseMs);
    return (preciseMs + this.#offsetMs) / 1000;
  }

  #checkClock(preciseMs: number): void {
    const offsetMs = this.#clock.wallMs() - preciseMs;
    if (Math.abs(offsetMs - this.#offsetMs) > CLOCK_TOLERANCE_MS) this.#offsetMs = offsetMs;
    this.#nextCheckMs = preciseMs + CLOCK_CHECK_MS;
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
    const isFilling = this.#depth >= this.#hurryDepth;
    if (isFilling && !this.#isHurried) {
      this.#isHurried = true;
      setImmediate(() => this.#drainSlice());
    }
    if (this.#isArmed) return;
    this.#isArmed = true;
    this.#clock.after(DRAIN_DELAY_MS, () => this.#drainSlice());
  }

  /** What only counters wanted is not lost. */
  #drop({ counts, others }: Listeners, event: unknown): void {
    const atSeconds = this.#nowSeconds();
    for (const entry of counts) this.#run(entry, event, atSeconds);
    if (others.length === 0) return;
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
    while (this.#depth > 0) {
      for (let i = 0; i < EVENTS_PER_LOOK && this.#depth > 0; i += 1) this.#handOverNext();
      if (this.#depth > 0 && this.#clock.preciseMs() >= endMs) {
        this.#isArmed = true;
        this.#isHurried = true;
        setImmediate(() => this.#drainSlice());
        return;
      }
    }
  }

  #handOverNext(): void {
    const place = this.#head;
    const { counts, others } = this.#targets[place] as Listeners;
    const event = this.#events[place];
    const atSeconds = this.#times[place] as number;
    this.#events[place] = null;
    this.#head = (place + 1) % this.#times.length;
    this.#depth -= 1;
    for (const entry of counts) this.#run(entry, event, atSeconds);
    for (const entry of others) this.#run(entry, event, atSeconds);
  }

  /** Moves what waits to the front of larger arrays. */
  #resize(capacity: number): void {
    const [targets, events, times] = [this.#targets, this.#events, this.#times];
    this.#targets = new Array<Listeners>(capacity);
    this.#events = new Array<unknown>(capacity);
    this.#times = new Float64Array(capacity);
    for (let i = 0; i < this.#depth; i += 1) {
      const from = (this.#head + i) % times.length;
      this.#targets[i] = targets[from] as Listeners;
      this.#events[i] = events[from];
      this.#times[i] = times[from] as number;
    }
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
