/**
 * Registered workers: who they are, whether they live, and how they leave.
 *
 *                    register                  drop (UNREGISTER, replaced, HTTP, reaper,
 *                                                     end of its process: owner-watch.ts)
 *   unknown id ───────────────▶ registered ──────────────▶ closing ───▶ unknown id
 *       │                          │  ▲                       │
 *       └── PING: false once,      └──┘ any request that      └── running copies end,
 *           then true              names it; PING                 then its memory is unmapped
 *
 * A dropped instance is unknown at once: no new copy can start on memory that is about to go. The
 * copies that run already end first, in the device (`DeviceInstance.close`).
 *
 * PING is the only request whose answer makes an unmodified client act (spec engine 9.5): false
 * turns a vLLM worker unhealthy, which drains what it waits for; the following true makes it
 * register again. So an unknown id gets false once. Ids below 2^22 are process ids (SGLang), whose
 * clients cannot register again: they get false for as long as they are unknown. A RETRIEVE that
 * strict mode left without an answer owes its worker one false, too (spec engine 9.3).
 *
 * Two kinds of workers share the table: those whose memory the server maps (`kv-cache`), and those
 * that move their bytes themselves (`engine-driven`), of which nothing is mapped. An id belongs to
 * one of them; registering it as the other kind replaces it.
 */
import { assert } from '../assert.ts';
import type { Clock } from '../clock.ts';
import type { DeviceInstance } from '../device/device.ts';
import type { TensorWrapper } from '../device/tensor-wrapper.ts';
import { KvdError } from '../errors.ts';
import type { EventBus } from '../observability/event-bus.ts';
import type { Logger } from '../observability/log.ts';
import type { EngineType, InstanceId } from './api.ts';
import type { LayoutRules } from './client-traits.ts';
import {
  LayoutRegistry,
  type ObjectGroupLayout,
  type ObjectLayout,
  type RegisteredLayout,
} from './layout-registry.ts';
import { ReapRounds } from './reap-rounds.ts';
import { countLayers, describeKvLayout, type KvLayout } from './transfer/kv-layout.ts';

/** Linux process ids end below this; the random 63-bit ids of vLLM begin above it. */
export const PROCESS_ID_BOUND = 2n ** 22n;

/** Far above any host's number of workers; each costs open mappings. */
export const INSTANCE_COUNT_MAX = 1024;

/** Ids remembered only to answer PINGs; a forgotten one gets one false more than needed. */
const PING_ID_COUNT_MAX = 4096;

interface Identity {
  readonly instanceId: InstanceId;
  readonly modelName: string;
  readonly worldSize: number;
  readonly engineType: EngineType;
  /** How its generation reads tensors. */
  readonly layoutRules: LayoutRules;
}

export interface KvCacheInstance extends Identity {
  readonly kind: 'kv-cache';
  /** Where its memory is, as the worker said; compared when it registers again. */
  readonly wrappers: readonly TensorWrapper[];
  readonly layout: KvLayout;
  readonly handle: DeviceInstance;
}

export interface EngineDrivenInstance extends Identity {
  readonly kind: 'engine-driven';
  readonly layout: ObjectLayout;
  /** Its only object group. */
  readonly object: ObjectGroupLayout;
  readonly layerCount: number;
  /** Tokens per block of the engine, as it said. */
  readonly blockSize: number;
}

export type Instance = KvCacheInstance | EngineDrivenInstance;

export type DropReason =
  | 'unregistered'
  | 'reaped'
  | 'owner-gone'
  | 'replaced'
  | 'dropped'
  | 'shutdown';

export interface InstanceRegistryOptions {
  readonly clock: Clock;
  readonly bus: EventBus;
  readonly log: Logger;
  /** 0 = workers are never reaped. */
  readonly reapTimeoutSeconds: number;
  /** In place of the timeout for workers that have never sent a PING. */
  readonly registrationGraceSeconds: number;
}

