import { readFileSync } from 'node:fs';
import { blake3 } from '@noble/hashes/blake3.js';
import * as assert from 'uvu/assert';
import { startAssembly } from '../support/compile-assembly.ts';
import { openHasher } from '../support/core-hasher.ts';
import { suite } from '../support/suite.ts';
import { sha256Hex, toBigEndianWords } from '../support/token-arrays.ts';

interface DigestExports {
  readonly memory: { readonly buffer: ArrayBuffer };
  open(tokens: number): number;
  digest(size: number): number;
  digest_apart(size: number): number;
}

const vectors: {
  prefixes: { prefix_bytes?: string; prefix_int?: string; tokens: number[]; hash: string }[];
} = JSON.parse(readFileSync(new URL('../vectors/hash.json', import.meta.url), 'utf8'));

const SIZE_MAX = 1_200_000;

function openDigest() {
  const exports = startAssembly<DigestExports>('assembly/test/digest.ts');
  const offset = exports.open(Math.ceil(SIZE_MAX / 9));
  const memory = new Uint8Array(exports.memory.buffer);
  return (message: Uint8Array, call: 'digest' | 'digest_apart'): string => {
    memory.set(message, offset);
    // What lies behind the message must not matter.
    memory.fill(0xa5, offset + message.length, offset + message.length + 64);
    const at = exports[call](message.length);
    return Buffer.from(memory.subarray(at, at + 32)).toString('hex');
  };
}

/** The input of BLAKE3's own test vectors. */
function patternOf(size: number): Uint8Array {
  return Uint8Array.from({ length: size }, (_, index) => index % 251);
}

suite('blake3', (test) => {
  const digest = openDigest();
  const hex = (message: Uint8Array) => Buffer.from(blake3(message)).toString('hex');

  test('agrees with another implementation for all lengths up to 5000, in coarse steps', () => {
    for (let size = 0; size <= 5000; size += size < 200 ? 1 : 13) {
      const message = patternOf(size);
      assert.is(digest(message, 'digest'), hex(message), `${size} bytes`);
    }
  });

  test('agrees on both sides of every block and chunk border', () => {
    for (let border = 64; border <= 9 * 1024; border += border < 1200 ? 64 : 1024) {
      for (const size of [border - 1, border, border + 1]) {
        const message = patternOf(size);
        assert.is(digest(message, 'digest'), hex(message), `${size} bytes`);
      }
    }
  });

  test('agrees for deep trees, full and ragged', () => {
    for (const chunks of [31, 32, 33, 63, 100, 255, 256, 1023, 1024]) {
      for (const more of [0, 1, 1000]) {
        const message = patternOf(chunks * 1024 + more);
        assert.is(digest(message, 'digest'), hex(message), `${chunks} chunks and ${more} bytes`);
      }
    }
  });

  test('takes the first 32 bytes from another place', () => {
    for (let size = 32; size <= 3000; size += size < 200 ? 1 : 19) {
      const message = patternOf(size);
      assert.is(digest(message, 'digest_apart'), hex(message), `${size} bytes`);
    }
  });

  test('gives the reference hash for every kind of prefix', () => {
    for (const { prefix_bytes, prefix_int, tokens, hash } of vectors.prefixes) {
      const prefix = Buffer.from(prefix_bytes ?? '', 'hex');
      const integer = Buffer.alloc(8);
      if (prefix_int !== undefined) integer.writeBigInt64BE(BigInt(prefix_int));
      const head = prefix_int === undefined ? prefix : integer;
      assert.is(digest(Buffer.concat([head, toBigEndianWords(tokens)]), 'digest'), hash);
    }
  });
});

suite('sha256', (test) => {
  test('agrees with another implementation for all lengths up to 5000, in coarse steps', () => {
    // The root hash is the digest of the CBOR text string of the seed.
    for (let size = 0; size <= 5000; size += size < 140 ? 1 : 37) {
      const seed = patternOf(size).map((byte) => byte & 0x7f);
      const head = size < 24 ? [0x60 | size] : size < 256 ? [0x78, size] : [0x79, size >> 8, size];
      const cbor = Buffer.concat([Uint8Array.from(head), seed]);
      const { rootHash } = openHasher({
        hashAlgorithm: 'sha256_cbor',
        chunkSizeTokens: 4,
        rootHashSeed: seed,
      });
      assert.is(Buffer.from(rootHash).toString('hex'), sha256Hex(cbor), `${size} bytes`);
    }
  });
});
