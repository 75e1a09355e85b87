import { readFileSync } from 'node:fs';
import * as assert from 'uvu/assert';
import { ChunkHasher, type HashAlgorithm } from '../../src/core/chunk-hasher.ts';
import { RESULT } from '../../src/core/result.ts';
import { openCore, openHasher, toHex } from '../support/core-hasher.ts';
import fc from '../support/property.ts';
import { suite } from '../support/suite.ts';
import {
  blake3ChunkHashes,
  encodeTokens,
  expandTokens,
  lcgTokens,
  sha256Hex,
  type TokenSource,
} from '../support/token-arrays.ts';

interface Case {
  algorithm: HashAlgorithm;
  PYTHONHASHSEED?: string;
  name: string;
  chunk_size: number;
  tokens: TokenSource;
  hashes: string[];
}

const vectors: {
  none_hash: Record<string, string>;
  cases: Case[];
  ranges: (Case & { start: number; end: number | null })[];
  rejected_by_blake3: { tokens: number[] }[];
  cbor_examples: { value: string; cbor: string }[];
  session_reference_behaviour: {
    chunk_size: number;
    steps: { op: string; tokens?: number[] }[];
    expected_required_last_step: string[];
  };
} = JSON.parse(readFileSync(new URL('../vectors/hash.json', import.meta.url), 'utf8'));

const seedOf = (text: string | undefined) =>
  text === undefined ? {} : { rootHashSeed: Buffer.from(text) };

function hashAll(source: TokenSource, options: Parameters<typeof openHasher>[0]): string[] {
  const hasher = openHasher(options);
  const { span } = hasher.readTokens(encodeTokens(expandTokens(source)), 0);
  return toHex(hasher.hashChunks(span));
}

suite('chunk hashes of the reference', (test) => {
  for (const algorithm of ['blake3', 'builtin', 'sha256_cbor'] as const) {
    test(`${algorithm}: every case has the hashes of the reference`, () => {
      const cases = vectors.cases.filter((each) => each.algorithm === algorithm);
      assert.ok(cases.length > 10);
      for (const each of cases) {
        const hashes = hashAll(each.tokens, {
          hashAlgorithm: algorithm,
          chunkSizeTokens: each.chunk_size,
          ...seedOf(each.PYTHONHASHSEED),
        });
        assert.equal(hashes, each.hashes, each.name);
      }
    });
  }

  test('every root hash is the NONE_HASH of the reference', () => {
    for (const [name, expected] of Object.entries(vectors.none_hash)) {
      const [algorithm, seed] = name.split('/PYTHONHASHSEED=');
      const hasher = openHasher({
        hashAlgorithm: algorithm as HashAlgorithm,
        chunkSizeTokens: 4,
        ...seedOf(seed),
      });
      assert.is(Buffer.from(hasher.rootHash).toString('hex'), expected, name);
      assert.is(hasher.hashSizeBytes, expected.length / 2);
    }
  });

  test('an end beyond the tokens, unaligned or 0 is floored to a chunk', () => {
    for (const each of vectors.ranges) {
      const hasher = openHasher({ chunkSizeTokens: each.chunk_size });
      const tokens = expandTokens(each.tokens);
      const { span } = hasher.readTokens(encodeTokens(tokens), 0);
      const hashes = toHex(hasher.hashChunks(span, each.end ?? undefined));
      const fromStart = hashes.slice(Math.ceil(each.start / each.chunk_size));
      assert.equal(fromStart, each.hashes, `[${each.start}, ${each.end})`);
    }
  });

  test('new tokens under an old request id have their own hashes', () => {
    const { chunk_size, steps, expected_required_last_step } = vectors.session_reference_behaviour;
    const hasher = openHasher({ chunkSizeTokens: chunk_size });
    let hashes: string[] = [];
    for (const { tokens } of steps.filter((step) => step.op === 'set_tokens')) {
      hashes = toHex(hasher.hashChunks(hasher.readTokens(encodeTokens(tokens!), 0).span));
    }
    assert.equal(hashes, expected_required_last_step);
  });
});

