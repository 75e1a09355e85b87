/**
 * Assertions that stay on in release builds, and the one way in which kvd gives up.
 *
 * `assert` guards an invariant inside a request: the request fails, the server goes on.
 * `fatal` is for the core and for memory ownership: copies and workers may still use old places,
 * so nothing can be trusted. An empty restart is safe, a guess is not (docs/architecture.md).
 */
import { writeSync } from 'node:fs';

/** Exit code of a process that met a broken invariant of its own (sysexits EX_SOFTWARE). */
export const EXIT_CODE_FATAL = 70;

export class AssertionError extends Error {
  override readonly name = 'AssertionError';
}

export function assert(condition: unknown, message: string): asserts condition {
  if (!condition) throw new AssertionError(message);
}

/** Attempts and pause of the last words: a reader that is a second behind has gone for good. */
const WRITE_ATTEMPT_COUNT_MAX = 100;
const WRITE_PAUSE_MS = 10;

/** Writes `message` and `state` to stderr and ends the process, whoever reads stderr. */
export function fatal(message: string, state: unknown): never {
  writeLastWords(`kvd: fatal: ${message}\nkvd: state: ${describeState(state)}\n`);
  process.exit(EXIT_CODE_FATAL);
}

function describeState(state: unknown): string {
  try {
    return JSON.stringify(state, (_, value) =>
      typeof value === 'bigint' ? value.toString() : value,
    );
  } catch (error) {
    return `unreadable (${error})`;
  }
}

/** Synchronous: nothing else may run any more. stderr may be a pipe that is full or closed. */
function writeLastWords(text: string): void {
  const bytes = new TextEncoder().encode(text);
  const pause = new Int32Array(new SharedArrayBuffer(4));
  let offset = 0;
  for (let i = 0; i < WRITE_ATTEMPT_COUNT_MAX && offset < bytes.length; i += 1) {
    try {
      offset += writeSync(2, bytes, offset);
    } catch (error) {
      // A full pipe may get room; of anything else nobody can be told.
      if ((error as NodeJS.ErrnoException).code !== 'EAGAIN') return;
      Atomics.wait(pause, 0, 0, WRITE_PAUSE_MS);
    }
  }
}
