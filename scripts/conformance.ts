/**
 * `npm run conformance -- [--release 0.5.6] [--with-fs] [arguments of the driver]`: the real client
 * of the reference against kvd, of release 0.5.0 unless another one is named; with --with-fs
 * against one that also keeps everything in files.
 *
 * Strict: whatever fails is a failure. What is left out is named below, with its reason, and on the
 * terminal. The last line is the sum of all runs, `N passed, N failed`.
 */
import { spawnSync } from 'node:child_process';
import fs from 'node:fs';
import os from 'node:os';
import path from 'node:path';
import { DRIVER_ENVIRONMENT, findDrivers, findPython, ROOT } from './reference.ts';

const OUTPUT_BYTES_MAX = 1 << 26;

/**
 * Two checks open a connection and say NOOP first, which no engine does. Up to 0.5.2 its number is
 * that of GET_CHUNK_SIZE of later releases, with which every engine begins, so a server that serves
 * all releases takes it for that (spec wire 10). They pass where the dialect is pinned.
 */
const NOOP_FIRST = 'noop,register_missing_segment';
const OLDEST_DIALECT = ['0.5.0', '0.5.1', '0.5.2'];
/**
 * Two checks know silence as the answer to a registration that lies, but not the error that clients
 * since 0.5.5 get (spec wire 7.3, and what the driver itself expects in register_missing_segment).
 * That kvd survives them is shown under 0.5.0.
 */
const TYPED_REFUSAL = 'hostile_short_segment,hostile_shm_name_traversal';
const NEWEST_DIALECT = ['0.5.5', '0.5.6'];

/**
 * A cleared L1 is filled again from files, and the number of hits is not known while files are
 * still looked for: both as with the reference.
 */
const NOT_WITH_FILES = 'clear,lookup_hits_op';

/**
 * A check that never spoke to the server: since 0.5.6 the client watches each connection through an
 * in-process socket that pyzmq names after a file descriptor. When the descriptor of a client that
 * was just closed is given out again before that name is free, the new client cannot be made. The
 * driver that waits for a server it has started makes one client after the other, says that there
 * was no answer, and has no descriptors left in the end. Such a check is run once more in a new
 * process, and what it then says counts: a server that does not answer fails again.
 */
const CLIENT_NOT_MADE = new RegExp(
  '^FAIL {2}\\w+\\.(\\w+) .*: (?:' +
    'ZMQError: Address already in use|' +
    'ZMQError: Too many open files|' +
    'RuntimeError: server did not answer PING)$',
  'gm',
);

interface Run {
  readonly args: readonly string[];
  readonly serverFlags: readonly string[];
}

/** Takes `--with-fs` out of the arguments: flags of a server that keeps everything in files. */
function takeFiles(given: string[]): string[] {
  const index = given.indexOf('--with-fs');
  if (index < 0) return [];
  given.splice(index, 1);
  const folder = fs.mkdtempSync(path.join(os.tmpdir(), 'kvd-conformance-'));
  process.once('exit', () => fs.rmSync(folder, { recursive: true, force: true }));
  // The driver formats its command, so braces are doubled.
  return ['--l2-adapter', `'{{"type":"fs","base_path":"${folder}/{port}"}}'`];
}

/** Takes `--release VERSION` out of the arguments. */
function takeRelease(given: string[]): string {
  const index = given.indexOf('--release');
  const [, release] = index < 0 ? [] : given.splice(index, 2);
  return release ?? '0.5.0';
}

function runsOf(
  release: string,
  given: readonly string[],
  files: readonly string[],
): readonly Run[] {
  const has = (name: string): boolean =>
    given.some((argument) => argument === name || argument.startsWith(`${name}=`));
  const isChosen = has('--group') || has('--only') || has('--skip') || has('--list');
  const whole = (...skipped: readonly string[]): Run => {
    const names = files.length > 0 ? [...skipped, NOT_WITH_FILES] : skipped;
    if (names.length > 0) console.log(`conformance: left out: ${names.join(',')}`);
    return { args: ['--skip', names.join(','), ...given], serverFlags: files };
  };
  if (OLDEST_DIALECT.includes(release)) {
    const pinned = ['--wire-dialect', 'A', ...files];
    if (isChosen) return [{ args: given, serverFlags: pinned }];
    console.log(`conformance: ${NOOP_FIRST} run with --wire-dialect A, all others without`);
    const noopFirst = { args: ['--only', NOOP_FIRST, ...given], serverFlags: pinned };
    return [whole(NOOP_FIRST), noopFirst];
  }
  if (isChosen) return [{ args: given, serverFlags: files }];
  return [NEWEST_DIALECT.includes(release) ? whole(TYPED_REFUSAL) : whole()];
}

/** Returns how many checks passed and failed, those that had to be repeated by their last run. */
function drive(drivers: string, python: string, run: Run): [number, number] {
  const [output, passed, failed] = driveOnce(drivers, python, run);
  const names = [...output.matchAll(CLIENT_NOT_MADE)].map(([, name]) => name);
  if (names.length === 0) return [passed, failed];
  console.log(`conformance: the client could not be made, once more: ${names.join(',')}`);
  const repeat = { args: ['--only', names.join(',')], serverFlags: run.serverFlags };
  const [, passedNow, failedNow] = driveOnce(drivers, python, repeat);
  return [passed + passedNow, failed - names.length + failedNow];
}

/** Returns what the driver printed, and how many checks passed and failed. */
function driveOnce(
  drivers: string,
  python: string,
  { args, serverFlags }: Run,
): [string, number, number] {
  const log = path.join(ROOT, 'build/conformance-server.log');
  const server = [
    process.execPath,
    path.join(ROOT, 'dist/kvd.mjs'),
    'server --host 127.0.0.1 --port {port} --http-host 127.0.0.1 --http-port {http_port}',
    '--prometheus-port {metrics_port} --l1-size-gb 1 --no-l1-use-lazy --eviction-policy LRU',
    ...serverFlags,
  ].join(' ');
  const driver = [path.join(drivers, 'conformance.py'), '--server-cmd', server];
  const run = spawnSync(python, [...driver, '--server-log', log, ...args], {
    cwd: ROOT,
    env: DRIVER_ENVIRONMENT,
    stdio: ['ignore', 'pipe', 'inherit'],
    encoding: 'utf8',
    maxBuffer: OUTPUT_BYTES_MAX,
  });
  if (run.error) throw run.error;
  process.stdout.write(run.stdout);
  const counts = /^(\d+) passed, (\d+) failed/m.exec(run.stdout);
  const failed = Number(counts?.[2] ?? 0);
  // A driver that ends badly without a failed check has failed, too.
  return [run.stdout, Number(counts?.[1] ?? 0), run.status !== 0 && failed === 0 ? 1 : failed];
}

function main(given: string[]): number {
  const drivers = findDrivers();
  if (drivers === null) {
    console.log(
      'conformance: skipped: there is no ../shared/conformance and KVD_CONFORMANCE_DIR is not set',
    );
    return 0;
  }
  const release = takeRelease(given);
  const files = takeFiles(given);
  const python = findPython('generation', release);
  fs.rmSync(path.join(ROOT, 'build/conformance-server.log'), { force: true });
  const sum: [number, number] = [0, 0];
  for (const run of runsOf(release, given, files)) {
    const [passed, failed] = drive(drivers, python, run);
    sum[0] += passed;
    sum[1] += failed;
  }
  console.log(`${sum[0]} passed, ${sum[1]} failed`);
  return sum[1] === 0 ? 0 : 1;
}

process.exitCode = main(process.argv.slice(2));
