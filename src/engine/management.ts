/**
 * ManagementModule: requests about the server itself. All of them answer within the turn of the
 * event loop that read them, so a PING never waits behind a transfer (spec engine 4).
 */
import type { ClearOutcome } from '../core/object-table.ts';
import type { EventBus } from '../observability/event-bus.ts';
import type { Logger } from '../observability/log.ts';
import type { StorageManager } from '../storage/storage-manager.ts';
import type { EngineModule, HandlerTable } from './handlers.ts';
import type { InstanceRegistry } from './instances.ts';

export interface ManagementModuleOptions {
  readonly storage: StorageManager;
  readonly instances: InstanceRegistry;
  readonly chunkSizeTokens: number;
  readonly bus: EventBus;
  readonly log: Logger;
}

export class ManagementModule implements EngineModule {
  readonly name = 'management';
  readonly handlers: HandlerTable;

  constructor(options: ManagementModuleOptions) {
    const { storage, instances, chunkSizeTokens, bus, log } = options;
    this.handlers = {
      CLEAR: ({ isForced }) => {
        const report = ({ removedCount, deferredCount }: ClearOutcome) => {
          const message = `Cleared ${removedCount} L1 objects, ${deferredCount} of them in use`;
          log.limited('info', 'clear', message);
        };
        const outcome = storage.clear(isForced);
        return outcome instanceof Promise ? outcome.then(report) : report(outcome);
      },
      GET_CHUNK_SIZE: () => chunkSizeTokens,
      NOOP: () => 'OK',
      PING: ({ instanceId }) => instanceId === null || instances.ping(instanceId),
      REPORT_BLOCK_ALLOCATION: ({ instanceId, modelName, records }) => {
        bus.publish('mp.vllm.block_allocation', {
          instanceId: `${instanceId}`,
          modelName,
          records,
        });
      },
    };
  }

  status(): Record<string, unknown> {
    return {};
  }

  async close(): Promise<void> {}
}