interface Entry {
  readonly instance: Instance;
  lastSeenMs: number;
  /** Null before the first PING. */
  lastPingMs: number | null;
  /** When a PING was answered with false: the worker then gave up what it waited for. */
  lastFalseMs: number;
}

type DropListener = (instance: Instance, reason: DropReason) => void;
type PingListener = (instanceId: InstanceId) => void;
type LastInstanceListener = (modelName: string, worldSize: number) => void;

export class InstanceRegistry {
  readonly #options: InstanceRegistryOptions;
  readonly #layouts = new LayoutRegistry();
  readonly #entries = new Map<InstanceId, Entry>();
  readonly #closings = new Set<Promise<void>>();
  readonly #dropListeners: DropListener[] = [];
  readonly #lastInstanceListeners: LastInstanceListener[] = [];
  readonly #pingListeners: PingListener[] = [];
  /** Unknown ids that have got their false. Both sets are in order of insertion. */
  readonly #warnedIds = new Set<InstanceId>();
  /** Ids whose next PING must be false. */
  readonly #owedFalseIds = new Set<InstanceId>();
  /** What waits until an id has been told false. */
  readonly #falseWaiters = new Map<InstanceId, Set<() => void>>();
  readonly #reapRounds: ReapRounds;

  constructor(options: InstanceRegistryOptions) {
    const { clock, reapTimeoutSeconds } = options;
    this.#options = options;
    const reap = () => this.#reapSilent();
    this.#reapRounds = new ReapRounds({ clock, timeoutMs: reapTimeoutSeconds * 1000, reap });
  }

  /** Runs when an instance has become unknown, before its memory is unmapped. */
  onDrop(listener: DropListener): void {
    this.#dropListeners.push(listener);
  }

  /** Runs when the last worker of a (model, world size) is gone. */
  onLastInstance(listener: LastInstanceListener): void {
    this.#lastInstanceListeners.push(listener);
  }

  /** Runs at every PING that names an id, known or not. */
  onPing(listener: PingListener): void {
    this.#pingListeners.push(listener);
  }

  get instanceCount(): number {
    return this.#entries.size;
  }

  /** Instances that are unknown to clients already and still unmap their memory. */
  get closingCount(): number {
    return this.#closings.size;
  }

  lookup(instanceId: InstanceId): KvCacheInstance | undefined {
    const instance = this.#entries.get(instanceId)?.instance;
    return instance?.kind === 'kv-cache' ? instance : undefined;
  }

