/** Levels of rooms: what holds for whom, how they are written, and that loggers follow changes. */
import * as assert from 'uvu/assert';
import {
  isLogRoom,
  LOG_ROOMS,
  LogLevels,
  levelOfWord,
  parseLogLevels,
} from '../../../src/observability/log-levels.ts';
import type { Level } from '../../../src/observability/log-line.ts';
import { openLineLog } from '../../support/line-log.ts';
import { readSources } from '../../support/source-files.ts';
import { suite } from '../../support/suite.ts';
import { VirtualClock } from '../../support/virtual-clock.ts';

function levelsOf(root: Level, text = ''): LogLevels {
  const parsed = parseLogLevels(text);
  if ('reason' in parsed) throw new Error(parsed.reason);
  return new LogLevels({ root, rooms: parsed.rooms });
}

function reasonOf(text: string): string {
  const parsed = parseLogLevels(text);
  return 'reason' in parsed ? parsed.reason : (assert.unreachable(`${text} is accepted`) ?? '');
}

suite('log levels', (test) => {
  test('a room has its own level, that of the room around it, or that of the root', () => {
    const levels = levelsOf('warn', 'wire=debug,wire.grpc=error');
    assert.is(levels.levelOf(''), 'warn');
    assert.is(levels.levelOf('engine'), 'warn');
    assert.is(levels.levelOf('wire'), 'debug');
    assert.is(levels.levelOf('wire.router'), 'debug');
    assert.is(levels.levelOf('wire.grpc.server'), 'error');
    assert.is(levels.levelOf('wireless'), 'warn');
    assert.is(levels.ownLevelOf('wire.router'), null);
  });

  test('a level that is taken back leaves the one around it', () => {
    const levels = levelsOf('info', 'wire=debug');
    levels.set('wire', null);
    assert.is(levels.levelOf('wire'), 'info');
    levels.setRoot('error');
    assert.is(levels.levelOf('wire'), 'error');
    assert.ok(levels.isOn('wire', 'error'));
    assert.not.ok(levels.isOn('wire', 'warn'));
  });

  test('each change is told until the listener has enough', () => {
    const levels = levelsOf('info');
    let toldCount = 0;
    const forget = levels.onChange(() => {
      toldCount += 1;
    });
    const { version } = levels;
    levels.set('l2', 'debug');
    levels.setRoot('warn');
    assert.is(toldCount, 2);
    assert.is(levels.version, version + 2);
    forget();
    levels.set('l2', null);
    assert.is(toldCount, 2);
  });

  test('names are all rooms and what else has a level; their number is bounded', () => {
    const levels = levelsOf('info');
    assert.ok(levels.set('lmcache.x', 'debug'));
    assert.equal(levels.names(), [...LOG_ROOMS, 'lmcache.x'].sort());
    for (let i = 0; i < 99; i += 1) assert.ok(levels.set(`name-${i}`, 'info'));
    assert.not.ok(levels.set('one too many', 'info'));
    assert.ok(levels.set('lmcache.x', 'error'), 'those that have one can be changed');
    assert.ok(levels.set('name-0', null));
    assert.ok(levels.set('one too many', 'info'));
  });

  test('every room that server.ts and others make a logger for is known', () => {
    const rooms = readSources()
      .filter(({ file }) => file.startsWith('src/'))
      .flatMap(({ text }) => [...text.matchAll(/\.child\('([^']+)'\)/g)].map(([, room]) => room));
    assert.ok(rooms.length > 5);
    assert.equal(
      rooms.filter((room) => !isLogRoom(room ?? '')),
      [],
    );
  });
});

suite('log levels: text', (test) => {
  test('rooms with levels, in any case and with blanks', () => {
    assert.equal(parseLogLevels(''), { rooms: new Map() });
    assert.equal(parseLogLevels(' wire = Debug ,storage.l1=WARNING'), {
      rooms: new Map([
        ['wire', 'debug'],
        ['storage.l1', 'warn'],
      ]),
    });
  });

  test('words of the reference are levels, in any case', () => {
    const words = ['debug', 'Info', 'WARNING', 'warn', 'ERROR', 'critical', 'FATAL'];
    assert.equal(words.map(levelOfWord), [
      'debug',
      'info',
      'warn',
      'warn',
      'error',
      'error',
      'error',
    ]);
    for (const word of ['', 'loud', 'NOTSET', '__proto__', 'constructor', '10']) {
      assert.is(levelOfWord(word), null, word);
    }
  });

  test('a fault names its part and the mend', () => {
    const rooms = 'a room is one of wire, http, engine, storage, l2, device, observability';
    assert.is(reasonOf('wire=loud'), "'wire=loud': a level is one of DEBUG, INFO, WARNING, ERROR");
    assert.is(reasonOf('l2=info,wrie=debug'), `'wrie=debug': ${rooms}`);
    assert.is(reasonOf('=debug'), `'=debug': ${rooms}`);
    assert.is(reasonOf('wire.=debug'), `'wire.=debug': ${rooms}`);
    assert.is(reasonOf('kvd=debug'), `'kvd=debug': ${rooms}`);
    const bare = 'expected ROOM=LEVEL; --log-level is for all rooms';
    assert.is(reasonOf('debug'), `'debug': ${bare}`);
    assert.is(reasonOf('wire=info,,l2=info'), `'': ${bare}`);
    assert.is(reasonOf('l2=info=debug'), "'l2=info=debug': two =; separate rooms by commas");
    const twice = "'wire=debug': wire has a level already; leave one out";
    assert.is(reasonOf('wire=info,wire=debug'), twice);
    assert.ok(reasonOf('x'.repeat(10_000)).length < 200);
  });
});

suite('log levels: loggers', (test) => {
  async function house() {
    const levels = levelsOf('info');
    const clock = new VirtualClock();
    const { lines, log } = await openLineLog(levels, clock);
    return { levels, clock, lines, log };
  }

  test('follow every change, those that were made before it, too', async () => {
    const { levels, lines, log } = await house();
    const wire = log.child('wire');
    const grpc = wire.child('grpc');
    wire.debug('left out');
    levels.set('wire', 'debug');
    wire.debug('a');
    grpc.debug('b');
    log.debug('left out');
    levels.set('wire', 'error');
    grpc.warn('left out');
    levels.set('wire', null);
    levels.setRoot('debug');
    log.debug('c');
    wire.debug('d');
    assert.equal(lines, [
      'DEBUG: a (kvd.wire)',
      'DEBUG: b (kvd.wire.grpc)',
      'DEBUG: c (kvd)',
      'DEBUG: d (kvd.wire)',
    ]);
  });

  test('a limited line and its later count keep to the level of their time', async () => {
    const { levels, clock, lines, log } = await house();
    for (let i = 0; i < 3; i += 1) log.limited('info', 'key', 'x');
    levels.setRoot('error');
    log.limited('info', 'other key', 'left out');
    clock.advance(60_000);
    assert.equal(lines, ['INFO: x (kvd)']);
  });
});
