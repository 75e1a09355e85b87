/**
 * DEBUG lines about L2 (spec observability 7.1). `prefetchId` numbers lookups inside of the server;
 * it is not the request id of an engine. Load tasks and failures have metrics and no lines.
 */
import type { Subscriber } from '../event-bus.ts';
import type { Logger } from '../log.ts';

export function l2Lines(log: Logger): Subscriber {
  return {
    name: 'L2LoggingSubscriber',
    subscriptions: {
      'l2.store.submitted': ({ adapterIndex, l2Name, taskId, keyCount, totalBytes }) =>
        log.debug('L2 store submitted', { adapterIndex, l2Name, taskId, keyCount, totalBytes }),
      'l2.store.completed': ({ adapterIndex, l2Name, taskId, ...result }) => {
        const { succeededCount, failedCount, bytesTransferred } = result;
        const counts = { succeededCount, failedCount, bytesTransferred };
        log.debug('L2 store completed', { adapterIndex, l2Name, taskId, ...counts });
      },
      'l2.prefetch.lookup.submitted': ({ requestId: prefetchId, keyCount, adapterCount }) =>
        log.debug('L2 prefetch lookup submitted', { prefetchId, keyCount, adapterCount }),
      'l2.prefetch.lookup.completed': ({ requestId: prefetchId, prefixHitCount }) =>
        log.debug('L2 prefetch lookup completed', { prefetchId, prefixHitCount }),
      'l2.prefetch.load.submitted': ({ requestId: prefetchId, keyCount, adapterCount }) =>
        log.debug('L2 prefetch load submitted', { prefetchId, keyCount, adapterCount }),
      'l2.prefetch.load.completed': ({ requestId: prefetchId, loadedCount, failedCount }) =>
        log.debug('L2 prefetch load completed', { prefetchId, loadedCount, failedCount }),
      'l2.keys.evicted': ({ adapterIndex, l2Name, keyCount }) => {
        if (keyCount > 0) log.debug('L2 keys evicted', { adapterIndex, l2Name, keyCount });
      },
    },
  };
}
