/** Byte for byte what vLLM's encoder makes of the same events (scripts/kv-events/samples.py). */
import { readFileSync } from 'node:fs';
import { decode } from '@msgpack/msgpack';
import * as assert from 'uvu/assert';
import {
  blockHashOf,
  encodeBatch,
  encodeCleared,
  encodeRemoved,
  encodeSeq,
  encodeStored,
} from '../../../src/wire/kv-event-codec.ts';
import { suite } from '../../support/suite.ts';

interface Said {
  readonly kind: 'stored' | 'removed' | 'cleared';
  readonly modelName: string;
  readonly worldSize: number;
  readonly cacheSalt: string;
  readonly hashes: readonly string[];
  readonly parentHash: string | null;
  readonly tokenIds: readonly number[];
}

interface Samples {
  readonly timeMs: number;
  readonly samples: readonly {
    readonly title: string;
    readonly events: readonly Said[];
    readonly bytes: string;
  }[];
}

const { timeMs, samples } = JSON.parse(
  readFileSync(new URL('../../vectors/kv-events-vllm.json', import.meta.url), 'utf8'),
) as Samples;

const fromHex = (text: string): Uint8Array => new Uint8Array(Buffer.from(text, 'hex'));
const toHex = (bytes: Uint8Array): string => Buffer.from(bytes).toString('hex');

function encodeSaid(said: Said): Uint8Array[] {
  if (said.kind === 'cleared') return [encodeCleared()];
  const hashes = said.hashes.map(fromHex);
  if (said.kind === 'removed') return [encodeRemoved({ ...said, hashes })];
  const parentHash = said.parentHash === null ? null : fromHex(said.parentHash);
  return encodeStored({ ...said, hashes, parentHash, tokenIds: Uint32Array.from(said.tokenIds) });
}

const SCOPE = { modelName: 'm', worldSize: 1, cacheSalt: '' };

suite('KV events in the format of vLLM', (test) => {
  for (const { title, events, bytes } of samples) {
    test(`has the bytes of vLLM: ${title}`, () => {
      assert.is(toHex(encodeBatch(timeMs, events.flatMap(encodeSaid))), bytes);
    });
  }

  test('cuts a long prompt into events that follow each other', () => {
    const hashes = Array.from({ length: 100 }, (_, i) => new Uint8Array(32).fill(i));
    const tokenIds = Uint32Array.from({ length: 100 * 256 }, (_, i) => i);
    const events = encodeStored({ ...SCOPE, hashes, parentHash: null, tokenIds });
    const decoded = events.map((event) => decode(event) as unknown[]);
    assert.equal(
      decoded.map((event) => (event[1] as unknown[]).length),
      [64, 36],
    );
    assert.equal(decoded[1]?.[2], (decoded[0]?.[1] as unknown[] | undefined)?.at(-1));
    assert.equal(
      decoded.flatMap((event) => event[3]),
      [...tokenIds],
    );
  });

  test('names a block by everything that its bytes depend on', () => {
    const hash = new Uint8Array(32).fill(1);
    const scopes = [
      SCOPE,
      { ...SCOPE, cacheSalt: 'a' },
      { ...SCOPE, modelName: 'ma' },
      { ...SCOPE, worldSize: 2 },
    ];
    const names = scopes.map((scope) => toHex(blockHashOf(scope, hash)));
    assert.is(new Set(names).size, scopes.length);
    assert.ok(names.every((name) => name.length === 64));
  });

  test('numbers batches with 8 bytes, big endian', () => {
    assert.is(toHex(encodeSeq(0x0102)), '0000000000000102');
    assert.is(toHex(encodeSeq(2 ** 40)), '0000010000000000');
  });
});
