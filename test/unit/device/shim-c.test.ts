/** The C tests of the shim, under the address and undefined-behaviour sanitizers. */
import { spawnSync } from 'node:child_process';
import fs from 'node:fs';
import os from 'node:os';
import path from 'node:path';
import * as assert from 'uvu/assert';
import { suite } from '../../support/suite.ts';

const SHIM = path.join(import.meta.dirname, '../../../shim');
const STRICT = ['-std=c17', '-Wall', '-Wextra', '-Werror'];

function compile(output: string, flags: readonly string[], sources: readonly string[]): void {
  const args = [...STRICT, ...flags, '-o', output, ...sources, '-lpthread'];
  const result = spawnSync('cc', args, { encoding: 'utf8' });
  assert.is(result.status, 0, `cc ${args.join(' ')}\n${result.stderr}`);
}

function inFolder(body: (folder: string) => void): void {
  const folder = fs.mkdtempSync(path.join(os.tmpdir(), 'kvd-shim-'));
  try {
    body(folder);
  } finally {
    fs.rmSync(folder, { recursive: true });
  }
}

const sources = fs
  .readdirSync(SHIM)
  .filter((name) => name.endsWith('.c'))
  .map((name) => path.join(SHIM, name));

suite('shim in C', (test) => {
  test('its own tests pass under the sanitizers', () =>
    inFolder((folder) => {
      const program = path.join(folder, 'shim_test');
      const flags = ['-g', '-O1', '-fsanitize=address,undefined', '-fno-sanitize-recover=all'];
      compile(program, flags, [...sources, path.join(SHIM, 'test/shim_test.c')]);
      // The sanitizer must leave SIGBUS to the handler under test.
      const env = { ...process.env, ASAN_OPTIONS: 'handle_sigbus=0' };
      const result = spawnSync(program, { encoding: 'utf8', env });
      assert.is(result.status, 0, `${result.stdout}${result.stderr}`);
    }));

  test('it compiles without warnings and needs nothing newer than glibc 2.36', () =>
    inFolder((folder) => {
      const library = path.join(folder, 'libkvshim.so');
      compile(library, ['-O2', '-shared', '-fPIC'], sources);
      const symbols = spawnSync('objdump', ['-T', library], { encoding: 'utf8' });
      assert.is(symbols.status, 0, symbols.stderr);
      const minors = [...symbols.stdout.matchAll(/GLIBC_2\.(\d+)/g)].map((match) =>
        Number(match[1]),
      );
      assert.ok(minors.length > 0);
      assert.ok(Math.max(...minors) <= 36, `needs GLIBC_2.${Math.max(...minors)}`);
    }));
});
