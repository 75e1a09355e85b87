/**
 * Files that are not values yet. A value is written under a name of its own and renamed when it is
 * whole, so that no reader and no crash can see a part of it; what a crash leaves is removed at the
 * next start.
 *
 * Two servers may write one key into one folder, also from two containers with equal process ids:
 * a name holds a random part of the store besides a counter. It does not hold the key, which may
 * fill the length of a name already.
 *
 *   kvd-<8 hex digits>.<counter>.tmp
 */
import { randomBytes } from 'node:crypto';
import { opendir } from 'node:fs/promises';
import path from 'node:path';
import type { Clock } from '../clock.ts';
import type { Logger } from '../observability/log.ts';
import { errnoOf, type Files } from './files.ts';
import { decodeFileName } from './key-text.ts';

/** No store takes so long: its task has a deadline of seconds. */
const STALE_AGE_MS = 3_600_000;
const OWN_NAME = /^kvd-[0-9a-f]{8}\.[0-9]+\.tmp$/;

export class TemporaryFiles {
  readonly #folder: string;
  readonly #prefix = `kvd-${randomBytes(4).toString('hex')}`;
  #nextNumber = 0;

  constructor(folder: string) {
    this.#folder = folder;
  }

  newPath(): string {
    this.#nextNumber += 1;
    return path.join(this.#folder, `${this.#prefix}.${this.#nextNumber}.tmp`);
  }
}

export interface StaleOptions {
  readonly files: Files;
  readonly clock: Clock;
  readonly log: Logger;
  readonly signal: AbortSignal;
}

/** Removes what stores that ended in the middle left in `folder`, the peer's too. */
export async function removeStaleTemporaries(
  folder: string,
  { files, clock, log, signal }: StaleOptions,
): Promise<void> {
  let count = 0;
  try {
    for await (const { name } of await opendir(folder, { bufferSize: 512 })) {
      if (signal.aborted) return;
      if (!isTemporaryName(name)) continue;
      const facts = await files.factsOf(path.join(folder, name));
      if (!facts?.isFile || clock.wallMs() - facts.modifiedMs < STALE_AGE_MS) continue;
      if (await files.unlink(path.join(folder, name))) count += 1;
    }
  } catch (error) {
    log.warn(`cannot look for stale temporary files in ${folder} (${errnoOf(error)})`);
  }
  if (count > 0) log.info(`removed ${count} stale temporary files from ${folder}`);
}

/** Of our making, or a name of the peer's values with its ending for temporary files. */
function isTemporaryName(name: string): boolean {
  if (!name.endsWith('.tmp')) return false;
  return OWN_NAME.test(name) || decodeFileName(name.replace(/\.tmp$/, '.data')) !== null;
}