suite('blake3 chunk hashes', (test) => {
  test('agree with another implementation for chunk sizes from 1 to 4096', () => {
    // Around every border of a 64-byte block up to 1 KiB, of a 1 KiB BLAKE3 chunk, and of a
    // power of two of them; 32 bytes of each message are the prefix.
    const sizes = new Set<number>();
    for (let size = 1; size <= 80; size++) sizes.add(size);
    for (const chunks of [1, 2, 3, 4, 5, 7, 8, 9, 15, 16]) {
      for (const delta of [-17, -16, -1, 0, 1, 15, 16]) sizes.add(chunks * 256 - 8 + delta);
    }
    for (let size = 97; size <= 4096; size += 173) sizes.add(size);
    sizes.add(4096);
    for (const chunkSizeTokens of sizes) {
      if (chunkSizeTokens > 4096) continue;
      const tokens = lcgTokens(chunkSizeTokens, chunkSizeTokens * 2 + 1, 2 ** 31);
      assert.equal(
        hashAll(tokens, { chunkSizeTokens }),
        blake3ChunkHashes(tokens, chunkSizeTokens),
        `chunk size ${chunkSizeTokens}`,
      );
    }
  });

  test('agree for any tokens and chunk size', () => {
    const tokens = fc.array(fc.integer({ min: 0, max: 0xffff_ffff }), { maxLength: 200 });
    const property = fc.property(tokens, fc.integer({ min: 1, max: 40 }), (list, chunkSize) => {
      assert.equal(
        hashAll(list, { chunkSizeTokens: chunkSize }),
        blake3ChunkHashes(list, chunkSize),
      );
    });
    fc.assert(property, { numRuns: 60 });
  });
});

suite('sha256_cbor chunk hashes', (test) => {
  const root = Uint8Array.from({ length: 32 }, (_, index) => index);

  test('are the digests of the canonical CBOR of the reference', () => {
    const example = vectors.cbor_examples.find((each) => each.value.startsWith('(32 bytes'))!;
    const hashes = hashAll([1, 24, 65_536], {
      hashAlgorithm: 'sha256_cbor',
      chunkSizeTokens: 3,
      rootHashSeed: root,
      rootHashIsRandom: true,
    });
    assert.equal(hashes, [sha256Hex(Buffer.from(example.cbor, 'hex'))]);
  });

  test('begin with the digest of the CBOR text of the seed', () => {
    const example = vectors.cbor_examples.find((each) => each.value === "'0'")!;
    const hasher = openHasher({
      hashAlgorithm: 'sha256_cbor',
      chunkSizeTokens: 4,
      rootHashSeed: Buffer.from('0'),
    });
    const expected = sha256Hex(Buffer.from(example.cbor, 'hex'));
    assert.is(Buffer.from(hasher.rootHash).toString('hex'), expected);
  });

  test('agree with another implementation at every fill of the last SHA-256 block', () => {
    for (let chunkSizeTokens = 1; chunkSizeTokens <= 140; chunkSizeTokens++) {
      const size = chunkSizeTokens;
      const header = size < 24 ? [0x80 | size] : [0x98, size];
      const cbor = Buffer.concat([
        Uint8Array.from([0x83, 0x58, 0x20]),
        root,
        Uint8Array.from([...header, ...new Array<number>(size).fill(7), 0xf6]),
      ]);
      const hashes = hashAll(
        { kind: 'repeat', value: 7, count: size },
        {
          hashAlgorithm: 'sha256_cbor',
          chunkSizeTokens,
          rootHashSeed: root,
          rootHashIsRandom: true,
        },
      );
      assert.equal(hashes, [sha256Hex(cbor)], `chunk size ${size}`);
    }
  });

  test('take the 32 random bytes as the root, and nothing of another length', () => {
    const options = {
      hashAlgorithm: 'sha256_cbor',
      chunkSizeTokens: 4,
      rootHashIsRandom: true,
    } as const;
    assert.equal(openHasher({ ...options, rootHashSeed: root }).rootHash, root);
    assert.throws(() => openHasher({ ...options, rootHashSeed: root.subarray(1) }), /hasher_init/);
    assert.throws(() => openHasher(options), /needs a root hash seed/);
  });
});

