/** Payload memory goes back when its request is done (frames.ts, router.ts). */
import * as assert from 'uvu/assert';
import { tokenSpan } from '../../../src/client/client.ts';
import type { RequestOf } from '../../../src/engine/api.ts';
import { FIRST_PAYLOAD, releasePayloads } from '../../../src/wire/frames.ts';
import { suite } from '../../support/suite.ts';
import { openWireHouse } from '../../support/wire-house.ts';

/** A frame with memory of its own, as ZMQ makes it. */
const frameOf = (length: number) => Buffer.from(new ArrayBuffer(length));

suite('released payloads', (test) => {
  test('large payloads lose their memory, what is echoed and what is small keeps it', () => {
    const frames = [5, 9, 3, 100, 4096, 100_000].map(frameOf);
    releasePayloads(frames);
    assert.equal(
      frames.map((frame) => frame.length),
      [5, 9, 3, 100, 0, 0],
    );
    assert.is(FIRST_PAYLOAD, 3);
  });

  test('a view of memory that others share keeps it', () => {
    const shared = frameOf(100_000);
    releasePayloads([frameOf(1), frameOf(1), frameOf(1), shared.subarray(0, 50_000)]);
    assert.is(shared.length, 100_000);
  });

  /** A LOOKUP of 8192 tokens, about 32 KB. */
  const lookupOf = (requestId: string): RequestOf<'LOOKUP'> => ({
    key: {
      modelName: 'm',
      worldSize: 1,
      workerId: null,
      tokens: tokenSpan(Array.from({ length: 8192 }, (_, i) => 100_000 + i)),
      startToken: 0,
      endToken: 8192,
      requestId,
      cacheSalt: '',
      readerCount: null,
      requestConfigs: null,
    },
    tpSize: 1,
  });

  test('a synchronous handler sees its tokens, and they are gone with the answer', async () => {
    const seen: { tokens: Uint8Array; byteLength: number }[] = [];
    const house = await openWireHouse({
      LOOKUP: (request) => {
        const tokens = (request as RequestOf<'LOOKUP'>).key.tokens.bytes;
        seen.push({ tokens, byteLength: tokens.byteLength });
      },
    });
    try {
      await house.client().call('LOOKUP', lookupOf('r'), 5000);
      assert.ok((seen[0]?.byteLength ?? 0) > 30_000);
      assert.is(seen[0]?.tokens.byteLength, 0);
    } finally {
      await house.close();
    }
  });
});
