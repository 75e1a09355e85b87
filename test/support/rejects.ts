/** uvu has no `rejects`. Fails when the promise fulfils; returns the error for further checks. */
import * as assert from 'uvu/assert';
import type { ErrorCode, KvdError } from '../../src/errors.ts';

export async function rejects(promise: Promise<unknown>, expected: RegExp): Promise<Error> {
  let error: unknown;
  try {
    await promise;
  } catch (caught) {
    error = caught;
  }
  assert.ok(error instanceof Error, 'the promise was expected to reject');
  assert.match((error as Error).message, expected);
  return error as Error;
}

/** The same for our own errors, by code. */
export async function refuses(
  promise: Promise<unknown>,
  code: ErrorCode,
  expected = /./,
): Promise<void> {
  const error = await rejects(promise, expected);
  assert.is((error as KvdError).code, code, error.message);
}
