/**
 * BLAKE3 of messages of any length, for comparison with another implementation from outside
 * (test/core/digest.test.ts). The product hashes chunks only: 32 bytes and whole tokens.
 */
import { blake3, HEAD_SIZE } from '../hash/blake3';
import { beginLayout, endLayout, HASH_OUTPUT, MSGPACK } from '../memory-map';
import { SUCCESS } from '../result';

/** Lays out the memory; messages of up to 9 * `tokens` bytes are written where this points to. */
export function open(tokens: u32): usize {
  assert(beginLayout(tokens, 256, 16) === SUCCESS);
  assert(endLayout() === SUCCESS);
  return MSGPACK;
}

/** Digest of the first `size` bytes of the message; returns where its 32 bytes lie. */
export function digest(size: u32): usize {
  blake3(HASH_OUTPUT, MSGPACK, MSGPACK + HEAD_SIZE, size);
  return HASH_OUTPUT;
}

/** The same with the first 32 bytes elsewhere, as a chunk's prefix is. */
export function digest_apart(size: u32): usize {
  const head = HASH_OUTPUT;
  memory.copy(head, MSGPACK, HEAD_SIZE);
  const body = MSGPACK + HEAD_SIZE;
  memory.fill(MSGPACK, 0xee, HEAD_SIZE);
  blake3(head, head, body, size);
  return head;
}