  /** Those whose memory is mapped. */
  kvCacheInstances(): KvCacheInstance[] {
    const instances = [...this.#entries.values()].map((entry) => entry.instance);
    return instances.filter((instance) => instance.kind === 'kv-cache');
  }

  lookupEngineDriven(instanceId: InstanceId): EngineDrivenInstance | undefined {
    const instance = this.#entries.get(instanceId)?.instance;
    return instance?.kind === 'engine-driven' ? instance : undefined;
  }

  /** True when a PING of this worker came less than `withinMs` ago. */
  isPinging(instanceId: InstanceId, withinMs: number): boolean {
    const lastPingMs = this.#entries.get(instanceId)?.lastPingMs ?? null;
    return lastPingMs !== null && this.#options.clock.nowMs() - lastPingMs < withinMs;
  }

  /** True when a PING of this worker was answered with false at `sinceMs` or later. */
  isToldFalse(instanceId: InstanceId, sinceMs: number): boolean {
    return (this.#entries.get(instanceId)?.lastFalseMs ?? Number.NEGATIVE_INFINITY) >= sinceMs;
  }

  /** See `LayoutRegistry.find`. */
  findLayout(
    modelName: string,
    worldSize: number,
    layoutRules?: LayoutRules,
  ): RegisteredLayout | undefined {
    return this.#layouts.find(modelName, worldSize, layoutRules);
  }

  /** Throws `ERR_OVERLOADED` when a further worker would be too many. */
  checkRoom(instanceId: InstanceId): void {
    if (this.#entries.size < INSTANCE_COUNT_MAX || this.#entries.has(instanceId)) return;
    throw new KvdError(
      'ERR_OVERLOADED',
      `${INSTANCE_COUNT_MAX} instances are registered, which is the bound`,
    );
  }

  /**
   * Adds the instance, in place of an earlier one with its id: from now on transfers use the new
   * memory. The promise settles when the copies of the earlier one have ended.
   */
  async register(instance: Instance): Promise<void> {
    const { instanceId, modelName } = instance;
    this.checkRoom(instanceId);
    const earlier = this.#entries.get(instanceId)?.instance;
    assert(earlier !== instance, 'an instance may not replace itself');
    // The new layout is counted first: a replaced worker is no reason to give up its model's locks.
    this.#layouts.register(instance);
    this.#entries.set(instanceId, {
      instance,
      lastSeenMs: this.#options.clock.nowMs(),
      lastPingMs: null,
      lastFalseMs: Number.NEGATIVE_INFINITY,
    });
    this.#warnedIds.delete(instanceId);
    const layerCount =
      instance.kind === 'kv-cache' ? countLayers(instance.layout) : instance.layerCount;
    this.#options.bus.publish('instance.registered', { instanceId, modelName, layerCount });
    if (earlier) await this.#release(earlier, 'replaced');
  }

  /** Any request that names the instance proves that its worker lives. */
  refresh(instanceId: InstanceId): void {
    const entry = this.#entries.get(instanceId);
    if (entry) entry.lastSeenMs = this.#options.clock.nowMs();
  }

  /** The answer to a PING with this id. */
  ping(instanceId: InstanceId): boolean {
    for (const listener of this.#pingListeners) listener(instanceId);
    const answer = this.#answerPing(instanceId);
    if (!answer) {
      for (const waiter of this.#falseWaiters.get(instanceId) ?? []) waiter();
      this.#falseWaiters.delete(instanceId);
    }
    return answer;
  }

  #answerPing(instanceId: InstanceId): boolean {
    const entry = this.#entries.get(instanceId);
    if (entry) {
      const nowMs = this.#options.clock.nowMs();
      entry.lastSeenMs = nowMs;
      entry.lastPingMs = nowMs;
      if (!this.#owedFalseIds.delete(instanceId)) return true;
      entry.lastFalseMs = this.#options.clock.preciseMs();
      return false;
    }
    if (instanceId < PROCESS_ID_BOUND) return false;
    const isOwedFalse = this.#owedFalseIds.delete(instanceId);
    if (this.#warnedIds.has(instanceId) && !isOwedFalse) return true;
    remember(this.#warnedIds, instanceId);
    return false;
  }

  /** The next PING of this id is answered with false, whether it is registered by then or not. */
  oweFalsePing(instanceId: InstanceId): void {
    remember(this.#owedFalseIds, instanceId);
  }

  /**
   * As `oweFalsePing`, and runs `listener` when the false has been given, unless the returned
   * function is called before.
   */
  oweFalsePingAndWait(instanceId: InstanceId, listener: () => void): () => void {
    this.oweFalsePing(instanceId);
    const waiters = this.#falseWaiters.get(instanceId) ?? new Set();
    this.#falseWaiters.set(instanceId, waiters);
    waiters.add(listener);
    return () => {
      waiters.delete(listener);
      if (waiters.size === 0 && this.#falseWaiters.get(instanceId) === waiters) {
        this.#falseWaiters.delete(instanceId);
      }
    };
  }

  /**
   * Forgets the instance at once and resolves when its memory is unmapped. False when the id is
   * unknown, or of another kind than asked for.
   */
  async drop(
    instanceId: InstanceId,
    reason: DropReason,
    kind?: Instance['kind'],
  ): Promise<boolean> {
    const entry = this.#entries.get(instanceId);
    if (!entry || (kind && entry.instance.kind !== kind)) return false;
    this.#entries.delete(instanceId);
    await this.#release(entry.instance, reason);
    return true;
  }

  /** Drops every worker that has been silent for too long. */
  #reapSilent(): void {
    const { clock, log, reapTimeoutSeconds, registrationGraceSeconds } = this.#options;
    const nowMs = clock.nowMs();
    for (const [instanceId, entry] of this.#entries) {
      const limitSeconds =
        entry.lastPingMs === null ? registrationGraceSeconds : reapTimeoutSeconds;
      const silentMs = nowMs - entry.lastSeenMs;
      if (silentMs <= limitSeconds * 1000) continue;
      log.warn(`Instance ${instanceId} was silent for ${silentMs / 1000} s and is dropped`);
      void this.drop(instanceId, 'reaped');
    }
  }

  /** `worker_liveness` of `GET /status`. */
  livenessStatus(): Record<string, unknown> {
    const { reapTimeoutSeconds, registrationGraceSeconds } = this.#options;
    return {
      enabled: reapTimeoutSeconds > 0,
      reap_timeout_seconds: reapTimeoutSeconds,
      registration_grace_seconds: registrationGraceSeconds,
      tracked_instances: this.#entries.size,
    };
  }

  /** `registered_gpu_ids` and `cache_context_meta` of `GET /status` (spec http 7.1). */
  contextStatus(): Record<string, unknown> {
    const meta: Record<string, unknown> = {};
    const ids: InstanceId[] = [];
    for (const [instanceId, { instance }] of this.#entries) {
      if (instance.kind !== 'kv-cache') continue;
      ids.push(instanceId);
      meta[String(instanceId)] = {
        model_name: instance.modelName,
        world_size: instance.worldSize,
        kv_cache_layout: describeKvLayout(instance.layout),
        owner_pid: instance.handle.owner?.pid ?? null,
      };
    }
    return { registered_gpu_ids: ids, cache_context_meta: meta };
  }

  /** The same for workers that copy themselves. */
  engineDrivenStatus(): Record<string, unknown> {
    const meta: Record<string, unknown> = {};
    const ids: InstanceId[] = [];
    for (const [instanceId, { instance }] of this.#entries) {
      if (instance.kind !== 'engine-driven') continue;
      ids.push(instanceId);
      meta[String(instanceId)] = {
        model_name: instance.modelName,
        world_size: instance.worldSize,
        block_size: instance.blockSize,
        use_mla: instance.layout.isMla,
      };
    }
    return { registered_non_cuda_instance_ids: ids, non_cuda_context_meta: meta };
  }

  /** Stops the reaper, drops all instances and waits until their memory is unmapped. */
  async close(): Promise<void> {
    this.#reapRounds.close();
    for (const instanceId of [...this.#entries.keys()]) void this.drop(instanceId, 'shutdown');
    await Promise.all(this.#closings);
  }

  /** Gives back what an instance that is no longer in the table owns. */
  #release(instance: Instance, reason: DropReason): Promise<void> {
    const { instanceId, modelName, worldSize } = instance;
    const closing: Promise<void> = this.#unmap(instance).finally(() => {
      this.#closings.delete(closing);
    });
    this.#closings.add(closing);
    this.#options.bus.publish('instance.dropped', { instanceId, reason });
    for (const listener of this.#dropListeners) listener(instance, reason);
    if (this.#layouts.unregister(instance)) {
      for (const listener of this.#lastInstanceListeners) listener(modelName, worldSize);
    }
    return closing;
  }

  async #unmap(instance: Instance): Promise<void> {
    if (instance.kind !== 'kv-cache') return;
    try {
      await instance.handle.close();
    } catch (error) {
      this.#options.log.error(`Instance ${instance.instanceId}: its memory stays mapped: ${error}`);
    }
  }
}

/** Adds to a bounded set; the oldest member leaves when it is full. */
function remember(ids: Set<InstanceId>, instanceId: InstanceId): void {
  ids.delete(instanceId);
  ids.add(instanceId);
  if (ids.size <= PING_ID_COUNT_MAX) return;
  for (const oldest of ids) {
    ids.delete(oldest);
    return;
  }
}
