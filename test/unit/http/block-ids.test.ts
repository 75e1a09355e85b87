import * as assert from 'uvu/assert';
import { BLOCK_ID_COUNT_MAX, formatBlockIds, parseBlockIds } from '../../../src/http/block-ids.ts';
import fc from '../../support/property.ts';
import { suite } from '../../support/suite.ts';

suite('block ids', (test) => {
  test('a list of integers and ranges, white space ignored', () => {
    assert.equal(parseBlockIds('0,[2,5],8'), [0, 2, 3, 4, 5, 8]);
    assert.equal(parseBlockIds(' 5 , [ 3 , 4 ]\t'), [5, 3, 4]);
    assert.equal(parseBlockIds('[7,7]'), [7]);
    assert.equal(parseBlockIds('-1'), [-1]);
  });

  test('anything else is malformed', () => {
    const malformed = ['', ',', '1,', ',1', '1,,2', 'a', '1.5', '[1]', '[1,2', '1,2]', '[1,2,3]'];
    malformed.push('[5,2]', '[[1,2]]', '1-3', '0x1', '9'.repeat(30));
    for (const text of malformed) assert.is(parseBlockIds(text), null, text);
  });

  test('a huge range is refused before it is expanded', () => {
    assert.is(parseBlockIds(`[0,${BLOCK_ID_COUNT_MAX}]`), null);
    assert.is(parseBlockIds('[0,999999999999]'), null);
    assert.is(parseBlockIds(`[0,${BLOCK_ID_COUNT_MAX - 1}]`)?.length, BLOCK_ID_COUNT_MAX);
  });

  test('runs of three or more are shown as ranges', () => {
    assert.equal(formatBlockIds([0, 2, 3, 4, 5, 8]), [0, [2, 5], 8]);
    assert.equal(formatBlockIds([1, 2, 9, 10, 11]), [1, 2, [9, 11]]);
    assert.equal(formatBlockIds([5, 3, 4]), [5, 3, 4]);
    assert.equal(formatBlockIds([3, 2, 1]), [3, 2, 1]);
    assert.equal(formatBlockIds([]), []);
  });

  test('what is shown reads back as the same ids', () => {
    const ids = fc.array(fc.integer({ min: -5, max: 30 }), { minLength: 1, maxLength: 40 });
    fc.assert(
      fc.property(ids, (list) => {
        assert.equal(parseBlockIds(JSON.stringify(formatBlockIds(list)).slice(1, -1)), list);
      }),
    );
  });
});
