import * as assert from 'uvu/assert';
import {
  isContiguous,
  reachElements,
  toPhysicalOrder,
} from '../../../src/device/tensor-geometry.ts';
import { suite } from '../../support/suite.ts';

suite('tensor geometry', (test) => {
  test('a head-major view of a token-major shape is turned back', () => {
    const view = { shape: [2, 10, 16, 8, 4], stride: [5120, 512, 4, 64, 1] };
    assert.equal(toPhysicalOrder(view), {
      shape: [2, 10, 8, 16, 4],
      stride: [5120, 512, 64, 4, 1],
    });
  });

  test('what is sorted stays as it is, padded blocks included', () => {
    const padded = { shape: [10, 4, 8], stride: [50, 8, 1] };
    assert.equal(toPhysicalOrder(padded), padded);
    assert.equal(toPhysicalOrder(toPhysicalOrder(padded)), padded);
  });

  test('a single head between padded blocks lies behind the slots', () => {
    const view = { shape: [10, 1, 16, 8], stride: [999, 8, 8, 1] };
    assert.equal(toPhysicalOrder(view), { shape: [10, 16, 1, 8], stride: [999, 8, 8, 1] });
    const headMajor = { shape: [10, 1, 16, 8], stride: [999, 128, 8, 1] };
    assert.equal(toPhysicalOrder(headMajor), headMajor);
  });

  test('dimensions of size 1 have no say in contiguity', () => {
    assert.ok(isContiguous({ shape: [4, 1, 3], stride: [3, 99, 1] }));
    assert.ok(isContiguous({ shape: [], stride: [] }));
    assert.not.ok(isContiguous({ shape: [4, 3], stride: [1, 4] }));
    const odd = { shape: [4, 1, 3], stride: [3, 99, 1] };
    assert.equal(toPhysicalOrder(odd).shape, [4, 1, 3], 'contiguous tensors are not reordered');
  });

  test('the reach counts to behind the last element, and nothing when empty', () => {
    assert.is(reachElements({ shape: [2, 3], stride: [10, 1] }), 13);
    assert.is(reachElements({ shape: [], stride: [] }), 1);
    assert.is(reachElements({ shape: [5, 0], stride: [1, 1] }), 0);
    assert.is(reachElements({ shape: [5], stride: [0] }), 1);
  });
});
