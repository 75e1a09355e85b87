/** Log lines whose reader is slow, stuck or gone */
import { spawn } from 'node:child_process';
import { once } from 'node:events';
import path from 'node:path';
import { Writable } from 'node:stream';
import * as assert from 'uvu/assert';
import { BACKLOG_BYTES_MAX, LineWriter } from '../../../src/observability/line-writer.ts';
import { suite } from '../../support/suite.ts';

const SOURCE = path.resolve(import.meta.dirname, '../../../src/observability/line-writer.ts');

/** A stream that takes one line at a time, when it is told to. */
function slowStream() {
  const taken: string[] = [];
  let next: (() => void) | null = null;
  const stream = new Writable({
    decodeStrings: false,
    write(line: string, _encoding, callback) {
      taken.push(line);
      next = callback;
    },
  });
  const turn = () => new Promise((resolve) => setImmediate(resolve));
  return {
    stream,
    taken,
    takeAll: async () => {
      while (stream.writableLength > 0) {
        next?.();
        await turn();
      }
    },
  };
}

suite('log lines', (test) => {
  test('they wait for a slow reader, in order', async () => {
    const { stream, taken, takeAll } = slowStream();
    const lines = new LineWriter(stream);
    for (const line of ['a\n', 'b\n', 'c\n']) {
      lines.write(line);
      await Promise.resolve();
    }
    assert.equal(taken, ['a\n']);
    await takeAll();
    assert.equal(taken, ['a\n', 'b\n', 'c\n']);
    assert.is(lines.lostCount, 0);
  });

  test('lines of one callback are written together when it ends', async () => {
    const { stream, taken } = slowStream();
    const lines = new LineWriter(stream);
    for (const line of ['a\n', 'b\n']) lines.write(line);
    assert.equal(taken, [], 'not yet');
    await Promise.resolve();
    assert.equal(taken, ['a\nb\n']);
  });

  test('a process that ends in the middle of a callback has its lines written by flush', () => {
    const { stream, taken } = slowStream();
    const lines = new LineWriter(stream);
    lines.write('last words\n');
    lines.flush();
    lines.flush();
    assert.equal(taken, ['last words\n']);
  });

  test('a stuck reader costs bounded memory, and the lines it missed are counted', async () => {
    const { stream, taken, takeAll } = slowStream();
    const lines = new LineWriter(stream);
    const line = `${'x'.repeat(1023)}\n`;
    const writtenCount = 3 * (BACKLOG_BYTES_MAX / line.length);
    for (let i = 0; i < writtenCount; i += 1) lines.write(line);
    await Promise.resolve();
    assert.ok(stream.writableLength <= BACKLOG_BYTES_MAX + line.length);
    assert.is(lines.lostCount, writtenCount - stream.writableLength / line.length);
    await takeAll();
    const lostCount = lines.lostCount;
    lines.write('heard again\n');
    await takeAll();
    assert.is(lines.lostCount, lostCount);
    assert.is(taken.at(-1), 'heard again\n');
  });

  test('a reader of a pipe that goes away loses lines, not the process', async () => {
    // Waits for its stdin to end before it writes; tells by its exit code what it has lost.
    const script = `
      import { once } from 'node:events';
      import { LineWriter } from ${JSON.stringify(SOURCE)};
      const lines = new LineWriter(process.stderr);
      await once(process.stdin.resume(), 'end');
      for (let i = 0; i < 3; i += 1) {
        if (i > 0) lines.write('x\\n');
        if (i > 1) lines.write('y\\n');
        await new Promise((resolve) => setImmediate(resolve));
      }
      process.exit(40 + lines.lostCount);`;
    const child = spawn(process.execPath, ['--input-type=module', '-e', script]);
    const ended = once(child, 'exit');
    child.stderr.destroy();
    child.stdin.end();
    assert.is((await ended)[0], 43);
  });
});
