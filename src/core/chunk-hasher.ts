/**
 * Door to the chunk hasher of the core: token arrays in, chunk hashes out, no object per token.
 *
 *   frame ──copy──► MSGPACK ──tokens_decode──► TOKEN_WORDS ──hash_chunks──► HASH_OUTPUT ──copy──►
 *
 * There is one set of regions for all requests. `readTokens` decodes, because only then is it known
 * that the array is sound and where it ends; the hashes are often wanted in the same turn, so the
 * hasher remembers whose words lie in the region. Every other span is decoded again from its bytes,
 * which are the frame's: a span is valid as long as nobody writes to the frame.
 *
 * `hashChunksSliced` lets other requests run between slices, so it relies on nothing but its own
 * cursor and prefix: each slice decodes its own piece. That costs one decoding more (1.8 ns a
 * token beside 4 ns for the hash), and keeps every turn below 1 ms.
 *
 * Reading is the caller's error when it fails (`ERR_WIRE_PAYLOAD`, with position and kind, never
 * with the value: tokens do not appear in logs). Any other code of the core is our error.
 *
 * Figures (bench/results/hash.md): 1.1 µs a chunk of 256 tokens, 0.78 ms for 131,072 tokens from
 * frame to hashes.
 */
import { assert } from '../assert.ts';
import { KvdError } from '../errors.ts';
import { RESULT, resultName } from './result.ts';

export type HashAlgorithm = 'blake3' | 'sha256_cbor' | 'builtin';

/** Tokens of one request, as they lie in its frame. */
export interface TokenSpan {
  /** The msgpack array, header included. */
  readonly bytes: Uint8Array;
  readonly count: number;
}

/** Hashes of consecutive chunks from chunk 0 on, `hashSizeBytes` each. Owned by the caller. */
export interface ChunkHashes {
  readonly bytes: Uint8Array;
  readonly count: number;
  readonly hashSizeBytes: number;
}

/** The exports of core.wasm that hashing needs. */
export interface HasherExports {
  readonly memory: { readonly buffer: ArrayBuffer };
  region_offset(id: number): number;
  hasher_init(algorithm: number, seedKind: number, seedSize: number): number;
  tokens_decode(size: number, count: number): number;
  hash_chunks(count: number): number;
}

export interface ChunkHasherOptions {
  readonly hashAlgorithm: HashAlgorithm;
  /** Both as given to `init` of the core. */
  readonly chunkSizeTokens: number;
  readonly tokenCountMax: number;
  /**
   * sha256_cbor only, and needed there: the text of PYTHONHASHSEED as UTF-8, or, with
   * `rootHashIsRandom`, 32 random bytes that are the root themselves.
   */
  readonly rootHashSeed?: Uint8Array;
  readonly rootHashIsRandom?: boolean;
}

// Region ids and offsets as in assembly/memory-map.ts, the rest as in assembly/hash/chunk-chain.ts.
const REGION_MSGPACK = 0;
const REGION_TOKEN_WORDS = 1;
const REGION_HASH_OUTPUT = 2;
const REGION_HASH_STATE = 3;
const ROOT_OFFSET = 0;
const PREFIX_OFFSET = 32;
const TOKEN_ERROR_OFFSET = 64;
const ALGORITHM_ID = { blake3: 1, sha256_cbor: 2, builtin: 3 } as const;
const SEED_NONE = 0;
const SEED_TEXT = 1;
const SEED_ROOT = 2;

const HASH_SIZE_MAX_BYTES = 32;
const INTEGER_SIZE_MAX_BYTES = 9;
const WORD_BYTES = 4;
/** Prompts up to this length are hashed at once: about 0.8 ms of the event loop. */
const TOKENS_PER_TURN = { blake3: 131_072, sha256_cbor: 32_768, builtin: 131_072 } as const;
/** Half of that in a slice, which decodes its piece once more. */
const TOKENS_PER_SLICE = { blake3: 65_536, sha256_cbor: 32_768, builtin: 65_536 } as const;

