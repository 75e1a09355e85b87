/**
 * The subscribers that write lines, each attached to the bus only while the level of its lines is
 * on in its room. An event that nobody listens to is not even built, so lines that nobody wants
 * cost nothing; `/loglevel` brings them in and sends them away while the server runs.
 *
 *   lines            room      level
 *   request-lines    engine    INFO
 *   mp-lines         engine    DEBUG
 *   l1-lines         storage   DEBUG
 *   l2-lines         l2        DEBUG
 *   sm-lines         storage   DEBUG
 *   blend-lines      engine    DEBUG
 */
import type { EventBus, Subscriber } from '../event-bus.ts';
import type { Logger } from '../log.ts';
import type { LogLevels } from '../log-levels.ts';
import type { Level } from '../log-line.ts';
import { blendLines } from './blend-lines.ts';
import { l1Lines } from './l1-lines.ts';
import { l2Lines } from './l2-lines.ts';
import { mpLines } from './mp-lines.ts';
import { requestLines } from './request-lines.ts';
import { smLines } from './sm-lines.ts';

interface LineSubscriber {
  readonly room: string;
  readonly level: Level;
  readonly make: (log: Logger) => Subscriber;
}

/** In the order of the reference. */
const LINE_SUBSCRIBERS: readonly LineSubscriber[] = [
  { room: 'engine', level: 'info', make: requestLines },
  { room: 'engine', level: 'debug', make: mpLines },
  { room: 'storage', level: 'debug', make: l1Lines },
  { room: 'l2', level: 'debug', make: l2Lines },
  { room: 'storage', level: 'debug', make: smLines },
  { room: 'engine', level: 'debug', make: blendLines },
];

export interface LineOptions {
  readonly bus: EventBus;
  /** The root logger. */
  readonly log: Logger;
  readonly levels: LogLevels;
}

/** Returns a function that ends it. */
export function attachLines({ bus, log, levels }: LineOptions): () => void {
  const switches = LINE_SUBSCRIBERS.map(({ room, level, make }) => {
    const subscriber = make(log.child(room));
    let detach: (() => void) | null = null;
    return (isWanted: boolean) => {
      const isOn = isWanted && levels.isOn(room, level);
      if (isOn) detach ??= bus.attach(subscriber);
      else {
        detach?.();
        detach = null;
      }
    };
  });
  const turn = (isWanted: boolean) => {
    for (const turnOne of switches) turnOne(isWanted);
  };
  turn(true);
  const forget = levels.onChange(() => turn(true));
  return () => {
    forget();
    turn(false);
  };
}
