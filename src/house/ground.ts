/** What every part of the house stands on. */
import type { Clock } from '../clock.ts';
import type { ServerConfig } from '../config/config.ts';
import type { EventBus } from '../observability/event-bus.ts';
import type { Logger } from '../observability/log.ts';
import type { StorageTrace } from '../storage/trace-recording.ts';

export interface Ground {
  readonly config: ServerConfig;
  readonly clock: Clock;
  readonly bus: EventBus;
  readonly log: Logger;
  /** Records what is asked of the storage room; absent: nobody does. */
  readonly trace?: StorageTrace;
}
