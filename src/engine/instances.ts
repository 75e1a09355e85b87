/**
 * Registered workers: who they are, whether they live, and how they leave.
 *
 *                    register                  drop (UNREGISTER, reaper, replaced, HTTP)
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
 */
import { assert } from '../assert.ts';
import type { Clock, Timer } from '../clock.ts';
import type { DeviceInstance } from '../device/device.ts';
import type { TensorWrapper } from '../device/tensor-wrapper.ts';
import { KvdError } from '../errors.ts';
import type { EventBus } from '../observability/events.ts';
import type { Logger } from '../observability/log.ts';
import type { EngineType, InstanceId } from './api.ts';
import { LayoutRegistry, type RegisteredLayout } from './layout-registry.ts';
import { countLayers, describeKvLayout, type KvLayout } from './transfer/kv-layout.ts';

/** Linux process ids end below this; the random 63-bit ids of vLLM begin above it. */
export const PROCESS_ID_BOUND = 2n ** 22n;

/** Far above any host's number of workers; each costs open mappings. */
export const INSTANCE_COUNT_MAX = 1024;

/** Ids remembered only to answer PINGs; a forgotten one gets one false more than needed. */
const PING_ID_COUNT_MAX = 4096;

export interface Instance {
  readonly instanceId: InstanceId;
  readonly modelName: string;
  readonly worldSize: number;
  readonly engineType: EngineType;
  /** Where its memory is, as the worker said; compared when it registers again. */
  readonly wrappers: readonly TensorWrapper[];
  readonly layout: KvLayout;
  readonly handle: DeviceInstance;
}

export type DropReason = 'unregistered' | 'reaped' | 'replaced' | 'dropped' | 'shutdown';

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
  hasLivenessSignal: boolean;
}

type LastInstanceListener = (modelName: string, worldSize: number) => void;

export class InstanceRegistry {
  readonly #options: InstanceRegistryOptions;
  readonly #layouts = new LayoutRegistry();
  readonly #entries = new Map<InstanceId, Entry>();
  readonly #closings = new Set<Promise<void>>();
  readonly #lastInstanceListeners: LastInstanceListener[] = [];
  /** Unknown ids that have got their false. Both sets are in order of insertion. */
  readonly #warnedIds = new Set<InstanceId>();
  /** Ids whose next PING must be false. */
  readonly #owedFalseIds = new Set<InstanceId>();
  readonly #reapTimer: Timer | null;

  constructor(options: InstanceRegistryOptions) {
    this.#options = options;
    const timeoutMs = options.reapTimeoutSeconds * 1000;
    this.#reapTimer =
      timeoutMs > 0 ? options.clock.every(timeoutMs / 4, () => this.reapSilent()) : null;
  }

  /** Runs when the last worker of a (model, world size) is gone. */
  onLastInstance(listener: LastInstanceListener): void {
    this.#lastInstanceListeners.push(listener);
  }

  get instanceCount(): number {
    return this.#entries.size;
  }

  /** Instances that are unknown to clients already and still unmap their memory. */
  get closingCount(): number {
    return this.#closings.size;
  }

  lookup(instanceId: InstanceId): Instance | undefined {
    return this.#entries.get(instanceId)?.instance;
  }

  findLayout(modelName: string, worldSize: number): RegisteredLayout | undefined {
    return this.#layouts.find(modelName, worldSize);
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
    assert(earlier?.handle !== instance.handle, 'an instance may not replace itself');
    // The new layout is counted first: a replaced worker is no reason to give up its model's locks.
    this.#layouts.register(instance);
    this.#entries.set(instanceId, {
      instance,
      lastSeenMs: this.#options.clock.nowMs(),
      hasLivenessSignal: false,
    });
    this.#warnedIds.delete(instanceId);
    const layerCount = countLayers(instance.layout);
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
    const entry = this.#entries.get(instanceId);
    if (entry) {
      entry.lastSeenMs = this.#options.clock.nowMs();
      entry.hasLivenessSignal = true;
      return !this.#owedFalseIds.delete(instanceId);
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
   * Forgets the instance at once and resolves when its memory is unmapped. False when the id is
   * unknown.
   */
  async drop(instanceId: InstanceId, reason: DropReason): Promise<boolean> {
    const entry = this.#entries.get(instanceId);
    if (!entry) return false;
    this.#entries.delete(instanceId);
    await this.#release(entry.instance, reason);
    return true;
  }

  /** Drops every worker that has been silent for too long. */
  reapSilent(): void {
    const { clock, log, reapTimeoutSeconds, registrationGraceSeconds } = this.#options;
    const nowMs = clock.nowMs();
    for (const [instanceId, entry] of this.#entries) {
      const limitSeconds = entry.hasLivenessSignal ? reapTimeoutSeconds : registrationGraceSeconds;
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
    for (const [instanceId, { instance }] of this.#entries) {
      meta[String(instanceId)] = {
        model_name: instance.modelName,
        world_size: instance.worldSize,
        kv_cache_layout: describeKvLayout(instance.layout),
      };
    }
    return { registered_gpu_ids: [...this.#entries.keys()], cache_context_meta: meta };
  }

  /** Stops the reaper, drops all instances and waits until their memory is unmapped. */
  async close(): Promise<void> {
    this.#reapTimer?.cancel();
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
    if (this.#layouts.unregister(instance)) {
      for (const listener of this.#lastInstanceListeners) listener(modelName, worldSize);
    }
    return closing;
  }

  async #unmap({ instanceId, handle }: Instance): Promise<void> {
    try {
      await handle.close();
    } catch (error) {
      this.#options.log.error(`Instance ${instanceId}: its memory stays mapped: ${error}`);
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
