/**
 * KvEventModule: SUBSCRIBE_KV_EVENTS and what tells clients that it is there (spec wire 8.2).
 *
 * A worker has at most one subscription: a new one ends the old one. It lives as long as its
 * worker: PINGs refresh it, whether the worker is registered or not, and silence for the reap time
 * ends it, like the drop of a worker that has been found dead.
 *
 * A subscriber is told of the world size that its worker has registered, because the objects of
 * another world size are of no use to it; of all of them when nothing is registered under its id.
 */
import type { Clock } from '../../clock.ts';
import { KvdError } from '../../errors.ts';
import type { InstanceId, RequestOf } from '../api.ts';
import type { EngineModule, HandlerTable } from '../handlers.ts';
import type { DropReason, InstanceRegistry } from '../instances.ts';
import { ReapRounds } from '../reap-rounds.ts';
import type { KvEventLog } from './kv-event-log.ts';
import { KvEventSubscription } from './kv-event-subscription.ts';

/** As many as workers may be registered. */
const SUBSCRIPTION_COUNT_MAX = 1024;
const EVENT_COUNT_MAX = 1024;
const CAPABILITY = 'kv_event_stream';
/** The worker is gone without having said so. */
const DEATHS: ReadonlySet<DropReason> = new Set<DropReason>(['reaped', 'owner-gone', 'dropped']);

export interface KvEventModuleOptions {
  readonly log: KvEventLog;
  readonly instances: Pick<InstanceRegistry, 'lookup' | 'lookupEngineDriven' | 'onDrop' | 'onPing'>;
  readonly clock: Clock;
  /** 0 = silent subscribers stay. */
  readonly reapTimeoutMs: number;
}

export class KvEventModule implements EngineModule {
  readonly name = 'kv-events';
  readonly handlers: HandlerTable;
  readonly #options: KvEventModuleOptions;
  readonly #incarnation: bigint;
  readonly #subscriptions = new Map<InstanceId, KvEventSubscription>();
  readonly #reapRounds: ReapRounds;
  #isPokeDue = false;

  constructor(options: KvEventModuleOptions) {
    const { log, instances, clock, reapTimeoutMs } = options;
    this.#options = options;
    this.#incarnation = BigInt(Math.trunc(clock.wallMs())) * 1_000_000n;
    const reap = () => this.#reapSilent();
    this.#reapRounds = new ReapRounds({ clock, timeoutMs: reapTimeoutMs, reap });
    log.onAppend(() => this.#pokeSoon());
    instances.onPing((instanceId) => this.#refresh(instanceId));
    instances.onDrop(({ instanceId }, reason) => {
      if (DEATHS.has(reason)) this.#subscriptions.get(instanceId)?.close();
    });
    this.handlers = {
      GET_EXPERIMENTAL: () => (log.isEnabled ? [CAPABILITY] : []),
      SUBSCRIBE_KV_EVENTS: (request) => this.#subscribe(request),
    };
  }

  get logDepth(): number {
    return this.#options.log.depth;
  }

  status(): Record<string, unknown> {
    const { log } = this.#options;
    return {
      kv_events: {
        enabled: log.isEnabled,
        incarnation: this.#incarnation,
        log_depth: log.depth,
        log_capacity: log.recordCountMax,
        log_bytes: log.sizeBytes,
        next_seq: log.nextSeq,
        lost_markers: log.lostMarkerCount,
        cleared_markers: log.clearedMarkerCount,
        // Every writer of this server knows the tokens of what it stores.
        unbound_stores: 0,
        subscribers: this.#subscriptions.size,
      },
    };
  }

  /** Ends the streams of workers that have been silent for too long. */
  #reapSilent(): void {
    const { clock, reapTimeoutMs } = this.#options;
    const limitMs = clock.nowMs() - reapTimeoutMs;
    for (const subscription of [...this.#subscriptions.values()]) {
      if (subscription.lastSeenMs < limitMs) subscription.close();
    }
  }

  /** Streams would never end by themselves. */
  beginDrain(): void {
    for (const subscription of [...this.#subscriptions.values()]) subscription.close();
  }

  async close(): Promise<void> {
    this.#reapRounds.close();
    this.beginDrain();
  }

  #subscribe(request: RequestOf<'SUBSCRIBE_KV_EVENTS'>): KvEventSubscription {
    const { log, instances } = this.#options;
    const { instanceId, modelName, cursor, eventCountMax } = request;
    checkRange('cursor', cursor, 0, Number.MAX_SAFE_INTEGER);
    checkRange('max_events', eventCountMax, 1, EVENT_COUNT_MAX);
    this.#subscriptions.get(instanceId)?.close();
    if (this.#subscriptions.size >= SUBSCRIPTION_COUNT_MAX) {
      throw new KvdError(
        'ERR_OVERLOADED',
        `${SUBSCRIPTION_COUNT_MAX} instances follow the KV events, which is the bound`,
      );
    }
    const worker = instances.lookup(instanceId) ?? instances.lookupEngineDriven(instanceId);
    const worldSize = worker?.modelName === modelName ? worker.worldSize : null;
    const subscription: KvEventSubscription = new KvEventSubscription({
      log,
      incarnation: this.#incarnation,
      filter: { modelName, worldSize },
      cursor,
      eventCountMax,
      onClose: () => {
        if (this.#subscriptions.get(instanceId) === subscription) {
          this.#subscriptions.delete(instanceId);
        }
      },
    });
    this.#subscriptions.set(instanceId, subscription);
    this.#refresh(instanceId);
    return subscription;
  }

  #refresh(instanceId: InstanceId): void {
    const subscription = this.#subscriptions.get(instanceId);
    if (subscription) subscription.lastSeenMs = this.#options.clock.nowMs();
  }

  /** Once for all records of a turn, and not in the middle of what makes them. */
  #pokeSoon(): void {
    if (this.#isPokeDue || this.#subscriptions.size === 0) return;
    this.#isPokeDue = true;
    setImmediate(() => {
      this.#isPokeDue = false;
      for (const subscription of this.#subscriptions.values()) subscription.poke();
    });
  }
}

function checkRange(name: string, value: number, min: number, max: number): void {
  if (value >= min && value <= max) return;
  throw new KvdError('ERR_BAD_REQUEST', `expected ${name} from ${min} to ${max}, got ${value}`);
}
