/** What every part of the house stands on. */
import type { Clock } from '../clock.ts';
import type { ServerConfig } from '../config/config.ts';
import type { EventBus } from '../observability/event-bus.ts';
import type { Logger } from '../observability/log.ts';

export interface Ground {
  readonly config: ServerConfig;
  readonly clock: Clock;
  readonly bus: EventBus;
  readonly log: Logger;
}
