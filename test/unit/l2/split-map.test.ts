import * as assert from 'uvu/assert';
import { SplitMap } from '../../../src/l2/split-map.ts';
import fc from '../../support/property.ts';
import { suite } from '../../support/suite.ts';

/** Eight bytes, as the shortest hashes have. */
function hashOf(n: number): string {
  const bytes = Buffer.alloc(8);
  bytes.writeUInt32BE(Math.imul(n, 0x9e3779b1) >>> 0, 0);
  bytes.writeUInt32BE(n, 4);
  return bytes.toString('latin1');
}

suite('Split map', (test) => {
  test('does what a map does', () => {
    const step = fc.record({ isSet: fc.boolean(), n: fc.nat(40), value: fc.nat() });
    fc.assert(
      fc.property(fc.array(step, { maxLength: 200 }), (steps) => {
        const [split, plain] = [new SplitMap<number>(), new Map<string, number>()];
        for (const { isSet, n, value } of steps) {
          if (isSet) {
            split.set(hashOf(n), value);
            plain.set(hashOf(n), value);
          } else assert.is(split.delete(hashOf(n)), plain.delete(hashOf(n)));
          assert.is(split.size, plain.size);
          assert.is(split.get(hashOf(n)), plain.get(hashOf(n)));
          assert.is(split.has(hashOf(n)), plain.has(hashOf(n)));
        }
      }),
      { numRuns: 50 },
    );
  });

  test('keeps every entry while its leaves split and empty', () => {
    const count = 100_000;
    const split = new SplitMap<number>();
    for (let n = 0; n < count; n += 1) split.set(hashOf(n), n);
    for (let n = 0; n < count; n += 1) if (split.get(hashOf(n)) !== n) assert.unreachable(`${n}`);
    for (let n = 0; n < count; n += 2) split.set(hashOf(n), -n);
    assert.is(split.size, count);
    for (let n = 1; n < count; n += 2) split.delete(hashOf(n));
    assert.is(split.size, count / 2);
    for (let n = 0; n < count; n += 1) {
      const expected = n % 2 === 0 ? -n : undefined;
      if (!Object.is(split.get(hashOf(n)), expected)) assert.unreachable(`${n}`);
    }
    for (let n = 0; n < count; n += 2) split.delete(hashOf(n));
    assert.is(split.size, 0);
  });

  test('hashes that end alike are told apart', () => {
    const split = new SplitMap<number>();
    for (let n = 0; n < 5000; n += 1) split.set(`${n}/same tail`, n);
    assert.is(split.size, 5000);
    assert.is(split.get('4711/same tail'), 4711);
  });
});