export class ChunkHasher {
  readonly algorithm: HashAlgorithm;
  readonly chunkSizeTokens: number;
  readonly hashSizeBytes: number;
  readonly tokenCountMax: number;
  /** Prefix of every first chunk (NONE_HASH). */
  readonly rootHash: Uint8Array;

  readonly #exports: HasherExports;
  readonly #input: Uint8Array;
  readonly #words: Uint8Array;
  readonly #output: Uint8Array;
  readonly #prefix: Uint8Array;
  readonly #tokenError: DataView;
  /** The span whose words lie in TOKEN_WORDS, all of them from token 0 on. */
  #decoded: TokenSpan | null = null;

  /** `init` of the core must have been called: the memory does not grow any more. */
  constructor(exports: HasherExports, options: ChunkHasherOptions) {
    this.algorithm = options.hashAlgorithm;
    this.chunkSizeTokens = options.chunkSizeTokens;
    this.tokenCountMax = options.tokenCountMax;
    this.#exports = exports;

    const { buffer } = exports.memory;
    const stateOffset = exports.region_offset(REGION_HASH_STATE);
    const chunkCountMax = Math.floor(this.tokenCountMax / this.chunkSizeTokens);
    this.#input = new Uint8Array(
      buffer,
      exports.region_offset(REGION_MSGPACK),
      INTEGER_SIZE_MAX_BYTES * this.tokenCountMax,
    );
    this.#words = new Uint8Array(
      buffer,
      exports.region_offset(REGION_TOKEN_WORDS),
      WORD_BYTES * this.tokenCountMax,
    );
    this.hashSizeBytes = this.#chooseAlgorithm(options);
    this.#output = new Uint8Array(
      buffer,
      exports.region_offset(REGION_HASH_OUTPUT),
      this.hashSizeBytes * chunkCountMax,
    );
    this.#prefix = new Uint8Array(buffer, stateOffset + PREFIX_OFFSET, this.hashSizeBytes);
    this.#tokenError = new DataView(buffer, stateOffset + TOKEN_ERROR_OFFSET, 8);
    this.rootHash = new Uint8Array(buffer, stateOffset + ROOT_OFFSET, this.hashSizeBytes).slice();
  }

  /**
   * Reads the array of token ids at `offset` of a frame. Its elements must be integers from 0 to
   * 2^32 - 1, of any msgpack width; there may be `tokenCountMax` of them.
   */
  readTokens(frame: Uint8Array, offset: number): { span: TokenSpan; endOffset: number } {
    const header = readArrayHeader(frame, offset);
    if (header.count > this.tokenCountMax) {
      throw new KvdError(
        'ERR_WIRE_PAYLOAD',
        `expected at most ${this.tokenCountMax} token ids, got ${header.count} at byte ${offset}`,
      );
    }
    const start = offset + header.size;
    const endOffset = this.#decode({ bytes: frame, start, count: header.count, firstToken: 0 });
    const span = { bytes: frame.subarray(offset, endOffset), count: header.count };
    this.#decoded = span;
    return { span, endOffset };
  }

  /** Hashes of the complete chunks in the first `endToken` tokens. The caller bounds the length. */
  hashChunks(span: TokenSpan, endToken: number = span.count): ChunkHashes {
    const count = this.#countChunks(span, endToken);
    if (count > 0 && this.#decoded !== span) {
      const { count: tokenCount } = this.readTokens(span.bytes, 0).span;
      assert(tokenCount === span.count, 'a token span has the count of its array');
      this.#decoded = span;
    }
    return this.#wrap(count > 0 ? this.#hash(count, this.rootHash) : new Uint8Array(0));
  }

  /** `hashChunks` for any length: at once when it is short, else in slices between other work. */
  hashPrompt(span: TokenSpan, endToken = span.count): ChunkHashes | Promise<ChunkHashes> {
    if (Math.min(endToken, span.count) <= TOKENS_PER_TURN[this.algorithm]) {
      return this.hashChunks(span, endToken);
    }
    const yieldNow = () => new Promise<void>((resolve) => setImmediate(resolve));
    return this.hashChunksSliced(span, endToken, yieldNow);
  }

  /** As `hashChunks`, with a turn of the event loop between slices (`TOKENS_PER_SLICE`). */
  async hashChunksSliced(
    span: TokenSpan,
    endToken: number,
    yieldNow: () => Promise<void>,
  ): Promise<ChunkHashes> {
    const chunkCount = this.#countChunks(span, endToken);
    const tokensPerSlice = TOKENS_PER_SLICE[this.algorithm];
    const chunksPerSlice = Math.max(1, Math.floor(tokensPerSlice / this.chunkSizeTokens));
    const bytes = new Uint8Array(chunkCount * this.hashSizeBytes);
    let prefix = this.rootHash;
    let start = readArrayHeader(span.bytes, 0).size;
    for (let chunk = 0; chunk < chunkCount; chunk += chunksPerSlice) {
      if (chunk > 0) await yieldNow();
      const sliceChunks = Math.min(chunksPerSlice, chunkCount - chunk);
      const count = sliceChunks * this.chunkSizeTokens;
      const firstToken = chunk * this.chunkSizeTokens;
      start = this.#decode({ bytes: span.bytes, start, count, firstToken });
      const hashes = this.#hash(sliceChunks, prefix);
      bytes.set(hashes, chunk * this.hashSizeBytes);
      prefix = hashes.subarray(hashes.length - this.hashSizeBytes);
    }
    return this.#wrap(bytes);
  }

  /**
   * `count` token ids from `firstToken` on, which must be in the span. A copy if the span was read
   * last, as it is when a store ends in the turn that began it; else 2 ns a token from token 0 on.
   */
  tokenIds(span: TokenSpan, firstToken: number, count: number): Uint32Array {
    const endToken = firstToken + count;
    assert(endToken <= span.count, 'the token ids asked for are in the span');
    if (this.#decoded !== span) {
      const start = readArrayHeader(span.bytes, 0).size;
      this.#decode({ bytes: span.bytes, start, count: endToken, firstToken: 0 });
    }
    // Words are big endian: that is how they are hashed.
    const bytes = this.#words.slice(firstToken * WORD_BYTES, endToken * WORD_BYTES);
    Buffer.from(bytes.buffer).swap32();
    return new Uint32Array(bytes.buffer);
  }

  #countChunks(span: TokenSpan, endToken: number): number {
    const tokenCount = Math.max(0, Math.min(span.count, endToken));
    return Math.floor(tokenCount / this.chunkSizeTokens);
  }

  #chooseAlgorithm(options: ChunkHasherOptions): number {
    const { hashAlgorithm, rootHashSeed } = options;
    let seedKind: number = SEED_NONE;
    let seedSize = 0;
    if (hashAlgorithm === 'sha256_cbor') {
      assert(rootHashSeed, 'sha256_cbor needs a root hash seed');
      assert(rootHashSeed.length <= this.#input.length, 'the root hash seed fits its region');
      this.#input.set(rootHashSeed);
      seedKind = options.rootHashIsRandom ? SEED_ROOT : SEED_TEXT;
      seedSize = rootHashSeed.length;
    }
    const hashSize = this.#exports.hasher_init(ALGORITHM_ID[hashAlgorithm], seedKind, seedSize);
    assert(
      hashSize > 0 && hashSize <= HASH_SIZE_MAX_BYTES,
      `hasher_init(${hashAlgorithm}) answers ${resultName(hashSize)}`,
    );
    return hashSize;
  }

  /** Decodes `count` elements that begin at `start` into TOKEN_WORDS; returns where they end. */
  #decode(piece: TokenPiece): number {
    const { bytes, start, count } = piece;
    // The frame may go on with megabytes of other things.
    const size = Math.min(bytes.length - start, count * INTEGER_SIZE_MAX_BYTES);
    this.#decoded = null;
    this.#input.set(bytes.subarray(start, start + size));
    const result = this.#exports.tokens_decode(size, count);
    if (result < 0) throw this.#describe(result, piece);
    return start + result;
  }

  #hash(chunkCount: number, prefix: Uint8Array): Uint8Array {
    this.#prefix.set(prefix);
    const result = this.#exports.hash_chunks(chunkCount);
    assert(result === RESULT.SUCCESS, `hash_chunks(${chunkCount}) answers ${resultName(result)}`);
    return this.#output.slice(0, chunkCount * this.hashSizeBytes);
  }

  #wrap(bytes: Uint8Array): ChunkHashes {
    const { hashSizeBytes } = this;
    return { bytes, count: bytes.length / hashSizeBytes, hashSizeBytes };
  }

  #describe(result: number, piece: TokenPiece): Error {
    const index = piece.firstToken + this.#tokenError.getUint32(0, true);
    const offset = piece.start + this.#tokenError.getUint32(4, true);
    const tag = piece.bytes[offset];
    const expected = `expected token_ids[${index}] to be an integer from 0 to 4294967295`;
    const where = `at byte ${offset}`;
    switch (result) {
      case RESULT.TOKENS_TRUNCATED:
        return new KvdError('ERR_WIRE_PAYLOAD', `${expected}, got the end of the frame ${where}`);
      case RESULT.TOKEN_NOT_INTEGER:
        return new KvdError('ERR_WIRE_PAYLOAD', `${expected}, got ${nameKind(tag)} ${where}`);
      case RESULT.TOKEN_OUT_OF_RANGE:
        return new KvdError('ERR_WIRE_PAYLOAD', `${expected}, got one out of range ${where}`);
      default:
        return new Error(`tokens_decode answers ${resultName(result)}`);
    }
  }
}

