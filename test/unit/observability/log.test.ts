import * as assert from 'uvu/assert';
import { createLogger, type LogOptions } from '../../../src/observability/log.ts';
import { formatTime } from '../../../src/observability/log-line.ts';
import { suite } from '../../support/suite.ts';
import { VirtualClock } from '../../support/virtual-clock.ts';

async function house(options: Partial<LogOptions> = {}) {
  const clock = new VirtualClock();
  const lines: string[] = [];
  const log = await createLogger({
    ...{ format: 'text', level: 'info', clock, hasColours: false },
    write: (line) => void lines.push(line),
    ...options,
  } as LogOptions);
  return { log, lines, clock };
}

const TIME = String.raw`\[\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d{3}\]`;

suite('log: text', (test) => {
  test('a line has the shape that scripts look for', async () => {
    const { log, lines } = await house();
    log.info('LMCache HTTP server initialized');
    log.child('wire').warn('odd', { peer: 'tcp://a', n: 5n, text: 'two words' });
    assert.match(lines[0]!, new RegExp(`^${TIME} KVD INFO: LMCache HTTP server .*\\(kvd\\)\n$`));
    assert.match(
      lines[1]!,
      new RegExp(`^${TIME} KVD WARNING: odd peer=tcp://a n=5 text="two words" \\(kvd.wire\\)\n$`),
    );
  });

  test('time is local, with milliseconds after a comma', () => {
    const local = new Date(2026, 10, 29, 20, 1, 19, 16);
    assert.is(formatTime(local.getTime()), '2026-11-29 20:01:19,016');
  });

  test('levels below the minimum are left out', async () => {
    const { log, lines } = await house({ level: 'warn' });
    log.debug('a');
    log.info('b');
    log.limited('info', 'key', 'c');
    log.error('d');
    assert.is(lines.length, 1);
    assert.match(lines[0]!, /ERROR: d/);
  });

  test('colours appear only when asked for', async () => {
    const plain = await house();
    plain.log.error('x');
    assert.not.ok(plain.lines[0]!.includes('\x1b'));
    const coloured = await house({ hasColours: true });
    coloured.log.error('x');
    assert.ok(coloured.lines[0]!.startsWith('\x1b[31m['));
    assert.ok(coloured.lines[0]!.endsWith('\x1b[0m x \x1b[3m(kvd)\x1b[0m\n'));
  });

  test('client text cannot forge a line or move the cursor', async () => {
    const { log, lines } = await house();
    log.info('model "a\n[2026-11-29 20:01:19,016] KVD ERROR: forged\x1b[2J\x9b"', { id: 'b\nc' });
    assert.is(lines.length, 1);
    assert.is(lines[0]!.trimEnd().split('\n').length, 1);
    assert.match(lines[0]!, 'forged\\x1b[2J\\x9b');
  });

  test('nor can client text in a field', async () => {
    const { log, lines } = await house();
    log.info('x', { id: 'a\nb\x9b2J\x7f' });
    assert.match(lines[0]!, 'x id="a\\nb\\x9b2J\\x7f" (kvd)\n');
  });
});

suite('log: rate limit', (test) => {
  test('the first line at once, the rest as a count once a minute, then nothing', async () => {
    const { log, lines, clock } = await house();
    for (let i = 0; i < 5; i += 1) log.limited('warn', 'peer-1', `bad frame ${i}`);
    assert.is(lines.length, 1);
    assert.match(lines[0]!, /WARNING: bad frame 0 /);
    clock.advance(59_999);
    assert.is(lines.length, 1);
    clock.advance(1);
    assert.is(lines.length, 2);
    assert.match(lines[1]!, /bad frame 4 \(4 more in the last 60 s\)/);
    clock.advance(600_000);
    assert.is(lines.length, 2);
    log.limited('warn', 'peer-1', 'bad frame 5');
    assert.is(lines.length, 3);
  });

  test('keys and rooms are counted apart', async () => {
    const { log, lines } = await house();
    log.limited('warn', 'a', 'one');
    log.limited('warn', 'b', 'two');
    log.child('wire').limited('warn', 'a', 'three');
    log.child('wire').limited('warn', 'a', 'three');
    assert.is(lines.length, 3);
  });

  test('a client cannot get more lines by inventing keys', async () => {
    const { log, lines } = await house();
    for (let i = 0; i < 5000; i += 1) log.limited('warn', `key ${i}`, `line ${i}`);
    assert.is(lines.length, 1001);
    log.child('storage').limited('warn', 'key', 'another room still speaks');
    assert.is(lines.length, 1002);
  });

  test('fields stand behind the message, also behind the count', async () => {
    const { log, lines, clock } = await house();
    log.limited('warn', 'k', 'odd', { n: 1 });
    log.limited('warn', 'k', 'odd', { n: 2 });
    clock.advance(60_000);
    assert.match(lines[0]!, /WARNING: odd n=1 /);
    assert.match(lines[1]!, /WARNING: odd \(1 more in the last 60 s\) n=2 /);
  });
});

suite('log: json', (test) => {
  test('one JSON object per line, with room, level and fields', async () => {
    const { log, lines } = await house({ format: 'json' });
    log.child('wire').warn('odd', { id: 9_223_372_036_854_775_807n, n: 1 });
    assert.equal(JSON.parse(lines[0]!), {
      level: 'WARNING',
      time: '2023-11-14T22:13:20.000Z',
      room: 'wire',
      id: '9223372036854775807',
      n: 1,
      message: 'odd',
    });
    assert.match(lines[0]!, /\n$/);
  });

  test('levels and limits work as in text', async () => {
    const { log, lines } = await house({ format: 'json', level: 'error' });
    log.warn('left out');
    log.limited('error', 'k', 'a');
    log.limited('error', 'k', 'b');
    assert.is(lines.length, 1);
  });
});
