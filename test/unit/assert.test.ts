/** The end of a process that met a broken invariant: exit code 70, whoever reads its stderr. */
import { spawn } from 'node:child_process';
import { once } from 'node:events';
import path from 'node:path';
import * as assert from 'uvu/assert';
import { EXIT_CODE_FATAL } from '../../src/assert.ts';
import { suite } from '../support/suite.ts';

const SOURCE = path.resolve(import.meta.dirname, '../../src/assert.ts');

const FILL_STDERR = `
  try {
    for (;;) writeSync(2, 'x'.repeat(1024));
  } catch {
    // The pipe is full.
  }`;

/** A process that waits for the end of its stdin and then gives up. */
function dyingProcess(options: { readonly state: string; readonly before?: string }) {
  const script = `
    import { writeSync } from 'node:fs';
    import { once } from 'node:events';
    import { fatal } from ${JSON.stringify(SOURCE)};
    process.stderr.on('error', () => {});
    await once(process.stdin.resume(), 'end');
    ${options.before ?? ''}
    fatal('broken', ${options.state});`;
  const child = spawn(process.execPath, ['--input-type=module', '-e', script]);
  return { child, ended: once(child, 'close') };
}

suite('fatal', (test) => {
  test('the state goes to stderr', async () => {
    const { child, ended } = dyingProcess({ state: '{ slots: 5n }' });
    let text = '';
    child.stderr.on('data', (part) => {
      text += part;
    });
    child.stdin.end();
    assert.is((await ended)[0], EXIT_CODE_FATAL);
    assert.is(text, 'kvd: fatal: broken\nkvd: state: {"slots":"5"}\n');
  });

  test('it ends the process also when nobody reads stderr any more', async () => {
    const { child, ended } = dyingProcess({ state: '{}' });
    child.stderr.destroy();
    child.stdin.end();
    assert.is((await ended)[0], EXIT_CODE_FATAL);
  });

  test('it ends the process also when the reader of stderr is stuck', async () => {
    const { child, ended } = dyingProcess({ state: '{}', before: FILL_STDERR });
    child.stderr.pause();
    child.stdin.end();
    assert.is((await ended)[0], EXIT_CODE_FATAL);
  });

  test('it ends the process also when the state cannot be written down', async () => {
    const state = '(() => { const loop = {}; loop.loop = loop; return loop; })()';
    const { child, ended } = dyingProcess({ state });
    let text = '';
    child.stderr.on('data', (part) => {
      text += part;
    });
    child.stdin.end();
    assert.is((await ended)[0], EXIT_CODE_FATAL);
    assert.match(text, /^kvd: fatal: broken\nkvd: state: unreadable \(TypeError: .*circular/);
  });
});
