/**
 * The reference implementation and the drivers, which are not part of this repository.
 *
 *   drivers       ../shared/conformance, or the folder in KVD_CONFORMANCE_DIR
 *   reference     a Python environment with lmcache: KVD_REF_VENV, or the one that .ci/setup keeps
 *                 under ${KVD_CACHE_DIR:-~/.cache/kvd-ci}
 */
import { spawnSync } from 'node:child_process';
import fs from 'node:fs';
import path from 'node:path';

export const ROOT = path.resolve(import.meta.dirname, '..');

/** The folder of the drivers; null when it is not there. */
export function findDrivers(): string | null {
  const folder = process.env['KVD_CONFORMANCE_DIR'] ?? path.join(ROOT, '..', 'shared/conformance');
  return fs.existsSync(path.join(folder, 'conformance.py')) ? path.resolve(folder) : null;
}

/** The interpreter of an environment of `.ci/setup`, made if it is missing (several GB, once). */
export function findPython(...environment: readonly string[]): string {
  const setup = spawnSync('bash', [path.join(ROOT, '.ci/setup'), ...environment], {
    cwd: ROOT,
    encoding: 'utf8',
    stdio: ['ignore', 'pipe', 'inherit'],
  });
  if (setup.status !== 0) {
    throw new Error(`.ci/setup ${environment.join(' ')}: exit code ${setup.status}`);
  }
  return path.join(setup.stdout.trim(), 'bin/python');
}

/** Environment of the drivers: no usage reports, no chatter. */
export const DRIVER_ENVIRONMENT: NodeJS.ProcessEnv = {
  ...process.env,
  LMCACHE_TRACK_USAGE: 'false',
  LMCACHE_DISABLE_BANNER: '1',
  PYTHONDONTWRITEBYTECODE: '1',
};
