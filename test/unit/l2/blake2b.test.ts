import { createHash } from 'node:crypto';
import { blake2b as oracle } from '@noble/hashes/blake2.js';
import * as assert from 'uvu/assert';
import { blake2b } from '../../../src/l2/blake2b.ts';
import fc from '../../support/property.ts';
import { suite } from '../../support/suite.ts';

const hex = (bytes: Uint8Array): string => Buffer.from(bytes).toString('hex');

suite('BLAKE2b', (test) => {
  test('has the digest of the example in RFC 7693', () => {
    assert.is(
      hex(blake2b(new TextEncoder().encode('abc'), 64)),
      'ba80a53f981c4d0d6a2797b69f12f6e94c212f14685ac4b74b12bb6fdbffa2d1' +
        '7d87c5392aab792dc252d5de4533cc9518d38aa8dbf1925ab92386edd4009923',
    );
  });

  test('agrees with the platform on 64 bytes at every length around the block border', () => {
    for (const length of [0, 1, 127, 128, 129, 255, 256, 257, 1000]) {
      const input = Uint8Array.from({ length }, (_, i) => (i * 7) & 255);
      const expected = createHash('blake2b512').update(input).digest('hex');
      assert.is(hex(blake2b(input, 64)), expected, `${length} bytes`);
    }
  });

  test('agrees with an independent implementation on any input and digest length', () => {
    fc.assert(
      fc.property(
        fc.uint8Array({ maxLength: 600 }),
        fc.integer({ min: 1, max: 64 }),
        (input, digestBytes) => {
          const expected = oracle(input, { dkLen: digestBytes });
          assert.is(hex(blake2b(input, digestBytes)), hex(expected));
        },
      ),
    );
  });

  test('a short digest is not the beginning of a long one', () => {
    const input = new Uint8Array(3);
    assert.is.not(hex(blake2b(input, 8)), hex(blake2b(input, 64).subarray(0, 8)));
  });

  test('refuses a digest length outside of 1 to 64', () => {
    for (const digestBytes of [0, 65, 1.5]) {
      assert.throws(() => blake2b(new Uint8Array(1), digestBytes), /1 to 64/);
    }
  });
});
