/** Token arrays as clients encode them, and their hashes by definition (spec engine 1.2). */
import { createHash } from 'node:crypto';
import { blake3 } from '@noble/hashes/blake3.js';

/** A token source of test/vectors/hash.json. */
export type TokenSource =
  | readonly number[]
  | { kind: 'range'; start: number; count: number }
  | { kind: 'repeat'; value: number; count: number }
  | { kind: 'lcg'; seed: number; count: number; vocab: number };

export function expandTokens(source: TokenSource): readonly number[] {
  if ('length' in source) return source;
  const { count } = source;
  if (source.kind === 'range') return Array.from({ length: count }, (_, i) => source.start + i);
  if (source.kind === 'repeat') return new Array<number>(count).fill(source.value);
  return lcgTokens(source.seed, count, source.vocab);
}

/** x = (1103515245 x + 12345) mod 2^31, token = x mod vocab. */
export function lcgTokens(seed: number, count: number, vocab: number): number[] {
  let x = BigInt(seed);
  return Array.from({ length: count }, () => {
    x = (1_103_515_245n * x + 12_345n) % 2_147_483_648n;
    return Number(x) % vocab;
  });
}

/** msgpack's integer forms by their tag; `fix` is the token itself. */
export const INTEGER_FORMS = {
  fix: { tag: -1, size: 0, max: 0x7f },
  uint8: { tag: 0xcc, size: 1, max: 0xff },
  uint16: { tag: 0xcd, size: 2, max: 0xffff },
  uint32: { tag: 0xce, size: 4, max: 0xffff_ffff },
  uint64: { tag: 0xcf, size: 8, max: 0xffff_ffff },
  int8: { tag: 0xd0, size: 1, max: 0x7f },
  int16: { tag: 0xd1, size: 2, max: 0x7fff },
  int32: { tag: 0xd2, size: 4, max: 0x7fff_ffff },
  int64: { tag: 0xd3, size: 8, max: 0xffff_ffff },
} as const;
export type IntegerForm = keyof typeof INTEGER_FORMS;
export const INTEGER_FORM_NAMES = Object.keys(INTEGER_FORMS) as IntegerForm[];

export function encodeInteger(value: number, form: IntegerForm): number[] {
  const { tag, size } = INTEGER_FORMS[form];
  if (size === 0) return [value];
  const bytes: number[] = [];
  for (let rest = value; bytes.length < size; rest = Math.floor(rest / 256)) {
    bytes.unshift(rest % 256);
  }
  return [tag, ...bytes];
}

export function encodeArrayHeader(count: number): number[] {
  if (count < 16) return [0x90 | count];
  if (count < 0x10000) return [0xdc, count >>> 8, count & 0xff];
  return [0xdd, count >>> 24, (count >>> 16) & 0xff, (count >>> 8) & 0xff, count & 0xff];
}

/** The array with each token in its shortest form. */
export function encodeTokens(tokens: readonly number[]): Uint8Array {
  const bytes = encodeArrayHeader(tokens.length);
  for (const token of tokens) {
    const form = INTEGER_FORM_NAMES.find((name) => token <= INTEGER_FORMS[name].max);
    bytes.push(...encodeInteger(token, form!));
  }
  return Uint8Array.from(bytes);
}

export function toBigEndianWords(tokens: readonly number[]): Uint8Array {
  const bytes = new Uint8Array(tokens.length * 4);
  const view = new DataView(bytes.buffer);
  for (const [index, token] of tokens.entries()) view.setUint32(index * 4, token);
  return bytes;
}

/** Chunk hashes by blake3 of another make, as hex. */
export function blake3ChunkHashes(tokens: readonly number[], chunkSize: number): string[] {
  let prefix = blake3(new Uint8Array(12));
  const hashes: string[] = [];
  for (let end = chunkSize; end <= tokens.length; end += chunkSize) {
    const words = toBigEndianWords(tokens.slice(end - chunkSize, end));
    prefix = blake3(Buffer.concat([prefix, words]));
    hashes.push(Buffer.from(prefix).toString('hex'));
  }
  return hashes;
}

export function sha256Hex(bytes: Uint8Array): string {
  return createHash('sha256').update(bytes).digest('hex');
}
