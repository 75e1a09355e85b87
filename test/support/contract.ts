/**
 * A suite of behaviours that every implementation of an interface must show. One may leave some out
 * only with a reason; a title that is no behaviour of the contract is a fault of whoever wrote it.
 */
import * as assert from 'uvu/assert';
import { suite, type TestFunction } from './suite.ts';

export interface Skip {
  readonly reason: string;
  /** Titles of the behaviours. */
  readonly tests: readonly string[];
}

export function contractSuite(
  name: string,
  skips: readonly Skip[],
  define: (test: TestFunction) => void,
): void {
  const left = new Set(skips.flatMap(({ tests }) => tests));
  suite(name, (test) => {
    const filtered: TestFunction = Object.assign(
      (...[title, ...rest]: Parameters<TestFunction>) => {
        if (!left.delete(title)) test(title, ...rest);
      },
      {
        before: test.before,
        after: test.after,
        beforeEach: test.beforeEach,
        afterEach: test.afterEach,
      },
    );
    define(filtered);
    assert.equal([...left], [], `${name} leaves out what the contract does not have`);
  });
}
