/** The golden messages of every release, as calls of its dialect. */
import { createHash } from 'node:crypto';
import * as assert from 'uvu/assert';
import type { OperationName, RequestOf } from '../../src/engine/api.ts';
import { callNamed, type Dialect, dialectNamed } from '../../src/wire/dialect.ts';
import { readOperationFrame } from '../../src/wire/frames.ts';
import type { Call } from '../../src/wire/operation.ts';
import { PayloadReader } from '../../src/wire/schema.ts';
import { openHasher } from './core-hasher.ts';
import { encodeTokens } from './token-arrays.ts';
import {
  framesInFull,
  RELEASES,
  type Release,
  type VectorRequest,
  wireVectorsOf,
} from './wire-vectors.ts';

// The golden inline COMMIT_STORE has two chunks in 16 tokens.
export const goldenReader = new PayloadReader(
  openHasher({ chunkSizeTokens: 8, tokenCountMax: 70_000 }),
);
export const EVERY_RELEASE = Object.keys(RELEASES) as Release[];

export function dialectOf(release: Release): Dialect {
  return dialectNamed(RELEASES[release]);
}

/** By the number or the name in the frame, as a client that is known sends it. */
export function callIn(frames: readonly Buffer[], { callsById, callsByText }: Dialect): Call {
  const op = readOperationFrame(frames[1] as Buffer);
  const call =
    typeof op === 'number' ? callsById.get(op) : callsByText.get((op as { text: string }).text);
  assert.ok(call, `operation ${JSON.stringify(op)}`);
  return call as Call;
}

/** By the name in the vectors. */
export function callOf(release: Release, op: string): Call {
  const { callsByName } = dialectOf(release);
  const call = [...callsByName.values()].find(({ label }) => label === op);
  assert.ok(call, op);
  return call as Call;
}

/** What stands behind `end` in a key, of which the vectors keep only the last bytes. */
const KEY_TAILS: Readonly<Record<Release, string>> = {
  '0.5.0': '',
  '0.5.6': '\xaarequest_id\xa8req-0001\xaacache_salt\xa0\xaf',
};

/** The vectors keep only head, tail and digest of a key with 65,536 times token 7. */
function remakeLongKey(head: Buffer, tail: Buffer, rest: string, workerId: number): Buffer {
  const rank = Buffer.from('\xaaworld_size\x01\xa9worker_id', 'latin1');
  return Buffer.concat([
    head.subarray(0, head.indexOf(rank.subarray(0, 12))),
    rank,
    Buffer.from([workerId]),
    Buffer.from('\xa9token_ids', 'latin1'),
    encodeTokens(new Array<number>(65_536).fill(7)),
    Buffer.from('\xa5start\x00\xa3end\xce\x00\x01\x00\x00', 'latin1'),
    Buffer.from(rest, 'latin1'),
    tail,
  ]);
}

export function fullFrames(release: Release, vector: VectorRequest): Buffer[] {
  // Schedulers send nil as worker id, workers their rank.
  const workerId = /^store/i.test(vector.op) ? 0 : 0xc0;
  return framesInFull(vector.frames, ({ $head, $tail, $sha256 }) => {
    const [head, tail] = [Buffer.from($head, 'hex'), Buffer.from($tail, 'hex')];
    const remade = remakeLongKey(head, tail, KEY_TAILS[release], workerId);
    assert.is(createHash('sha256').update(remade).digest('hex'), $sha256, vector.case);
    return remade;
  });
}

export function hexOf(frames: readonly Uint8Array[]): string[] {
  return frames.map((frame) => Buffer.from(frame).toString('hex'));
}

export function decodeCase<N extends OperationName>(
  name: N,
  caseName: string,
  release: Release = '0.5.0',
): RequestOf<N> {
  const call = callNamed(dialectOf(release), name);
  const found = wireVectorsOf(release).requests.find(
    (vector) => vector.op === call.label && vector.case === caseName,
  );
  assert.ok(found, `${name} ${caseName}`);
  return call.decodeRequest(fullFrames(release, found as VectorRequest), 2, goldenReader);
}
