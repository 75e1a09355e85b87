/** What `npm run build` leaves in dist/ runs anywhere: no node_modules, no environment, any cwd. */
import { type ChildProcess, spawn, spawnSync } from 'node:child_process';
import { once } from 'node:events';
import fs from 'node:fs';
import os from 'node:os';
import path from 'node:path';
import * as assert from 'uvu/assert';
import { freePorts } from '../support/free-ports.ts';
import { suite } from '../support/suite.ts';

const ROOT = path.resolve(import.meta.dirname, '..', '..');
const EXECUTABLE = path.join(ROOT, 'dist/kvd');
const NATIVE = ['zeromq.node', 'koffi.node', 'libkvshim.so'];
/** Debian 12. */
const GLIBC_MINOR_MAX = 36;

suite('packaging', (test) => {
  let home = '';
  let server: ChildProcess | undefined;
  const run = (file: string, args: string[], env: Record<string, string> = {}) =>
    spawnSync(file, args, {
      cwd: '/',
      env: { HOME: home, PATH: '/usr/bin:/bin', ...env },
      encoding: 'utf8',
      timeout: 20_000,
    });

  test.beforeEach(() => {
    home = fs.mkdtempSync(path.join(os.tmpdir(), 'kvd-packaging-test-'));
  });
  test.afterEach(() => {
    server?.kill('SIGKILL');
    server = undefined;
    fs.rmSync(home, { recursive: true, force: true });
  });

  test('the native files ask for no glibc newer than 2.36', () => {
    for (const name of NATIVE) {
      const file = path.join(ROOT, 'dist/native', name);
      const { stdout, status } = spawnSync('objdump', ['-T', file], { encoding: 'utf8' });
      assert.is(status, 0, `objdump ${name}`);
      const minors = [...stdout.matchAll(/GLIBC_2\.(\d+)/g)].map((match) => Number(match[1]));
      assert.ok(minors.length > 0, name);
      assert.ok(Math.max(...minors) <= GLIBC_MINOR_MAX, `${name} wants 2.${Math.max(...minors)}`);
    }
  });

  test('the executable runs from / and unpacks nothing that it does not need', () => {
    const { stdout, status } = run(EXECUTABLE, ['version']);
    assert.is(status, 0);
    assert.match(stdout, /^kvd \d+\.\d+\.\d+/);
    assert.equal(fs.readdirSync(home), []);
  });

  test('the launcher brings Node 24 whatever the system has', () => {
    const { stdout, stderr, status } = run(path.join(ROOT, 'bin/kvd'), ['version']);
    assert.is(status, 0, stderr);
    assert.match(stdout, /v24\./);
  });

  test('the executable serves from a private folder and ends with 0 on SIGTERM', async () => {
    const [port, httpPort] = await freePorts(2);
    const ports = ['--port', `${port}`, '--http-port', `${httpPort}`];
    const size = ['--l1-size-gb', '0.125', '--eviction-policy', 'LRU'];
    server = spawn(EXECUTABLE, ['server', '--host', '127.0.0.1', ...ports, ...size], {
      cwd: '/',
      env: { HOME: home },
      stdio: ['ignore', 'pipe', 'pipe'],
    });
    let output = '';
    server.stdout?.on('data', (part: Buffer) => (output += part));
    server.stderr?.on('data', (part: Buffer) => (output += part));
    const ended = once(server, 'exit');
    // ZMQ connects as soon as somebody listens: this waits for the server to be up.
    const ping = spawn(EXECUTABLE, ['ping', '--url', `tcp://127.0.0.1:${port}`], {
      env: { HOME: home },
      stdio: 'ignore',
    });
    const [pingCode] = await once(ping, 'exit');
    assert.is(pingCode, 0, output);
    const cache = path.join(home, '.cache/kvd');
    assert.is(fs.statSync(cache).mode & 0o777, 0o700);
    const unpacked = fs.readdirSync(cache).map((name) => name.replace(/^[0-9a-f]{32}-/, ''));
    assert.equal(unpacked.sort(), [...NATIVE].sort());
    server.kill('SIGTERM');
    const [code] = await ended;
    assert.is(code, 0, output);
  });

  test('a folder that cannot be used ends the start with the way out', () => {
    const { stderr, status } = run(EXECUTABLE, ['ping'], { KVD_NATIVE_DIR: '/proc/kvd' });
    assert.ok(status !== 0 && status !== null, `${status}`);
    assert.match(stderr, /\/proc\/kvd: ENOENT.*Set KVD_NATIVE_DIR/s);
  });
});
