import * as assert from 'uvu/assert';
import { BlockPattern, mix, shuffledIds } from '../../../../src/client/load/block-pattern.ts';
import { suite } from '../../../support/suite.ts';

suite('block pattern', (test) => {
  const pattern = new BlockPattern(4096);

  test('follows from request, plane and block alone', () => {
    const again = new BlockPattern(4096);
    for (const at of [
      { plane: 0, block: 0 },
      { plane: 31, block: 63 },
    ]) {
      const piece = pattern.piece(7, at, 4096);
      assert.is(piece.length, 4096);
      assert.is(piece.compare(again.piece(7, at, 4096)), 0);
    }
  });

  test('no piece passes for one of another block, plane or request', () => {
    const seen = new Set<string>();
    let count = 0;
    for (let sequence = 0; sequence < 4; sequence += 1) {
      for (let plane = 0; plane < 16; plane += 1) {
        for (let block = 0; block < 16; block += 1) {
          seen.add(pattern.piece(sequence, { plane, block }, 64).toString('latin1'));
          count += 1;
        }
      }
    }
    assert.is(seen.size, count);
  });

  test('a piece does not look like itself moved by some bytes', () => {
    const piece = pattern.piece(1, { plane: 2, block: 3 }, 4096);
    for (const shift of [1, 2, 4, 8, 16, 64, 256, 1024]) {
      const equal = piece.subarray(shift).filter((byte, i) => byte === piece[i]).length;
      assert.ok(equal < (piece.length - shift) / 32, `${equal} bytes equal after ${shift}`);
    }
  });

  test('mixed numbers are 32-bit and differ', () => {
    const mixed = Array.from({ length: 1000 }, (_, i) => mix(i));
    assert.is(new Set(mixed).size, 1000);
    assert.ok(mixed.every((value) => Number.isInteger(value) && value >= 0 && value < 2 ** 32));
  });

  test('shuffled ids are all of the ids, in an order of their seed', () => {
    const ids = shuffledIds(64, 64, 5);
    assert.equal(
      [...ids].sort((a, b) => a - b),
      [...Array(64).keys()].map((i) => i + 64),
    );
    assert.equal(shuffledIds(64, 64, 5), ids);
    assert.not.equal(shuffledIds(64, 64, 6), ids);
    assert.equal([...shuffledIds(3, 1, 9)], [3]);
  });
});
