/**
 * How much each room logs: as `--log-level` and `--log-levels` say, until `/loglevel` changes it.
 *
 *   kvd           info         the root: holds for every room that says nothing of its own
 *   kvd.wire      debug        said for this room, and for rooms inside of it (kvd.wire.grpc)
 *   kvd.engine    as kvd
 *
 * A logger asks for its level with each line, so it keeps the answer and the `version` that it is
 * good for: a line that is not written costs two comparisons, and no look into a table.
 */
import { LEVEL_NAMES, type Level } from './log-line.ts';

/** Rooms that log: the names of the loggers below the root. */
export const LOG_ROOMS = ['wire', 'http', 'engine', 'storage', 'l2', 'device', 'observability'];

export const LEVEL_RANKS: Readonly<Record<Level, number>> = {
  debug: 0,
  info: 1,
  warn: 2,
  error: 3,
};

/** Words for a level, in any case; those of the reference's logging library among them. */
const LEVELS_BY_WORD: Readonly<Record<string, Level>> = {
  DEBUG: 'debug',
  INFO: 'info',
  WARNING: 'warn',
  WARN: 'warn',
  ERROR: 'error',
  // No line is more serious than an error.
  CRITICAL: 'error',
  FATAL: 'error',
};

/** Names that nobody logs under can be set, too, so their number has a limit. */
const NAME_COUNT_MAX = 100;

export interface LevelSettings {
  readonly root: Level;
  /** Levels of their own. */
  readonly rooms?: ReadonlyMap<string, Level>;
}

export class LogLevels {
  #root: Level;
  readonly #own: Map<string, Level>;
  readonly #listeners = new Set<() => void>();
  #version = 0;

  constructor({ root, rooms }: LevelSettings) {
    this.#root = root;
    this.#own = new Map(rooms);
  }

  /** Grows with each change. */
  get version(): number {
    return this.#version;
  }

  get root(): Level {
    return this.#root;
  }

  /** What was said for this name; null = nothing. */
  ownLevelOf(name: string): Level | null {
    return this.#own.get(name) ?? null;
  }

  /** What holds for a room: its own level, else that of the room around it, else the root's. */
  levelOf(room: string): Level {
    for (let name = room; name !== ''; name = name.slice(0, Math.max(0, name.lastIndexOf('.')))) {
      const level = this.#own.get(name);
      if (level !== undefined) return level;
    }
    return this.#root;
  }

  isOn(room: string, level: Level): boolean {
    return LEVEL_RANKS[level] >= LEVEL_RANKS[this.levelOf(room)];
  }

  setRoot(level: Level): void {
    this.#root = level;
    this.#changed();
  }

  /** Null: as the root again. False: too many names have a level already. */
  set(name: string, level: Level | null): boolean {
    if (level === null) this.#own.delete(name);
    else if (this.#own.has(name) || this.#own.size < NAME_COUNT_MAX) this.#own.set(name, level);
    else return false;
    this.#changed();
    return true;
  }

  /** All rooms, and all other names that have a level. */
  names(): string[] {
    return [...new Set([...LOG_ROOMS, ...this.#own.keys()])].sort();
  }

  /** Calls after each change, until the function that it returns is called. */
  onChange(listener: () => void): () => void {
    this.#listeners.add(listener);
    return () => void this.#listeners.delete(listener);
  }

  #changed(): void {
    this.#version += 1;
    for (const listener of this.#listeners) listener();
  }
}

export function levelOfWord(word: string): Level | null {
  return LEVELS_BY_WORD[word.trim().toUpperCase()] ?? null;
}

/** A room, or a part of one: `wire`, `wire.grpc`. */
export function isLogRoom(name: string): boolean {
  return LOG_ROOMS.includes(name.split('.', 1)[0] ?? '') && !/\.(\.|$)/.test(name);
}

export type ParsedLevels =
  | { readonly rooms: ReadonlyMap<string, Level> }
  | { readonly reason: string };

/** `wire=DEBUG,l2=warning`; nothing = no room has a level of its own. */
export function parseLogLevels(text: string): ParsedLevels {
  const rooms = new Map<string, Level>();
  for (const part of text.trim() === '' ? [] : text.split(',')) {
    const [room = '', word, ...rest] = part.split('=').map((piece) => piece.trim());
    const refuse = (why: string) => ({ reason: `'${show(part.trim())}': ${why}` });
    if (word === undefined) return refuse('expected ROOM=LEVEL; --log-level is for all rooms');
    if (rest.length > 0) return refuse('two =; separate rooms by commas');
    if (!isLogRoom(room)) return refuse(`a room is one of ${LOG_ROOMS.join(', ')}`);
    const level = levelOfWord(word);
    if (level === null) return refuse(`a level is one of ${Object.values(LEVEL_NAMES).join(', ')}`);
    if (rooms.has(room)) return refuse(`${room} has a level already; leave one out`);
    rooms.set(room, level);
  }
  return { rooms };
}

function show(text: string): string {
  return text.length > 40 ? `${text.slice(0, 37)}...` : text;
}
