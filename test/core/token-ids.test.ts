import { encode } from '@msgpack/msgpack';
import * as assert from 'uvu/assert';
import type { TokenSpan } from '../../src/core/chunk-hasher.ts';
import { tokenSpanOf } from '../../src/core/token-span.ts';
import { openHasher } from '../support/core-hasher.ts';
import fc from '../support/property.ts';
import { suite } from '../support/suite.ts';

const tokenId = fc.oneof(
  fc.integer({ min: 0, max: 300 }),
  fc.integer({ min: 0, max: 70_000 }),
  fc.integer({ min: 0, max: 0xffff_ffff }),
);

const hasher = openHasher({ chunkSizeTokens: 4, tokenCountMax: 100_000 });

const spanOf = (tokenIds: readonly number[]): TokenSpan => ({
  bytes: encode(tokenIds),
  count: tokenIds.length,
});

/** Every way to write 5: as it is, and with 8 to 64 bits, unsigned and signed. */
const FIVES = [
  [5],
  [0xcc, 5],
  [0xcd, 0, 5],
  [0xce, 0, 0, 0, 5],
  [0xcf, 0, 0, 0, 0, 0, 0, 0, 5],
  [0xd0, 5],
  [0xd1, 0, 5],
  [0xd2, 0, 0, 0, 5],
  [0xd3, 0, 0, 0, 0, 0, 0, 0, 5],
];

suite('token ids of a span', (test) => {
  test('are those of any part of the array', () => {
    fc.assert(
      fc.property(fc.array(tokenId, { maxLength: 40 }), fc.nat(), fc.nat(), (ids, a, b) => {
        const first = a % (ids.length + 1);
        const count = b % (ids.length - first + 1);
        const expected = ids.slice(first, first + count);
        assert.equal([...hasher.tokenIds(spanOf(ids), first, count)], expected);
        assert.equal([...hasher.tokenIds(tokenSpanOf(ids), first, count)], expected);
      }),
    );
  });

  test('are read whatever width they are written in', () => {
    const bytes = Uint8Array.from([0x90 | FIVES.length, ...FIVES.flat()]);
    const ids = hasher.tokenIds({ bytes, count: FIVES.length }, 0, FIVES.length);
    assert.equal(
      [...ids],
      FIVES.map(() => 5),
    );
    assert.equal([...hasher.tokenIds({ bytes, count: FIVES.length }, 8, 1)], [5]);
  });

  test('are copied when the span was read last, and read again when it was not', () => {
    const ids = [7, 300, 70_000, 0xffff_ffff];
    const { span } = hasher.readTokens(encode(ids), 0);
    assert.equal([...hasher.tokenIds(span, 1, 3)], ids.slice(1));
    hasher.readTokens(encode([1, 2, 3, 4, 5]), 0);
    assert.equal([...hasher.tokenIds(span, 0, 4)], ids);
    assert.equal(hasher.hashChunks(span).count, 1);
  });

  test('are read behind headers of any size', () => {
    for (const count of [15, 16, 65_535, 65_536]) {
      const ids = Array.from({ length: count }, (_, i) => i * 3);
      assert.equal([...hasher.tokenIds(spanOf(ids), count - 1, 1)], [(count - 1) * 3]);
    }
  });

  test('have 32 bits', () => {
    const largest = [0xcf, 0, 0, 0, 0, 0xff, 0xff, 0xff, 0xff];
    const bytes = Uint8Array.from([0x92, ...largest, 0xce, 0x80, 0, 0, 1]);
    assert.equal([...hasher.tokenIds({ bytes, count: 2 }, 0, 2)], [0xffff_ffff, 0x8000_0001]);
  });
});
