/**
 * REGISTER_KV_CACHE and UNREGISTER_KV_CACHE: how a worker's memory comes and goes.
 *
 *   REGISTER ─▶ map the wrappers ─▶ discover the layout ─▶ same as before? ─ yes ─▶ unmap again,
 *                                                            │ no                   refresh only
 *                                                            ▼
 *                                     table points to the new memory; copies of the old one end,
 *                                     then it is unmapped
 *
 * Everything new is mapped and checked before anything old is touched, so a failed registration
 * leaves the worker as it was. Registrations of one id run one after the other, whichever
 * connection they come from; otherwise the slower of two would replace the newer.
 */
import type { Clock } from '../../clock.ts';
import type { Device, DeviceInstance } from '../../device/device.ts';
import { KvdError, toKvdError } from '../../errors.ts';
import type { Logger } from '../../observability/log.ts';
import type { InstanceId, RegisterKvCacheRequest } from '../api.ts';
import type { ClientTraits } from '../client-traits.ts';
import type { InstanceRegistry, KvCacheInstance } from '../instances.ts';
import { discoverKvLayout, formatNamesOf, isSameLayout } from './kv-layout.ts';
import { RegistrationFailures } from './registration-failures.ts';

export interface RegistrarOptions {
  readonly device: Device;
  readonly instances: InstanceRegistry;
  readonly clock: Clock;
  readonly log: Logger;
  readonly chunkSizeTokens: number;
  readonly hasAccelerator: boolean;
  readonly hasSeparateObjects: boolean;
}

export class Registrar {
  readonly #options: RegistrarOptions;
  /** Last registration or release of each id that is under way. */
  readonly #running = new Map<InstanceId, Promise<void>>();
  readonly #failures: RegistrationFailures;

  constructor(options: RegistrarOptions) {
    this.#options = options;
    this.#failures = new RegistrationFailures(options.clock);
  }

  register(request: RegisterKvCacheRequest, client: ClientTraits): Promise<void> {
    return this.#inOrder(request.instanceId, async () => {
      try {
        await this.#open(request, client);
      } catch (error) {
        throw this.#failures.record(request, error);
      }
    });
  }

  unregister(instanceId: InstanceId): Promise<void> {
    const { instances, log } = this.#options;
    return this.#inOrder(instanceId, async () => {
      if (await instances.drop(instanceId, 'unregistered', 'kv-cache')) return;
      log.limited(
        'warn',
        'unregister-unknown',
        `UNREGISTER_KV_CACHE of instance ${instanceId}, which is not registered`,
      );
    });
  }

  status(): Record<string, unknown> {
    return this.#failures.status();
  }

  async #open(request: RegisterKvCacheRequest, client: ClientTraits): Promise<void> {
    const { device, instances, log } = this.#options;
    checkIdentity(request);
    instances.checkRoom(request.instanceId);
    const handle = await device.openInstance(request.wrappers);
    let instance: KvCacheInstance;
    try {
      instance = this.#describe(request, client, handle);
      const known = instances.lookup(request.instanceId);
      if (known && isSameRegistration(known, instance)) {
        instances.refresh(request.instanceId);
        await this.#abandon(handle);
        return;
      }
      for (const { plan } of instance.layout.objectGroups) handle.addPlan(plan);
      instances.checkRoom(request.instanceId);
    } catch (error) {
      await this.#abandon(handle);
      throw error;
    }
    await instances.register(instance);
    const { groups, objectGroups } = instance.layout;
    const chunkBytes = objectGroups.reduce((bytes, group) => bytes + group.objectSizeBytes, 0);
    log.limited(
      'info',
      `registered:${request.instanceId}`,
      `Registered instance ${request.instanceId} of ${request.modelName}: ` +
        `${formatNamesOf(instance.layout)}, ${groups.length} kernel group(s) in ` +
        `${objectGroups.length} object(s), ${chunkBytes} bytes per chunk`,
    );
  }

  /** Unmaps what a registration opened and does not need. */
  async #abandon(handle: DeviceInstance): Promise<void> {
    try {
      await handle.close();
    } catch (error) {
      // The registration's own outcome counts; a mapping that stays costs address space only.
      this.#options.log.error(`A mapping cannot be closed: ${toKvdError(error).message}`);
    }
  }

  #describe(
    request: RegisterKvCacheRequest,
    client: ClientTraits,
    handle: DeviceInstance,
  ): KvCacheInstance {
    const { chunkSizeTokens, hasAccelerator, hasSeparateObjects } = this.#options;
    const { instanceId, modelName, worldSize, engineType, wrappers } = request;
    const layout = discoverKvLayout({
      tensors: handle.tensors,
      engineType,
      hints: request.layoutHints,
      infos: request.engineGroupInfos,
      chunkSizeTokens,
      hasAccelerator,
      hasSeparateObjects,
      layoutRules: client.layoutRules,
      reportsKvLayout: client.reportsKvLayout,
    });
    const { layoutRules } = client;
    const identity = { instanceId, modelName, worldSize, engineType, layoutRules };
    return { kind: 'kv-cache', ...identity, wrappers, layout, handle };
  }

  #inOrder(instanceId: InstanceId, run: () => Promise<void>): Promise<void> {
    const earlier = this.#running.get(instanceId);
    const running = earlier ? earlier.then(run, run) : run();
    this.#running.set(instanceId, running);
    const forget = () => {
      if (this.#running.get(instanceId) === running) this.#running.delete(instanceId);
    };
    running.then(forget, forget);
    return running;
  }
}

function checkIdentity(request: RegisterKvCacheRequest): void {
  const { modelName, worldSize, wrappers } = request;
  if (modelName.includes('@')) {
    throw new KvdError('ERR_BAD_REQUEST', `expected a model_name without "@", got ${modelName}`);
  }
  if (!(Number.isSafeInteger(worldSize) && worldSize >= 1)) {
    throw new KvdError('ERR_BAD_REQUEST', `expected a world_size of at least 1, got ${worldSize}`);
  }
  if (wrappers.length === 0) {
    throw new KvdError('ERR_LAYOUT', 'a registration without tensors');
  }
}

/** The same memory of the same process, read the same way, for the same model. */
function isSameRegistration(a: KvCacheInstance, b: KvCacheInstance): boolean {
  return (
    a.modelName === b.modelName &&
    a.worldSize === b.worldSize &&
    a.engineType === b.engineType &&
    a.layoutRules === b.layoutRules &&
    JSON.stringify(a.wrappers) === JSON.stringify(b.wrappers) &&
    JSON.stringify(a.handle.mappingIds) === JSON.stringify(b.handle.mappingIds) &&
    JSON.stringify(a.handle.owner) === JSON.stringify(b.handle.owner) &&
    isSameLayout(a.layout, b.layout)
  );
}
