import * as assert from 'uvu/assert';
import type { ChunkHasher } from '../../src/core/chunk-hasher.ts';
import { KvdError } from '../../src/errors.ts';
import { openHasher, toHex } from '../support/core-hasher.ts';
import fc from '../support/property.ts';
import { suite } from '../support/suite.ts';
import {
  blake3ChunkHashes,
  encodeArrayHeader,
  encodeInteger,
  encodeTokens,
  INTEGER_FORM_NAMES,
  INTEGER_FORMS,
  type IntegerForm,
  lcgTokens,
} from '../support/token-arrays.ts';

const TOKEN_COUNT_MAX = 70_000;
// One token a chunk: every decoded word shows in the hashes.
const hasher = openHasher({ chunkSizeTokens: 1, tokenCountMax: TOKEN_COUNT_MAX });

const EDGES = [0, 1, 0x7f, 0x80, 0xcd, 0xff, 0x100, 0x7fff, 0x8000, 0xffff, 0x10000, 0xcdce_cfcc];
const EDGES_HIGH = [0x7fff_ffff, 0x8000_0000, 0xffff_ffff];

/** What the array decodes to, by its hashes. */
function checkDecodes(
  bytes: Uint8Array,
  tokens: readonly number[],
  by: ChunkHasher = hasher,
): void {
  const { span, endOffset } = by.readTokens(bytes, 0);
  assert.is(span.count, tokens.length);
  assert.is(endOffset, bytes.length);
  assert.equal(toHex(by.hashChunks(span)), blake3ChunkHashes(tokens, by.chunkSizeTokens));
}

function rejectsTokens(bytes: Uint8Array, expected: RegExp): void {
  let error: unknown;
  try {
    hasher.readTokens(bytes, 0);
  } catch (caught) {
    error = caught;
  }
  assert.instance(
    error,
    KvdError,
    `${Buffer.from(bytes.subarray(0, 40)).toString('hex')} is refused`,
  );
  assert.is((error as KvdError).code, 'ERR_WIRE_PAYLOAD');
  assert.match((error as KvdError).message, expected);
}

