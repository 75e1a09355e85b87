/**
 * Logging: one line per event, on stderr, as text for people or as JSON for log shippers.
 *
 *   room ─▶ Logger ─ is the level of the room on? ─ redaction ─▶ text or JSON ─▶ `write`
 *           log-levels.ts: changeable at any time   redaction.ts
 *
 * Rooms get a `Logger` and nothing else; `server.ts` and the CLI make the root with `createLogger`.
 * pino writes the JSON and is loaded only then (text needs no library and starts faster).
 */
import type { Clock } from '../clock.ts';
import { LineLimit } from './line-limit.ts';
import { LEVEL_RANKS, LogLevels } from './log-levels.ts';
import { type Fields, formatLine, LEVEL_NAMES, type Level } from './log-line.ts';
import { redactFields, redactText } from './redaction.ts';

// Rooms see this file only; the HTTP interface and the configuration change levels.
export { isLogRoom, LOG_ROOMS, levelOfWord, parseLogLevels } from './log-levels.ts';
export { LEVEL_NAMES, type LogLevels };

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
  /** Least serious level that is written: one for good, or one for each room that can change. */
  readonly level: Level | LogLevels;
  readonly clock: Clock;
  readonly hasColours: boolean;
  readonly write: (line: string) => void;
}

type Sink = (level: Level, room: string, message: string, fields: Fields | undefined) => void;

class RoomLogger implements Logger {
  readonly #room: string;
  readonly #levels: LogLevels;
  readonly #sink: Sink;
  readonly #limit: LineLimit;
  /** Rank of the room's level, and the version of the levels that it is good for. */
  #rankMin = 0;
  #version = -1;

  constructor(room: string, levels: LogLevels, sink: Sink, limit: LineLimit) {
    this.#room = room;
    this.#levels = levels;
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
    if (!this.#isOn(level)) return;
    const place = { room: this.#room, key };
    this.#limit.offer(place, (suffix) => this.#log(level, message + suffix, fields));
  }

  child(room: string): Logger {
    const name = this.#room === '' ? room : `${this.#room}.${room}`;
    return new RoomLogger(name, this.#levels, this.#sink, this.#limit);
  }

  #isOn(level: Level): boolean {
    const { version } = this.#levels;
    if (version !== this.#version) {
      this.#rankMin = LEVEL_RANKS[this.#levels.levelOf(this.#room)];
      this.#version = version;
    }
    return LEVEL_RANKS[level] >= this.#rankMin;
  }

  #log(level: Level, message: string, fields?: Fields): void {
    if (!this.#isOn(level)) return;
    this.#sink(level, this.#room, redactText(message), fields && redactFields(fields));
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

/** JSON has no integers beyond 2^53, so ids are text there; of an error it would show nothing. */
function plainFields(fields: Fields | undefined): Record<string, unknown> {
  const plain: Record<string, unknown> = {};
  for (const [name, value] of Object.entries(fields ?? {})) {
    if (value instanceof Error) plain[name] = { message: value.message, stack: value.stack };
    else plain[name] = typeof value === 'bigint' ? value.toString() : value;
  }
  return plain;
}

export async function createLogger(options: LogOptions): Promise<Logger> {
  const sink = options.format === 'json' ? await jsonSink(options) : textSink(options);
  const { level } = options;
  const levels = typeof level === 'string' ? new LogLevels({ root: level }) : level;
  return new RoomLogger('', levels, sink, new LineLimit(options.clock));
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
