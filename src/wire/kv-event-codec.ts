/**
 * KV events as vLLM writes them (`vllm.distributed.kv_events`, spec: issue 5): structs as arrays,
 * the tag first, all fields in their order, nil where nothing is known.
 *
 *   KVEventBatch      [ts: float64, events, data_parallel_rank: int]
 *   BlockStored       ["BlockStored", block_hashes, parent_block_hash | nil, token_ids, block_size,
 *                      lora_id: nil, medium: "CPU", lora_name: nil, extra_keys | nil,
 *                      group_idx: nil, kv_cache_spec_kind: nil, kv_cache_spec_sliding_window: nil]
 *   BlockRemoved      ["BlockRemoved", block_hashes, medium: "CPU", group_idx: nil]
 *   AllBlocksCleared  ["AllBlocksCleared"]
 *
 * The tier is the medium. The tenant is where vLLM has it: `extra_keys` has one entry per block,
 * which is nil or the list of what was hashed beside the tokens, and the salt is hashed with the
 * first block of a prompt only; the blocks behind it have it by their parent.
 *
 * As in vLLM a block hash names a block: there is no model in an event and no salt in a removal.
 * The chunk hash of the protocol depends on tokens alone, so here a block hash is SHA-256 over it
 * and its model, world size and salt. Equal tokens of two tenants are two blocks, and the hashes
 * are the same on every server and after every start.
 */
import { createHash } from 'node:crypto';
import type { ChunkScope, RemovedChunks, StoredChunks } from '../observability/events.ts';
import { MsgpackWriter } from './msgpack.ts';

const MEDIUM = 'CPU';
/** Of a token id: the tag and 32 bits. */
const INTEGER_SIZE_MAX_BYTES = 5;
/** There is one publisher and no data parallelism, which vLLM numbers from 0. */
const DATA_PARALLEL_RANK = 0;
/** Tokens of one BlockStored: a long prompt comes in several, so no event takes megabytes. */
const STORED_TOKEN_COUNT_MAX = 16_384;

const writer = new MsgpackWriter();

/** One event for a run of chunks, or several where it is long. */
export function encodeStored(chunks: StoredChunks): Uint8Array[] {
  const { hashes, tokenIds } = chunks;
  const blockSize = tokenIds.length / hashes.length;
  const blocksMax = Math.max(1, Math.floor(STORED_TOKEN_COUNT_MAX / blockSize));
  const events: Uint8Array[] = [];
  let parentHash = chunks.parentHash && blockHashOf(chunks, chunks.parentHash);
  for (let first = 0; first < hashes.length; first += blocksMax) {
    const blockHashes = hashes
      .slice(first, first + blocksMax)
      .map((hash) => blockHashOf(chunks, hash));
    const firstToken = first * blockSize;
    events.push(
      encodeBlocks(chunks.cacheSalt, {
        blockHashes,
        parentHash,
        blockSize,
        tokenIds: tokenIds.subarray(firstToken, firstToken + blockHashes.length * blockSize),
      }),
    );
    parentHash = blockHashes.at(-1) as Uint8Array;
  }
  return events;
}

function encodeBlocks(
  cacheSalt: string,
  of: {
    readonly blockHashes: readonly Uint8Array[];
    readonly parentHash: Uint8Array | null;
    readonly blockSize: number;
    readonly tokenIds: Uint32Array;
  },
): Uint8Array {
  writer.writeArrayHeader(12);
  writer.writeText('BlockStored');
  writeHashes(of.blockHashes);
  if (of.parentHash) writer.writeBytes(of.parentHash);
  else writer.writeNil();
  writer.writeArrayHeader(of.tokenIds.length);
  writer.writeRaw(encodeIntegers(of.tokenIds));
  writer.writeInteger(of.blockSize);
  writer.writeNil();
  writer.writeText(MEDIUM);
  writer.writeNil();
  writeExtraKeys(of.parentHash === null ? cacheSalt : '', of.blockHashes.length);
  writer.writeNil();
  writer.writeNil();
  writer.writeNil();
  return writer.take();
}

/** Each in its shortest form. One call of the writer for each would take three times as long. */
function encodeIntegers(values: Uint32Array): Uint8Array {
  const bytes = new Uint8Array(values.length * INTEGER_SIZE_MAX_BYTES);
  let at = 0;
  for (const value of values) {
    const size = value <= 0x7f ? 0 : value <= 0xff ? 1 : value <= 0xffff ? 2 : 4;
    // cc, cd and ce stand before 1, 2 and 4 bytes.
    if (size > 0) bytes[at++] = 0xcc + (size >> 1);
    for (let shift = 8 * (size - 1); shift > 0; shift -= 8) bytes[at++] = value >>> shift;
    bytes[at++] = value;
  }
  return bytes.subarray(0, at);
}

/** The salt is hashed with the first block of a prompt. */
function writeExtraKeys(saltOfFirst: string, blockCount: number): void {
  if (saltOfFirst === '') {
    writer.writeNil();
    return;
  }
  writer.writeArrayHeader(blockCount);
  writer.writeArrayHeader(1);
  writer.writeText(saltOfFirst);
  for (let block = 1; block < blockCount; block += 1) writer.writeNil();
}

export function encodeRemoved(chunks: RemovedChunks): Uint8Array {
  writer.writeArrayHeader(4);
  writer.writeText('BlockRemoved');
  writeHashes(chunks.hashes.map((hash) => blockHashOf(chunks, hash)));
  writer.writeText(MEDIUM);
  writer.writeNil();
  return writer.take();
}

export function encodeCleared(): Uint8Array {
  writer.writeArrayHeader(1);
  writer.writeText('AllBlocksCleared');
  return writer.take();
}

export function encodeBatch(wallMs: number, events: readonly Uint8Array[]): Uint8Array {
  writer.writeArrayHeader(3);
  writer.writeFloat(wallMs / 1000);
  writer.writeArrayHeader(events.length);
  for (const event of events) writer.writeRaw(event);
  writer.writeInteger(DATA_PARALLEL_RANK);
  return writer.take();
}

export function encodeSeq(seq: number): Uint8Array {
  const bytes = new Uint8Array(8);
  new DataView(bytes.buffer).setBigUint64(0, BigInt(seq));
  return bytes;
}

function writeHashes(hashes: readonly Uint8Array[]): void {
  writer.writeArrayHeader(hashes.length);
  for (const hash of hashes) writer.writeBytes(hash);
}

/** The name of a block. The hash has a fixed size and the model its length before it. */
export function blockHashOf(scope: ChunkScope, chunkHash: Uint8Array): Uint8Array {
  const { modelName, worldSize, cacheSalt } = scope;
  const text = `${worldSize}/${modelName.length}/${modelName}${cacheSalt}`;
  return createHash('sha256').update(chunkHash).update(text).digest();
}
