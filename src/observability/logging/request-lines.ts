/**
 * Log lines about single requests, in the words that people and scripts look for (cli.md 6).
 *
 * A transfer's line is written behind its reply, in the same turn of the event loop: a worker waits
 * for the reply, and stderr takes 15 µs. Workers can come and go as often as they like: one line
 * per worker and minute.
 */
import type { EventBus, EventCatalogue } from '../events.ts';
import type { Logger } from '../log.ts';

type Transfer = EventCatalogue['mp.store.end' | 'mp.retrieve.end'];

export function logRequests(bus: EventBus, log: Logger): void {
  bus.subscribe('instance.registered', ({ instanceId, layerCount, modelName }) => {
    const message = `Registered KV cache for GPU ID ${instanceId} with ${layerCount} layers`;
    log.limited('info', `come:${instanceId}`, message, { model: modelName });
  });
  bus.subscribe('instance.dropped', ({ instanceId, reason }) => {
    const message = `Unregistered KV cache for GPU ID ${instanceId}`;
    log.limited('info', `go:${instanceId}`, message, { reason });
  });
  const logTransfer = (verb: string, { requestId, tokenCount, seconds }: Transfer) => {
    const message = `${verb} ${tokenCount} tokens in ${seconds.toFixed(3)} seconds`;
    setImmediate(() => log.info(message, { requestId }));
  };
  bus.subscribe('mp.store.end', (transfer) => logTransfer('Stored', transfer));
  bus.subscribe('mp.retrieve.end', (transfer) => logTransfer('Retrieved', transfer));
}