suite('token reader', (test) => {
  test('reads every integer form that can hold a value, at every place of a long array', () => {
    for (const form of INTEGER_FORM_NAMES) {
      for (const value of [...EDGES, ...EDGES_HIGH]) {
        if (value > INTEGER_FORMS[form].max) continue;
        for (let place = 0; place < 9; place++) {
          const tokens = lcgTokens(place + 1, 24, 151_936);
          const bytes = encodeArrayHeader(tokens.length + 1);
          for (const [index, token] of tokens.entries()) {
            if (index === place) bytes.push(...encodeInteger(value, form));
            bytes.push(...encodeTokens([token]).subarray(1));
          }
          checkDecodes(Uint8Array.from(bytes), tokens.toSpliced(place, 0, value));
        }
      }
    }
  });

  test('reads any mixture of forms', () => {
    const integer = fc
      .tuple(fc.constantFrom(...INTEGER_FORM_NAMES), fc.double({ min: 0, max: 1, noNaN: true }))
      .map(([form, part]) => ({ form, value: Math.floor(part * INTEGER_FORMS[form].max) }));
    const usual = fc
      .tuple(fc.constantFrom<IntegerForm>('fix', 'uint8', 'uint16', 'uint32'), fc.nat(0x7f))
      .map(([form, value]) => ({ form, value }));
    const list = fc.array(fc.oneof(usual, integer), { maxLength: 60 });
    const property = fc.property(list, (integers) => {
      const bytes = encodeArrayHeader(integers.length);
      for (const { value, form } of integers) bytes.push(...encodeInteger(value, form));
      checkDecodes(
        Uint8Array.from(bytes),
        integers.map(({ value }) => value),
      );
    });
    fc.assert(property, { numRuns: 300 });
  });

  test('reads runs of each usual form, four to a step', () => {
    for (const form of ['fix', 'uint8', 'uint16', 'uint32'] as const) {
      for (let count = 0; count < 40; count++) {
        const tokens = Array.from({ length: count }, (_, i) => (i * 77) % INTEGER_FORMS[form].max);
        const bytes = encodeArrayHeader(count);
        for (const token of tokens) bytes.push(...encodeInteger(token, form));
        checkDecodes(Uint8Array.from(bytes), tokens);
      }
    }
  });

  test('reads arrays with each header, and the longest allowed one', () => {
    checkDecodes(Uint8Array.from([0x90]), []);
    checkDecodes(Uint8Array.from([0xdc, 0, 2, 5, 6]), [5, 6]);
    checkDecodes(Uint8Array.from([0xdd, 0, 0, 0, 2, 5, 6]), [5, 6]);
    const coarse = openHasher({ chunkSizeTokens: 10_000, tokenCountMax: TOKEN_COUNT_MAX });
    const tokens = lcgTokens(9, TOKEN_COUNT_MAX, 2 ** 31);
    checkDecodes(encodeTokens(tokens), tokens, coarse);
  });

  test('reads the longest array in its widest form', () => {
    const coarse = openHasher({ chunkSizeTokens: 500, tokenCountMax: 1000 });
    const tokens = lcgTokens(9, 1000, 2 ** 31);
    const bytes = encodeArrayHeader(tokens.length);
    for (const token of tokens) bytes.push(...encodeInteger(token, 'uint64'));
    checkDecodes(Uint8Array.from(bytes), tokens, coarse);
  });

  test('leaves alone what stands before and behind the array', () => {
    const tokens = lcgTokens(4, 50, 70_000);
    const array = encodeTokens(tokens);
    const frame = Buffer.concat([
      Uint8Array.from([0xc0, 0xff, 0xd9]),
      array,
      Buffer.alloc(99, 0xc1),
    ]);
    const { span, endOffset } = hasher.readTokens(frame, 3);
    assert.is(endOffset, 3 + array.length);
    assert.equal(Buffer.from(span.bytes), Buffer.from(array));
    assert.equal(toHex(hasher.hashChunks(span)), blake3ChunkHashes(tokens, 1));
  });

  test('refuses every truncation', () => {
    const forms = INTEGER_FORM_NAMES;
    const bytes = encodeArrayHeader(forms.length * 4);
    for (let index = 0; index < forms.length * 4; index++) {
      bytes.push(...encodeInteger(index, forms[index % forms.length]!));
    }
    checkDecodes(
      Uint8Array.from(bytes),
      Array.from({ length: forms.length * 4 }, (_, index) => index),
    );
    for (let size = 0; size < bytes.length; size++) {
      rejectsTokens(Uint8Array.from(bytes.slice(0, size)), /got the end of the frame at byte/);
    }
  });

  test('refuses a long array of the usual forms at every truncation', () => {
    const bytes = encodeTokens(lcgTokens(6, 100, 151_936));
    for (let size = 0; size < bytes.length; size++) {
      rejectsTokens(bytes.subarray(0, size), /got the end of the frame at byte/);
    }
  });

  test('names index, kind and byte of an element that is no integer', () => {
    const kinds: [tags: number[], kind: RegExp][] = [
      [[0x80, 0x8f, 0xde, 0xdf], /got a map/],
      [[0x90, 0x9f, 0xdc, 0xdd], /got an array/],
      [[0xa0, 0xbf, 0xd9, 0xda, 0xdb], /got a string/],
      [[0xc0], /got nil/],
      [[0xc1], /got an invalid byte/],
      [[0xc2, 0xc3], /got a boolean/],
      [[0xc4, 0xc5, 0xc6], /got bytes/],
      [[0xc7, 0xc8, 0xc9, 0xd4, 0xd5, 0xd6, 0xd7, 0xd8], /got an extension/],
      [[0xca, 0xcb], /got a float/],
    ];
    for (const [tags, kind] of kinds) {
      for (const tag of tags) {
        for (let place = 0; place < 24; place++) {
          const elements = new Array<number>(64).fill(1);
          elements[place] = tag;
          const bytes = Uint8Array.from([...encodeArrayHeader(64), ...elements]);
          rejectsTokens(bytes, kind);
          rejectsTokens(bytes, new RegExp(`token_ids\\[${place}\\].* at byte ${place + 3}$`));
        }
      }
    }
  });

  test('refuses integers that are negative or above 2^32 - 1, without showing them', () => {
    const integers = [
      [0xe0],
      [0xff],
      [0xd0, 0x80],
      [0xd0, 0xff],
      [0xd1, 0x80, 0],
      [0xd2, 0xff, 0xff, 0xff, 0xfe],
      [0xd3, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff],
      [0xd3, 0, 0, 0, 1, 0, 0, 0, 0],
      [0xcf, 0, 0, 0, 1, 0, 0, 0, 0],
      [0xcf, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff],
    ];
    for (const integer of integers) {
      for (let place = 0; place < 10; place++) {
        const elements = new Array<number[]>(40).fill([2]).with(place, integer);
        const bytes = Uint8Array.from([...encodeArrayHeader(40), ...elements.flat()]);
        rejectsTokens(
          bytes,
          new RegExp(`token_ids\\[${place}\\].*4294967295, got one out of range`),
        );
      }
    }
  });

  test('refuses what is no array', () => {
    for (let tag = 0; tag < 256; tag++) {
      if ((tag & 0xf0) === 0x90 || tag === 0xdc || tag === 0xdd) continue;
      rejectsTokens(Uint8Array.from([tag, 0, 0, 0, 0]), /expected token_ids to be an array, got/);
    }
    rejectsTokens(new Uint8Array(0), /got the end of the frame at byte 0/);
  });

  test('refuses more tokens than the limit by the header alone', () => {
    const limit = /expected at most 70000 token ids, got/;
    rejectsTokens(Uint8Array.from([0xdd, 0, 1, 0x11, 0x71]), limit);
    rejectsTokens(Uint8Array.from([0xdd, 0xff, 0xff, 0xff, 0xff]), limit);
    rejectsTokens(Uint8Array.from([0xdd, 0, 1, 0x11, 0x70]), /got the end of the frame/);
  });
});
