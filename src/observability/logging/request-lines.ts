/**
 * INFO lines about single requests, in the words that people and scripts look for (cli.md 6).
 *
 * They are written when the bus drains, so behind the reply that a worker waits for. A transfer
 * that failed has none: the door says who was refused and why. Workers can come and go as often as
 * they like: one line per worker and minute.
 */
import type { Subscriber } from '../event-bus.ts';
import type { EventCatalogue } from '../events.ts';
import type { Logger } from '../log.ts';

type Transfer = EventCatalogue['mp.store.end' | 'mp.retrieve.end'];

export function requestLines(log: Logger): Subscriber {
  const logTransfer = (verb: string, transfer: Transfer) => {
    if (transfer.error !== null) return;
    const { sessionId: requestId, tokenCount, seconds } = transfer;
    log.info(`${verb} ${tokenCount} tokens in ${seconds.toFixed(3)} seconds`, { requestId });
  };
  return {
    name: 'MPLoggingSubscriber',
    subscriptions: {
      'instance.registered': ({ instanceId, layerCount, modelName }) => {
        const message = `Registered KV cache for GPU ID ${instanceId} with ${layerCount} layers`;
        log.limited('info', `come:${instanceId}`, message, { model: modelName });
      },
      'instance.dropped': ({ instanceId, reason }) => {
        const message = `Unregistered KV cache for GPU ID ${instanceId}`;
        log.limited('info', `go:${instanceId}`, message, { reason });
      },
      'mp.store.end': (transfer) => logTransfer('Stored', transfer),
      'mp.retrieve.end': (transfer) => logTransfer('Retrieved', transfer),
    },
  };
}
