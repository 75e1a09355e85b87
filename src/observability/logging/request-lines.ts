/**
 * Log lines about single requests, in the words that people and scripts look for (cli.md 6).
 *
 * A store or retrieve moves megabytes, so its line (2 µs, nothing when INFO is off) is none of its
 * costs. Workers can come and go as often as they like: one line per worker and minute.
 */
import type { EventBus } from '../events.ts';
import type { Logger } from '../log.ts';

export function logRequests(bus: EventBus, log: Logger): void {
  bus.subscribe('instance.registered', ({ instanceId, layerCount, modelName }) => {
    const message = `Registered KV cache for GPU ID ${instanceId} with ${layerCount} layers`;
    log.limited('info', `come:${instanceId}`, message, { model: modelName });
  });
  bus.subscribe('instance.dropped', ({ instanceId, reason }) => {
    const message = `Unregistered KV cache for GPU ID ${instanceId}`;
    log.limited('info', `go:${instanceId}`, message, { reason });
  });
  bus.subscribe('mp.store.end', ({ requestId, tokenCount, seconds }) => {
    log.info(`Stored ${tokenCount} tokens in ${seconds.toFixed(3)} seconds`, { requestId });
  });
  bus.subscribe('mp.retrieve.end', ({ requestId, tokenCount, seconds }) => {
    log.info(`Retrieved ${tokenCount} tokens in ${seconds.toFixed(3)} seconds`, { requestId });
  });
}
