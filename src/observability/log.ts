/**
 * Logging: one line per event, on stderr, as text for people or as JSON for log shippers.
 *
 * Rooms get a `Logger` and nothing else; `server.ts` and the CLI make the root with `createLogger`.
 * pino writes the JSON and is loaded only then (text needs no library and starts faster).
 */
import type { Clock } from '../clock.ts';
import { LineLimit } from './line-limit.ts';
import { type Fields, formatLine, LEVEL_NAMES, type Level } from './log-line.ts';

export interface Logger {
  debug(message: string, fields?: Record<string, unknown>): void;
  info(message: string, fields?: Record<string, unknown>): void;
  warn(message: string, fields?: Record<string, unknown>): void;
  error(message: string, fields?: Record<string, unknown>): void;
  /** A line that a client can cause: at most one per `key` and minute, with the count left out. */
  limited(
    level: 'info' | 'warn' | 'error',
    key: string,
    message: string,
    fields?: Record<string, unknown>,
  ): void;
  child(room: string): Logger;
}

export interface LogOptions {
  readonly format: 'text' | 'json';
  /** Least serious level that is written. */
  readonly level: Level;
  readonly clock: Clock;
  readonly hasColours: boolean;
  readonly write: (line: string) => void;
}

type Sink = (level: Level, room: string, message: string, fields: Fields | undefined) => void;

const RANK: Readonly<Record<Level, number>> = { debug: 0, info: 1, warn: 2, error: 3 };

class RoomLogger implements Logger {
  readonly #room: string;
  readonly #rankMin: number;
  readonly #sink: Sink;
  readonly #limit: LineLimit;

  constructor(room: string, rankMin: number, sink: Sink, limit: LineLimit) {
    this.#room = room;
    this.#rankMin = rankMin;
    this.#sink = sink;
    this.#limit = limit;
  }

  debug(message: string, fields?: Record<string, unknown>): void {
    this.#log('debug', message, fields);
  }

  info(message: string, fields?: Record<string, unknown>): void {
    this.#log('info', message, fields);
  }

  warn(message: string, fields?: Record<string, unknown>): void {
    this.#log('warn', message, fields);
  }

  error(message: string, fields?: Record<string, unknown>): void {
    this.#log('error', message, fields);
  }

  limited(
    level: 'info' | 'warn' | 'error',
    key: string,
    message: string,
    fields?: Record<string, unknown>,
  ): void {
    if (RANK[level] < this.#rankMin) return;
    const place = { room: this.#room, key };
    this.#limit.offer(place, (suffix) => this.#log(level, message + suffix, fields));
  }

  child(room: string): Logger {
    const name = this.#room === '' ? room : `${this.#room}.${room}`;
    return new RoomLogger(name, this.#rankMin, this.#sink, this.#limit);
  }

  #log(level: Level, message: string, fields?: Fields): void {
    if (RANK[level] >= this.#rankMin) this.#sink(level, this.#room, message, fields);
  }
}

function textSink(options: LogOptions): Sink {
  const { clock, hasColours, write } = options;
  return (level, room, message, fields) =>
    write(formatLine({ wallMs: clock.wallMs(), level, room, message, fields }, hasColours));
}

/** `{"level":"INFO","time":"2026-…Z","room":"wire","message":"…",…fields}` */
async function jsonSink(options: LogOptions): Promise<Sink> {
  const { pino } = await import('pino');
  const lines = pino(
    {
      level: 'debug',
      base: null,
      messageKey: 'message',
      errorKey: 'error',
      timestamp: () => `,"time":"${new Date(options.clock.wallMs()).toISOString()}"`,
      formatters: { level: (label) => ({ level: LEVEL_NAMES[label as Level] }) },
    },
    { write: options.write },
  );
  return (level, room, message, fields) => lines[level]({ room, ...plainFields(fields) }, message);
}

/** JSON has no integers beyond 2^53, so ids are text there. */
function plainFields(fields: Fields | undefined): Record<string, unknown> {
  const plain: Record<string, unknown> = {};
  for (const [name, value] of Object.entries(fields ?? {})) {
    plain[name] = typeof value === 'bigint' ? value.toString() : value;
  }
  return plain;
}

export async function createLogger(options: LogOptions): Promise<Logger> {
  const sink = options.format === 'json' ? await jsonSink(options) : textSink(options);
  return new RoomLogger('', RANK[options.level], sink, new LineLimit(options.clock));
}

/** For tests and tools that must stay quiet. */
export const silentLogger: Logger = {
  debug() {},
  info() {},
  warn() {},
  error() {},
  limited() {},
  child: () => silentLogger,
};
