/**
 * `npm run conformance -- [arguments of the driver]`: the real client of the reference against kvd.
 *
 * Strict: whatever fails is a failure. What kvd cannot do yet is left out by the list of groups
 * below and by nothing else; `--group` or `--only` on the command line replace it.
 */
import { spawnSync } from 'node:child_process';
import fs from 'node:fs';
import path from 'node:path';
import { DRIVER_ENVIRONMENT, findDrivers, findReference, ROOT } from './reference.ts';

/** All groups of the driver but `l2`: there are no L2 adapters yet. */
const GROUPS =
  'control,handle,engine_driven,other_engines,errors,restart,slow,hostile,hardening,http';

function main(given: readonly string[]): number {
  const drivers = findDrivers();
  if (drivers === null) {
    console.log(
      'conformance: skipped: there is no ../shared/conformance and KVD_CONFORMANCE_DIR is not set',
    );
    return 0;
  }
  const python = path.join(findReference(), 'python');
  const log = path.join(ROOT, 'build/conformance-server.log');
  fs.rmSync(log, { force: true });
  const server = [
    process.execPath,
    path.join(ROOT, 'dist/kvd.mjs'),
    'server --host 127.0.0.1 --port {port} --http-host 127.0.0.1 --http-port {http_port}',
    '--prometheus-port {metrics_port} --l1-size-gb 1 --no-l1-use-lazy --eviction-policy LRU',
  ].join(' ');
  const has = (name: string): boolean =>
    given.some((argument) => argument === name || argument.startsWith(`${name}=`));
  const args = [path.join(drivers, 'conformance.py'), '--server-cmd', server, '--server-log', log];
  if (!has('--group') && !has('--only')) args.push('--group', GROUPS);
  const run = spawnSync(python, [...args, ...given], {
    cwd: ROOT,
    env: DRIVER_ENVIRONMENT,
    stdio: ['ignore', 'inherit', 'inherit'],
  });
  if (run.error) throw run.error;
  return run.status ?? 1;
}

process.exitCode = main(process.argv.slice(2));
