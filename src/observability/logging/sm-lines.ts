/** DEBUG lines about calls of the storage manager (spec observability 7.1). */
import type { Subscriber } from '../event-bus.ts';
import type { ChunkRange } from '../events.ts';
import type { Logger } from '../log.ts';

const chunkCountOf = (ranges: readonly ChunkRange[]): number =>
  ranges.reduce((sum, { chunkCount }) => sum + chunkCount, 0);

export function smLines(log: Logger): Subscriber {
  const logCounts = (operation: string, succeededCount: number, failedCount: number) => {
    if (succeededCount + failedCount === 0) return;
    log.debug(`storage ${operation}`, { succeededCount, failedCount });
  };
  return {
    name: 'SMLoggingSubscriber',
    subscriptions: {
      'sm.read.prefetched': ({ succeededCount, failedCount }) =>
        logCounts('read prefetched', succeededCount, failedCount),
      'sm.read.prefetched_finished': ({ succeeded, failedCount }) =>
        logCounts('read of prefetched finished', chunkCountOf(succeeded), failedCount),
      'sm.write.reserved': ({ succeededCount, failedCount }) =>
        logCounts('write reserved', succeededCount, failedCount),
      'sm.write.finished': ({ succeeded, failedCount }) =>
        logCounts('write finished', chunkCountOf(succeeded), failedCount),
    },
  };
}
