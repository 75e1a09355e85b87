/**
 * DEBUG lines about the requests of engines (spec observability 7.1), each with the request's id.
 * The INFO lines about them are in request-lines.ts.
 */
import type { Subscriber } from '../event-bus.ts';
import type { EventCatalogue } from '../events.ts';
import type { Logger } from '../log.ts';

/** Block ids of one request that a line shows. */
const BLOCK_COUNT_SHOWN = 10;

type Start = EventCatalogue['mp.store.start' | 'mp.retrieve.start'];
type End = EventCatalogue['mp.store.end' | 'mp.retrieve.end'];
type Allocation = EventCatalogue['mp.vllm.block_allocation'];

export function mpLines(log: Logger): Subscriber {
  const logStart = (verb: string, { sessionId: requestId, transferId, device, engineId }: Start) =>
    log.debug(`${verb} start`, { requestId, transferId, device, engineId });
  const logEnd = (verb: string, end: End, counts: Readonly<Record<string, number>>) => {
    const { sessionId: requestId, transferId, device, totalBytes, error } = end;
    const failure = error === null ? {} : { error };
    log.debug(`${verb} end`, { requestId, transferId, device, ...counts, totalBytes, ...failure });
  };
  return {
    name: 'MPLoggingSubscriber',
    subscriptions: {
      'mp.lookup_prefetch.start': ({ sessionId: requestId }) =>
        log.debug('lookup start', { requestId }),
      'mp.lookup_prefetch.end': ({ sessionId: requestId, foundCount, ...end }) => {
        const { requestedTokens, hitTokens, error } = end;
        const failure = error === null ? {} : { error };
        const counts = { foundCount, requestedTokens, hitTokens };
        log.debug('lookup end', { requestId, ...counts, ...failure });
      },
      'mp.store.start': (start) => logStart('store', start),
      'mp.store.end': (end) => logEnd('store', end, { storedCount: end.storedCount }),
      'mp.retrieve.start': (start) => logStart('retrieve', start),
      'mp.retrieve.end': (end) => logEnd('retrieve', end, { retrievedCount: end.retrievedCount }),
      'mp.vllm.block_allocation': (allocation) => logAllocation(log, allocation),
    },
  };
}

/** Numbers of tokens, never tokens. */
function logAllocation(log: Logger, { instanceId, records }: Allocation): void {
  for (const { requestId, newBlockIds, newTokenIds } of records) {
    log.debug('block allocation', {
      requestId,
      instanceId,
      blockCount: newBlockIds.length,
      tokenCount: newTokenIds.length,
      firstBlocks: Array.prototype.slice.call(newBlockIds, 0, BLOCK_COUNT_SHOWN),
    });
  }
}
