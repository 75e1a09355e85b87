/** DEBUG lines about objects in L1 (spec observability 7.1). A call without objects has none. */
import type { Subscriber } from '../event-bus.ts';
import type { Logger } from '../log.ts';

export function l1Lines(log: Logger): Subscriber {
  const logKeys =
    (operation: string) =>
    ({ keyCount }: { readonly keyCount: number }) => {
      if (keyCount > 0) log.debug(`L1 ${operation}`, { keyCount });
    };
  return {
    name: 'L1LoggingSubscriber',
    subscriptions: {
      'l1.read.reserved': logKeys('read reserved'),
      'l1.read.finished': logKeys('read finished'),
      'l1.write.reserved': logKeys('write reserved'),
      'l1.write.finished': logKeys('write finished'),
      'l1.write_finished_and_read_reserved': logKeys('write finished and read reserved'),
      'l1.keys.evicted': ({ keyCount, cause, bytes }) => {
        if (keyCount > 0) log.debug('L1 keys removed', { keyCount, cause, bytes });
      },
    },
  };
}
