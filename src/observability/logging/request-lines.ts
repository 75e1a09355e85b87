/** Log lines about single requests, in the words that people and scripts look for (cli.md 6). */
import type { EventBus } from '../events.ts';
import type { Logger } from '../log.ts';

export function logRequests(bus: EventBus, log: Logger): void {
  bus.subscribe('instance.registered', ({ instanceId, layerCount, modelName }) => {
    log.info(`Registered KV cache for GPU ID ${instanceId} with ${layerCount} layers`, {
      model: modelName,
    });
  });
  bus.subscribe('instance.dropped', ({ instanceId, reason }) => {
    log.info(`Unregistered KV cache for GPU ID ${instanceId}`, { reason });
  });
  bus.subscribe('mp.store.end', ({ requestId, tokenCount, seconds }) => {
    log.info(`Stored ${tokenCount} tokens in ${seconds.toFixed(3)} seconds`, { requestId });
  });
  bus.subscribe('mp.retrieve.end', ({ requestId, tokenCount, seconds }) => {
    log.info(`Retrieved ${tokenCount} tokens in ${seconds.toFixed(3)} seconds`, { requestId });
  });
}
