import * as assert from 'uvu/assert';
import { countTests } from '../run.ts';
import { suite } from '../support/suite.ts';

const summary = (total: number, passed: number, skipped = 0): string =>
  `\n  Total:     ${total}\n  Passed:    ${passed}\n  Skipped:   ${skipped}\n  Duration:  1.00ms\n`;

suite('counting of tests', (test) => {
  test('all passed', () => assert.equal(countTests(summary(3, 3), 0), [3, 0]));

  test('failures are what neither passed nor was skipped', () => {
    assert.equal(countTests(summary(5, 3, 1), 1), [3, 1]);
  });

  test('several summaries of one file are added', () => {
    assert.equal(countTests(summary(3, 3) + summary(2, 1), 1), [4, 1]);
  });

  test('colours are ignored', () => {
    const red = '\x1b[31m';
    assert.equal(countTests(summary(2, 1).replace('  Passed', `${red}  Passed`), 1), [1, 1]);
  });

  test('a file without tests has failed', () => {
    assert.equal(countTests('', 0), [0, 1]);
    assert.equal(countTests(summary(0, 0), 0), [0, 1]);
  });

  test('an exit code counts more than a good summary', () => {
    assert.equal(countTests(summary(3, 3), 1), [3, 1]);
    assert.equal(countTests(summary(3, 3), null), [3, 1]);
  });
});
