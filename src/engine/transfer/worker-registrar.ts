/**
 * REGISTER and UNREGISTER_KV_CACHE_ENGINE_DRIVEN_CONTEXT: workers that move their bytes themselves.
 *
 * The reply tells where L1 is: name and size of its segment, or nothing. The same registration
 * again only shows that the worker lives; another one under a known id replaces the worker, and
 * what the old one had prepared is given up. Either way the worker begins anew, so slots that it
 * had been deprived of are not in its hands any more.
 */
import type { Clock } from '../../clock.ts';
import type { Logger } from '../../observability/log.ts';
import type { EngineDrivenContextRequest, InstanceId, ReplyOf } from '../api.ts';
import type { ClientTraits } from '../client-traits.ts';
import type { EngineDrivenInstance, InstanceRegistry } from '../instances.ts';
import { RegistrationFailures } from './registration-failures.ts';
import { chunkTensorOf, describeWorker, isSameWorker } from './worker-layout.ts';
import type { WorkerSlots } from './worker-slots.ts';
import type { WorkerTransports } from './worker-transports.ts';

export interface WorkerRegistrarOptions {
  readonly instances: InstanceRegistry;
  readonly slots: WorkerSlots;
  readonly transports: WorkerTransports;
  readonly pool: { readonly shmName: string | null; readonly sizeBytes: number };
  readonly chunkSizeTokens: number;
  readonly clock: Clock;
  readonly log: Logger;
}

export class WorkerRegistrar {
  readonly #options: WorkerRegistrarOptions;
  readonly #failures: RegistrationFailures;

  constructor(options: WorkerRegistrarOptions) {
    this.#options = options;
    this.#failures = new RegistrationFailures(options.clock);
  }

  async register(
    request: EngineDrivenContextRequest,
    { layoutRules }: ClientTraits,
  ): Promise<ReplyOf<'REGISTER_KV_CACHE_ENGINE_DRIVEN_CONTEXT'>> {
    const { instances, slots, transports, pool, chunkSizeTokens } = this.#options;
    const { instanceId } = request;
    try {
      const instance = describeWorker(request, chunkSizeTokens, layoutRules);
      const known = instances.lookupEngineDriven(instanceId);
      if (known && isSameWorker(known, instance)) instances.refresh(instanceId);
      else await this.#admit(instance);
    } catch (error) {
      throw this.#failures.record(request, error);
    }
    transports.forget(instanceId);
    slots.releaseQuarantine(instanceId);
    const { shmName, sizeBytes } = pool;
    return shmName === null
      ? { shmName: '', poolSizeBytes: 0 }
      : { shmName, poolSizeBytes: sizeBytes };
  }

  async unregister(instanceId: InstanceId): Promise<void> {
    const { instances, slots, log } = this.#options;
    if (await instances.drop(instanceId, 'unregistered', 'engine-driven')) return;
    // A worker that was reaped says that it is done with its slots.
    slots.releaseQuarantine(instanceId);
    log.limited(
      'warn',
      'unregister-unknown-context',
      `UNREGISTER of the engine-driven instance ${instanceId}, which is not registered`,
    );
  }

  status(): Record<string, unknown> {
    return this.#failures.status();
  }

  async #admit(instance: EngineDrivenInstance): Promise<void> {
    const { instances, chunkSizeTokens, log } = this.#options;
    await instances.register(instance);
    const { instanceId, modelName, blockSize, object } = instance;
    const { shape, dtype } = chunkTensorOf(instance);
    log.limited(
      'info',
      `registered:${instanceId}`,
      `Registered instance ${instanceId} of ${modelName}: engine-driven, [${shape.join(', ')}] ` +
        `${dtype}, ${object.objectSizeBytes} bytes per chunk of ${chunkSizeTokens} tokens, ` +
        `blocks of ${blockSize}`,
    );
  }
}
