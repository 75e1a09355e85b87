/**
 * Log levels of a running server (spec http 7.5, 10.12).
 *
 *   POST {"logger", "level"}          the documented way; a logger is `kvd`, or a room: `wire`
 *   GET                               all of them
 *   GET ?logger_name=                 one: its level, or NOTSET = as `kvd`
 *   GET ?logger_name=&level=          changes it, in the reference's words; so it is guarded like
 *                                     the other ways to change something
 *
 * Differences from the reference: `level` alone sets `kvd` (there: `null`), NOTSET takes back what
 * was said for a room, and a room has the level of `kvd` until it has one. A GET accepts any name,
 * as there, because tools of the reference name its own loggers; POST says which names there are.
 */
import type { Context } from 'hono';
import { HTTPException } from 'hono/http-exception';
import {
  isLogRoom,
  LEVEL_NAMES,
  LOG_ROOMS,
  type Logger,
  type LogLevels,
  levelOfWord,
} from '../../observability/log.ts';
import { jsonResponse } from '../json.ts';
import type { Room } from '../room.ts';
import { FieldReader, requireBodyFields } from '../validation.ts';

const ROOT = 'kvd';
/** What the reference and its users call it. */
const ROOT_NAMES = new Set(['', ROOT, 'root', 'lmcache']);
const NAME_CHARS_MAX = 200;
const NOT_SET = 'NOTSET';

export interface LogLevelOptions {
  readonly levels: LogLevels;
  readonly log: Logger;
}

/** '' = the root. */
const roomOf = (logger: string): string =>
  ROOT_NAMES.has(logger) ? '' : logger.replace(/^kvd\./, '');
const loggerOf = (room: string): string => (room === '' ? ROOT : `${ROOT}.${room}`);

function shownLevel(levels: LogLevels, room: string): string {
  const level = room === '' ? levels.root : levels.ownLevelOf(room);
  return level === null ? NOT_SET : LEVEL_NAMES[level];
}

/** Throws 400 for a word that is no level, an odd name, or one too many that has a level. */
function setLevel({ levels, log }: LogLevelOptions, room: string, word: string): void {
  const isReset = room !== '' && word.trim().toUpperCase() === NOT_SET;
  const level = isReset ? null : levelOfWord(word);
  if (level === null && !isReset) refuse(`Invalid log level: ${word}`);
  if (!/^[\x21-\x7e]*$/.test(room)) refuse('a logger name has only visible ASCII characters');
  if (room.length > NAME_CHARS_MAX)
    refuse(`a logger name has at most ${NAME_CHARS_MAX} characters`);
  if (room === '') levels.setRoot(level ?? levels.root);
  else if (!levels.set(room, level)) refuse('too many loggers have a level; reset one with NOTSET');
  log.info(`log level of ${loggerOf(room)}: ${shownLevel(levels, room)}`);
}

function refuse(message: string): never {
  throw new HTTPException(400, { message });
}

/** The reference answers in text, also when it refuses. */
function answerText(run: () => string): Response {
  const headers = { 'content-type': 'text/plain; charset=utf-8' };
  try {
    return new Response(run(), { headers });
  } catch (error) {
    if (!(error instanceof HTTPException)) throw error;
    return new Response(error.message, { status: error.status, headers });
  }
}

function listLevels(levels: LogLevels): string {
  const rooms = ['', ...levels.names()];
  const lines = rooms.map((room) => `${loggerOf(room)}: ${shownLevel(levels, room)}`);
  return ['=== Loggers and Levels ===', ...lines].join('\n');
}

export function addLogLevelRoutes({ app, guard }: Room, options: LogLevelOptions): void {
  const { levels } = options;
  const isChange = (c: Context) => (c.req.query('level') ?? '') !== '';
  const [reads, changes] = [guard('internal'), guard('mutating')];
  app.get(
    '/loglevel',
    (c, next) => (isChange(c) ? changes(c, next) : reads(c, next)),
    (c) => {
      const name = c.req.query('logger_name') ?? '';
      const word = c.req.query('level') ?? '';
      if (name === '' && word === '') return answerText(() => listLevels(levels));
      return answerText(() => {
        if (word === '') return `${name}: ${shownLevel(levels, roomOf(name))}`;
        setLevel(options, roomOf(name), word);
        return `Set ${name || ROOT} level to ${word.trim().toUpperCase()} (including all handlers)`;
      });
    },
  );

  app.post('/loglevel', guard('mutating'), async (c) => {
    const body = await requireBodyFields(c.req.raw);
    const fields = new FieldReader();
    const room = roomOf(fields.bodyText(['body', 'logger'], body['logger'], ROOT));
    const word = fields.bodyText(['body', 'level'], body['level'], null);
    fields.finish();
    if (room !== '' && !isLogRoom(room)) {
      const known = ['', ...LOG_ROOMS].map(loggerOf).join(', ');
      throw new HTTPException(404, { message: `no such logger; there are ${known}` });
    }
    setLevel(options, room, word);
    return jsonResponse({ logger: loggerOf(room), level: shownLevel(levels, room) });
  });
}