suite('chunk hasher', (test) => {
  const long = lcgTokens(5, 4096, 151_936);

  test('gives each span its own hashes when others are read in between', () => {
    const hasher = openHasher({ chunkSizeTokens: 16 });
    const tokensA = lcgTokens(1, 100, 32_000);
    const tokensB = lcgTokens(2, 64, 200);
    const a = hasher.readTokens(encodeTokens(tokensA), 0).span;
    const b = hasher.readTokens(encodeTokens(tokensB), 0).span;
    for (const [span, tokens] of [
      [a, tokensA],
      [b, tokensB],
      [a, tokensA],
    ] as const) {
      assert.equal(toHex(hasher.hashChunks(span)), blake3ChunkHashes(tokens, 16));
    }
  });

  test('decodes a span once when it is hashed before another is read', () => {
    const core = openCore(16_384, 16);
    let decodeCount = 0;
    const counting = {
      ...core,
      tokens_decode(size: number, count: number): number {
        decodeCount += 1;
        return core.tokens_decode(size, count);
      },
    };
    const hasher = new ChunkHasher(counting, {
      hashAlgorithm: 'blake3',
      chunkSizeTokens: 16,
      tokenCountMax: 16_384,
    });
    const a = hasher.readTokens(encodeTokens(long), 0).span;
    hasher.hashChunks(a);
    hasher.hashChunks(a, 64);
    assert.is(decodeCount, 1);
    const b = hasher.readTokens(encodeTokens(long), 0).span;
    hasher.hashChunks(a);
    hasher.hashChunks(b);
    assert.is(decodeCount, 4);
  });

  test('still hashes an older span after a read that failed', () => {
    const hasher = openHasher({ chunkSizeTokens: 4 });
    const tokens = [9, 8, 7, 6];
    const { span } = hasher.readTokens(encodeTokens(tokens), 0);
    assert.throws(() => hasher.readTokens(Uint8Array.from([0x94, 1, 2, 3, 0xc0]), 0), /nil/);
    assert.equal(toHex(hasher.hashChunks(span)), blake3ChunkHashes(tokens, 4));
  });

  test('answers with copies that later requests do not touch', () => {
    const hasher = openHasher({ chunkSizeTokens: 4 });
    const first = hasher.hashChunks(hasher.readTokens(encodeTokens([1, 2, 3, 4]), 0).span);
    const before = toHex(first);
    hasher.hashChunks(hasher.readTokens(encodeTokens([4, 3, 2, 1]), 0).span);
    assert.equal(toHex(first), before);
  });

  test('answers no hashes for an end before the first token', () => {
    const hasher = openHasher({ chunkSizeTokens: 4 });
    const { span } = hasher.readTokens(encodeTokens([1, 2, 3, 4]), 0);
    for (const endToken of [-1, -1e9, 0, 3]) assert.is(hasher.hashChunks(span, endToken).count, 0);
    assert.is(hasher.hashChunks(span, 4).count, 1);
  });

  test('refuses a span whose count is not that of its array', () => {
    const hasher = openHasher({ chunkSizeTokens: 4 });
    const { span } = hasher.readTokens(encodeTokens([1, 2, 3, 4]), 0);
    assert.throws(() => hasher.hashChunks({ ...span, count: 8 }), /count of its array/);
  });

  test('hashes in slices what it hashes at once, whatever runs between the slices', async () => {
    const count = 65_536 * 2 + 300;
    const tokens = lcgTokens(3, count, 151_936);
    const bytes = encodeTokens(tokens);
    for (const chunkSizeTokens of [256, 300, 70_000]) {
      const hasher = openHasher({ chunkSizeTokens, tokenCountMax: count });
      const { span } = hasher.readTokens(bytes, 0);
      const other = hasher.readTokens(encodeTokens(long), 0).span;
      const atOnce = toHex(hasher.hashChunks(span));
      const otherAtOnce = toHex(hasher.hashChunks(other));
      let yieldCount = 0;
      const sliced = await hasher.hashChunksSliced(span, span.count, async () => {
        yieldCount += 1;
        assert.equal(toHex(hasher.hashChunks(other)), otherAtOnce);
      });
      assert.equal(toHex(sliced), atOnce, `chunk size ${chunkSizeTokens}`);
      assert.is(yieldCount, chunkSizeTokens === 70_000 ? 0 : 2);
    }
  });

  test('does not yield for a span of one slice, and respects the end', async () => {
    const hasher = openHasher({ chunkSizeTokens: 256 });
    const { span } = hasher.readTokens(encodeTokens(long), 0);
    const sliced = await hasher.hashChunksSliced(span, 1000, () => Promise.reject(new Error('no')));
    assert.equal(toHex(sliced), toHex(hasher.hashChunks(span, 1000)));
    assert.is(sliced.count, 3);
  });

  test('runs two sliced hashings of different spans side by side', async () => {
    const hasher = openHasher({ chunkSizeTokens: 256, tokenCountMax: 200_000 });
    const spans = [7, 8].map((seed) => {
      const tokens = lcgTokens(seed, 200_000, 128_256);
      return hasher.readTokens(encodeTokens(tokens), 0).span;
    });
    const sliced = await Promise.all(
      spans.map((span) => hasher.hashChunksSliced(span, span.count, () => Promise.resolve())),
    );
    for (const [index, span] of spans.entries()) {
      assert.equal(toHex(sliced[index]!), toHex(hasher.hashChunks(span)));
    }
  });

  test('refuses the tokens that the reference refuses', () => {
    const hasher = openHasher({ chunkSizeTokens: 4 });
    // -1 as a negative fixint, 2^32 as uint64.
    const encoded = [[0xff], [0xcf, 0, 0, 0, 1, 0, 0, 0, 0]];
    assert.is(vectors.rejected_by_blake3.length, encoded.length);
    for (const first of encoded) {
      const frame = Uint8Array.from([0x94, ...first, 0, 0, 0]);
      assert.throws(() => hasher.readTokens(frame, 0), /token_ids\[0\].*out of range/);
    }
  });
});

