/** One error path for work that is done at once if it can be: then no promise is made. */

/** `fail` replaces the error of `run`, whether that is thrown now or later. */
export function onFailure<T>(
  run: () => T | Promise<T>,
  fail: (error: unknown) => never,
): T | Promise<T> {
  try {
    const result = run();
    return result instanceof Promise ? result.catch(fail) : result;
  } catch (error) {
    return fail(error);
  }
}
