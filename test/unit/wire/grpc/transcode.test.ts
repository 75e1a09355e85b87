/** Messages of the gRPC transport against the msgpack frames that say the same. */
import * as assert from 'uvu/assert';
import { callNamed, dialectNamed } from '../../../../src/wire/dialect.ts';
import { transcodeReply } from '../../../../src/wire/grpc/reply-transcoder.ts';
import { RequestTranscoder } from '../../../../src/wire/grpc/request-transcoder.ts';
import { METHODS } from '../../../../src/wire/grpc/services.ts';
import { PayloadReader } from '../../../../src/wire/schema.ts';
import { openHasher } from '../../../support/core-hasher.ts';
import { messageOf } from '../../../support/grpc-house.ts';
import {
  type GrpcVector,
  goldenMethodNames,
  pathOf,
  requestVectors,
  responseVectors,
} from '../../../support/grpc-vectors.ts';
import { suite } from '../../../support/suite.ts';

const reader = new PayloadReader(openHasher({ chunkSizeTokens: 16, tokenCountMax: 70_000 }));
const dialect = dialectNamed('C');

/** Said in another way than ZMQ clients write it: a number for a float, a map in another order. */
const REPHRASED = ['wait_prefetch_status int-timeout', 'p2p_lookup_and_lock two'];

function decodeRequest({ method }: GrpcVector, frames: readonly Uint8Array[]): unknown {
  return callNamed(dialect, method.operation).decodeRequest(frames, 0, reader);
}

const hexOf = (bytes: Uint8Array) => Buffer.from(bytes).toString('hex');

suite('services', (test) => {
  test('are those of the reference', () => {
    assert.equal(METHODS.map(({ path }) => path).sort(), goldenMethodNames.map(pathOf).sort());
  });

  test('have golden messages in both directions', () => {
    for (const vectors of [requestVectors, responseVectors]) {
      const seen = new Set(vectors.map(({ method }) => method.path));
      assert.equal(
        METHODS.map(({ path }) => path).filter((path) => !seen.has(path)),
        [],
      );
    }
  });
});

suite('request', (test) => {
  for (const vector of requestVectors) {
    const { title, method, message, frames: expected } = vector;
    test(`${title} becomes the frames that ZMQ clients write`, () => {
      const { frames, data } = new RequestTranscoder(method.request, message).transcode();
      const given = expected.map(hexOf);
      const made = frames.map(hexOf);
      if (data !== null) {
        // Inline data is handed over as it lies, without a header of its own.
        assert.is(made.pop(), 'c400');
        assert.ok(given.pop()?.endsWith(hexOf(data)));
      }
      if (REPHRASED.includes(title)) {
        assert.equal(decodeRequest(vector, frames), decodeRequest(vector, expected));
      } else assert.equal(made, given);
    });

    test(`${title} is written as the reference writes it`, () => {
      if (REPHRASED.includes(title)) {
        const { frames } = new RequestTranscoder(method.request, message).transcode();
        assert.is(hexOf(messageOf(method, frames)), hexOf(message));
      } else assert.is(hexOf(messageOf(method, expected)), hexOf(message));
    });
  }
});

suite('reply', (test) => {
  for (const { title, method, message, frames } of responseVectors) {
    test(`${title} is written as the reference writes it`, () => {
      assert.is(hexOf(transcodeReply(method.reply, frames[0] ?? null)), hexOf(message));
    });
  }
});
