/** The gRPC door with the client of the library: every call ends, as its client can bear it. */
import { randomBytes } from 'node:crypto';
import type { ServiceError } from '@grpc/grpc-js';
import * as assert from 'uvu/assert';
import type { HostTensor, RequestOf } from '../../../../src/engine/api.ts';
import type { RequestContext } from '../../../../src/engine/client-traits.ts';
import { KvdError, WithheldReplyError } from '../../../../src/errors.ts';
import { METHODS } from '../../../../src/wire/grpc/services.ts';
import { NEW_CLIENT } from '../../../support/client-traits.ts';
import {
  lookup,
  ping,
  retrieve,
  STATUS,
  statusOf,
  withGrpcHouse,
} from '../../../support/grpc-house.ts';
import { requestVectors } from '../../../support/grpc-vectors.ts';
import { suite } from '../../../support/suite.ts';

const REGISTRATION: RequestOf<'REGISTER_KV_CACHE_ENGINE_DRIVEN_CONTEXT'> = {
  instanceId: 1n,
  modelName: 'm',
  worldSize: 1,
  blockSize: 16,
  layerCount: 1,
  hiddenSize: 1,
  dtype: 'float16',
  usesMla: false,
  physicalSlotCount: null,
};

suite('gRPC door', (test) => {
  test('hands a request over as a newer client means it, and the reply back', async () => {
    const seen: { request: RequestOf<'RETRIEVE'>; context: RequestContext }[] = [];
    const answers = {
      RETRIEVE: (request: never, context: RequestContext) => {
        seen.push({ request, context });
        return { event: Buffer.from('event'), ok: true };
      },
      QUERY_PREFETCH_STATUS: () => null,
    };
    await withGrpcHouse(answers, async ({ client }) => {
      const tester = client();
      const { value, error } = await tester.call('RETRIEVE', {
        ...retrieve(),
        instanceId: 2n ** 62n + 1n,
        blockIds: [[1, 300, 70_000], []],
        skipFirstTokens: 16,
      });
      assert.equal(value, { event: Buffer.from('event'), ok: true });
      assert.is(error, null);
      const [{ request, context }] = seen as [(typeof seen)[number]];
      assert.is(request.instanceId, 2n ** 62n + 1n);
      assert.equal(request.blockIds, [[1, 300, 70_000], []]);
      assert.equal([request.skipFirstTokens, request.key.tokens.count], [16, 3]);
      assert.equal(context.client, NEW_CLIENT);
      const pending = await tester.call('QUERY_PREFETCH_STATUS', { requestId: 'r' });
      assert.is(pending.value, null, 'still running');
    });
  });

  test('takes every golden request', async () => {
    await withGrpcHouse({}, async ({ client, door }) => {
      const tester = client();
      for (const { method, message } of requestVectors) {
        if (method.operation === 'SUBSCRIBE_KV_EVENTS') continue;
        await tester.callRaw(method.operation, message).catch((error: ServiceError) => {
          assert.is(error.code, STATUS.UNIMPLEMENTED, `${method.path}: ${error.details}`);
        });
      }
      const { bad_messages } = door.statistics();
      // Wrappers of memory that no kvd can use, which are told so.
      assert.equal(Object.keys(bad_messages as object), ['ERR_UNSUPPORTED']);
    });
  });

  test('says a failure in the type of the reply, and of a registration by a status', async () => {
    await withGrpcHouse({}, async ({ client }) => {
      const tester = client();
      for (const { operation } of METHODS) {
        const vector = requestVectors.find(({ method }) => method.operation === operation);
        if (!vector || /^(PING|NOOP|GET_CHUNK_SIZE|SUBSCRIBE_KV_EVENTS)$/.test(operation)) continue;
        const isRegistration = /REGISTER_(KV|Q|ROPE)/.test(operation) && !/UNREG/.test(operation);
        const call = tester.callRaw(operation, vector.message);
        if (isRegistration) {
          const [code, details] = await statusOf(call);
          assert.is(code, STATUS.UNIMPLEMENTED);
          assert.match(details, `NOT_ENABLED: ${operation} is not served here`);
        } else {
          const { error } = await call;
          assert.is(error?.error, 'NOT_ENABLED', operation);
        }
      }
      const { value } = await tester.call('STORE', retrieve());
      assert.equal(value, { event: Buffer.alloc(0), ok: false });
    });
  });

  test('maps the kinds of failure to status codes, and shows no stack', async () => {
    const failures = [
      [new KvdError('ERR_LAYOUT', 'no such layout'), STATUS.INVALID_ARGUMENT, 'BAD_REQUEST'],
      [new KvdError('ERR_OVERLOADED', 'full'), STATUS.RESOURCE_EXHAUSTED, 'OVERLOADED'],
      [new KvdError('ERR_SHUTTING_DOWN', 'bye'), STATUS.UNAVAILABLE, 'SHUTTING_DOWN'],
      [new TypeError('x is not a function'), STATUS.INTERNAL, 'INTERNAL'],
      [new WithheldReplyError('ERR_TIMEOUT', 'withheld'), STATUS.INTERNAL, 'INTERNAL'],
      // A text that is cut inside a character must not harm the library.
      [
        new KvdError('ERR_LAYOUT', '𝄞'.repeat(700).slice(1)),
        STATUS.INVALID_ARGUMENT,
        'BAD_REQUEST',
      ],
    ] as const;
    let next: Error = failures[0][0];
    const answers = {
      REGISTER_KV_CACHE_ENGINE_DRIVEN_CONTEXT: () => {
        throw next;
      },
    };
    await withGrpcHouse(answers, async ({ client }) => {
      const tester = client();
      for (const [error, code, word] of failures) {
        next = error;
        const call = tester.call('REGISTER_KV_CACHE_ENGINE_DRIVEN_CONTEXT', REGISTRATION);
        const [seenCode, details] = await statusOf(call);
        assert.is(seenCode, code);
        assert.ok(details.startsWith(`${word}: ${error.message.slice(0, 3).toWellFormed()}`));
        assert.not.ok(/\.ts:\d+/.test(details), details);
      }
      await ping(tester);
    });
  });

  test('refuses a message that cannot be read, and goes on', async () => {
    await withGrpcHouse({ LOOKUP: () => {} }, async ({ client, door, log }) => {
      const tester = client();
      const hostile = [
        Buffer.from('ffffffffffffffffffff01', 'hex'),
        Buffer.from('0affffffff7f', 'hex'),
        Buffer.from('0b', 'hex'),
        randomBytes(64).fill(0x80),
        Buffer.alloc(0),
      ];
      for (const message of hostile) {
        const { error } = await tester.callRaw('LOOKUP', message);
        assert.is(error?.error, 'BAD_REQUEST', message.toString('hex'));
      }
      const [code] = await statusOf(
        tester.callRaw('REGISTER_KV_CACHE', Buffer.from('ffff', 'hex')),
      );
      assert.is(code, STATUS.INVALID_ARGUMENT);
      await ping(tester);
      assert.equal(door.statistics()['bad_messages'], { ERR_WIRE_PAYLOAD: hostile.length + 1 });
      assert.ok(log.lines.some(({ message }) => message.includes('ERR_WIRE_PAYLOAD')));
    });
  });

  test('bounds the size of a message, for each operation and for all', async () => {
    const limits = { messageBytesMax: 8 << 20 };
    await withGrpcHouse(
      {},
      async ({ client }) => {
        const tester = client();
        const padded = Buffer.concat([Buffer.from('0a8080800a', 'hex'), Buffer.alloc(2 << 20)]);
        const small = await tester.callRaw('END_SESSION', padded.subarray(0, 2 << 20));
        assert.is(small.error?.error, 'OVERLOADED');
        const [code] = await statusOf(tester.callRaw('END_SESSION', Buffer.alloc(9 << 20)));
        assert.is(code, STATUS.RESOURCE_EXHAUSTED);
        await ping(tester);
      },
      { limits },
    );
  });

  test('reads inline data without a copy of its own', async () => {
    const seen: RequestOf<'COMMIT_STORE'>['data'][] = [];
    const answers = {
      COMMIT_STORE: ({ data }: RequestOf<'COMMIT_STORE'>) => {
        seen.push(data);
        return true;
      },
    };
    await withGrpcHouse(answers, async ({ client }) => {
      const tester = client();
      const { key } = lookup();
      const base = { key, instanceId: 1n };
      await tester.call('COMMIT_STORE', { ...base, data: { kind: 'none' } });
      const bytes = Buffer.alloc(3 << 20, 7);
      const tensor: HostTensor = {
        dtype: 'uint8',
        shape: [bytes.length],
        stride: [1],
        offsetBytes: 0,
        bytes,
      };
      await tester.call('COMMIT_STORE', { ...base, data: { kind: 'tensors', tensors: [tensor] } });
      assert.equal(seen[0], { kind: 'none' });
      const [, inline] = seen as [unknown, { kind: string; tensors: [{ bytes: Buffer }] }];
      assert.is(inline.kind, 'tensors');
      assert.is(Buffer.compare(inline.tensors[0].bytes, bytes), 0);
    });
  });

  test('sends inline data of several megabytes', async () => {
    const data = randomBytes(5 << 20);
    const answers = { PREPARE_RETRIEVE: () => ({ success: true, data, context: {} }) };
    await withGrpcHouse(answers, async ({ client }) => {
      const { value } = await client().call('PREPARE_RETRIEVE', {
        key: lookup().key,
        instanceId: 1n,
      });
      const reply = value as { success: boolean; data: Buffer };
      assert.is(Buffer.compare(reply.data, data), 0);
    });
  });
});