/** Elements of an array: `count` of them from `start` on, of which the first is `firstToken`. */
interface TokenPiece {
  readonly bytes: Uint8Array;
  readonly start: number;
  readonly count: number;
  readonly firstToken: number;
}

/** fixarray 90..9f, array16 dc, array32 dd; counts are big endian. */
function readArrayHeader(bytes: Uint8Array, offset: number): { count: number; size: number } {
  const tag = bytes[offset];
  if (tag !== undefined && (tag & 0xf0) === 0x90) return { count: tag & 0x0f, size: 1 };
  const countSize = tag === 0xdc ? 2 : tag === 0xdd ? 4 : 0;
  if (countSize === 0) {
    const kind = nameKind(tag);
    throw new KvdError(
      'ERR_WIRE_PAYLOAD',
      `expected token_ids to be an array, got ${kind} at byte ${offset}`,
    );
  }
  let count = 0;
  for (let index = 1; index <= countSize; index++) {
    const byte = bytes[offset + index];
    if (byte === undefined) {
      throw new KvdError(
        'ERR_WIRE_PAYLOAD',
        `expected the length of token_ids, got the end of the frame at byte ${bytes.length}`,
      );
    }
    count = count * 256 + byte;
  }
  return { count, size: 1 + countSize };
}

/** First tag of each kind of msgpack value, in ascending order. */
const KINDS: readonly (readonly [tag: number, kind: string])[] = [
  [0x00, 'an integer'],
  [0x80, 'a map'],
  [0x90, 'an array'],
  [0xa0, 'a string'],
  [0xc0, 'nil'],
  [0xc1, 'an invalid byte'],
  [0xc2, 'a boolean'],
  [0xc4, 'bytes'],
  [0xc7, 'an extension'],
  [0xca, 'a float'],
  [0xcc, 'an integer'],
  [0xd4, 'an extension'],
  [0xd9, 'a string'],
  [0xdc, 'an array'],
  [0xde, 'a map'],
  [0xe0, 'an integer'],
];

function nameKind(tag: number | undefined): string {
  if (tag === undefined) return 'the end of the frame';
  return KINDS.findLast(([first]) => first <= tag)?.[1] ?? 'nothing';
}
