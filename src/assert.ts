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

/** Writes `message` and `state` to stderr in one synchronous write and ends the process. */
export function fatal(message: string, state: unknown): never {
  const dump = JSON.stringify(state, (_, value) =>
    typeof value === 'bigint' ? value.toString() : value,
  );
  writeSync(2, `kvd: fatal: ${message}\nkvd: state: ${dump}\n`);
  process.exit(EXIT_CODE_FATAL);
}