suite('hasher exports', (test) => {
  const BLAKE3 = 1;
  const SHA256_CBOR = 2;
  const BUILTIN = 3;

  test('refuse an unknown algorithm, and a seed where none is due or none is given', () => {
    const core = openCore(64, 4);
    const refused: [algorithm: number, seedKind: number, seedSize: number][] = [
      [0, 0, 0],
      [4, 0, 0],
      [-1, 0, 0],
      [BLAKE3, 1, 1],
      [BLAKE3, 2, 32],
      [BUILTIN, 1, 1],
      [SHA256_CBOR, 0, 0],
      [SHA256_CBOR, 3, 32],
      [SHA256_CBOR, 2, 31],
      [SHA256_CBOR, 2, 33],
      [SHA256_CBOR, 1, 64 * 9 + 6],
      [SHA256_CBOR, 1, -1],
    ];
    for (const parameters of refused) {
      assert.is(core.hasher_init(...parameters), RESULT.INVALID_ARGUMENT, `${parameters}`);
    }
    assert.is(core.hash_chunks(0), RESULT.NOT_INITIALIZED);
    assert.is(core.hasher_init(BLAKE3, 0, 0), 32);
    assert.is(core.hash_chunks(0), RESULT.SUCCESS);
  });

  test('refuse to read or hash more than there is', () => {
    const core = openCore(64, 4);
    core.hasher_init(BLAKE3, 0, 0);
    assert.is(core.tokens_decode(65, 65), RESULT.INVALID_ARGUMENT);
    assert.is(core.tokens_decode(64 * 9 + 6, 64), RESULT.INVALID_ARGUMENT);
    assert.is(core.tokens_decode(-1, 1), RESULT.INVALID_ARGUMENT);
    assert.is(core.tokens_decode(0, -1), RESULT.INVALID_ARGUMENT);
    assert.is(core.tokens_decode(7, 7), 7);
    assert.is(core.hash_chunks(1), RESULT.SUCCESS);
    assert.is(core.hash_chunks(2), RESULT.INVALID_ARGUMENT);
    assert.is(core.hash_chunks(-1), RESULT.INVALID_ARGUMENT);
    assert.is(core.tokens_decode(3, 4), RESULT.TOKENS_TRUNCATED);
    assert.is(core.hash_chunks(1), RESULT.INVALID_ARGUMENT);
  });
});
