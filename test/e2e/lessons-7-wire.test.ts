/** Wire and versions (spec field-lessons 7). */
import fs from 'node:fs';
import * as assert from 'uvu/assert';
import { tokenSpan } from '../../src/client/client.ts';
import type { OperationName } from '../../src/engine/api.ts';
import { dialectNamed } from '../../src/wire/dialect.ts';
import { MsgpackWriter } from '../../src/wire/msgpack.ts';
import { callA, idA } from '../support/calls.ts';
import { endSession, hitsOf, keyOf, lookup, promptOf } from '../support/fake-worker.ts';
import { rejects } from '../support/rejects.ts';
import { expectAnswers, expectCalm, isFullRun, scenario } from '../support/scenario.ts';
import { seededRandom } from '../support/seeded-random.ts';
import { suite } from '../support/suite.ts';
import { timed, until } from '../support/waiting.ts';
import { frameBytes, wireVectors } from '../support/wire-vectors.ts';

const ANSWER_MS = 100;

function msgpackText(text: string): Uint8Array {
  const writer = new MsgpackWriter();
  writer.writeText(text);
  return writer.take();
}

const opFrame = (name: OperationName) => Buffer.of(idA(name));
const sum = (counts: Readonly<Record<string, number>>) =>
  Object.values(counts).reduce((total, count) => total + count, 0);

suite('lesson 7: wire and versions', (test) => {
  test(
    '7.1 no malformed message stops the loop; each is counted by reason, few are logged',
    scenario(async (s) => {
      const server = await s.serve();
      const hostile = s.connect(server);
      const uid = Buffer.of(1);
      await hostile.send([uid]);
      await hostile.send([uid, Buffer.of(0xcc, 250)]);
      await hostile.send([uid, msgpackText('lookup')]);
      await hostile.send([uid, msgpackText('look it up')]);
      // Control of a stream that is not there is no mistake: acks and ends pass each other.
      await hostile.send([Buffer.alloc(0), Buffer.alloc(0), uid]);
      const named = async () => sum((await server.status()).wire.bad_messages) === 4;
      await until(named, 5000, 'four bad messages counted');
      await expectAnswers(server);

      const random = seededRandom(7);
      const count = 10_000;
      for (let i = 0; i < count; i += 1) {
        const frames = Array.from({ length: 1 + random(8) }, () =>
          Buffer.from(Array.from({ length: random(40) }, () => random(256))),
        );
        // Half of them name an operation, so that the payload readers have their share.
        if (frames.length > 1 && i % 2 === 0) frames[1] = Buffer.of(1 + random(34));
        await hostile.send(frames);
      }
      const { wire } = await server.status();
      const received = async () =>
        ((await server.status()).wire['messages_received'] as number) >= count;
      await until(received, 20_000);
      await expectAnswers(server);
      assert.ok(Object.keys(wire.bad_messages).length >= 3, JSON.stringify(wire.bad_messages));
      const bad = await server.metric('kvd_bad_messages_total{reason="ERR_WIRE_FRAME_COUNT"}');
      assert.ok(bad > 1000, `${bad}`);
      const lineCount = server.linesWith(/refused/).length;
      assert.ok(lineCount < 200, `${lineCount} lines for ${count} messages`);
      await expectCalm(server);
    }),
  );

  test(
    '7.2 a version mismatch is one clear line per reason and a counter',
    scenario(async (s) => {
      const server = await s.serve();
      const old = s.connect(server);
      // The first message of every engine, by which its generation is known.
      await old.call('GET_CHUNK_SIZE', {}, 5000);
      const payloads = callA('LOOKUP').encodeRequest({ key: keyOf(promptOf(1, 1)), tpSize: 1 });
      const mismatches: { frames: readonly Uint8Array[]; line: RegExp }[] = [
        { frames: [Buffer.of(0x7f)], line: /operation 127 is not known in dialect A/ },
        {
          frames: [opFrame('LOOKUP'), ...payloads, Buffer.of(0xc0)],
          line: /LOOKUP .*expected 2 payload frames, got 3/,
        },
        {
          frames: [opFrame('STORE'), ...payloads.slice(0, 1)],
          line: /STORE .*expected 4 payload frames, got 1/,
        },
      ];
      for (const { frames, line } of mismatches) {
        for (let i = 0; i < 20; i += 1) await old.exchange([old.nextUid(), ...frames], 5000);
        assert.is(server.linesWith(line).length, 1, server.output);
      }
      const { bad_messages } = (await server.status()).wire;
      assert.equal(bad_messages, { ERR_WIRE_OPERATION: 20, ERR_WIRE_FRAME_COUNT: 40 });
      for (const [reason, count] of Object.entries(bad_messages)) {
        assert.is(await server.metric(`kvd_bad_messages_total{reason="${reason}"}`), count);
      }
      await expectCalm(server);
    }),
  );

  test(
    '7.3 every failed request is answered at once by the negative value of its type',
    scenario(async (s) => {
      const server = await s.serve();
      const client = s.connect(server);
      const worker = await s.worker(server);
      const prompt = promptOf(1, 1);
      const expectRefusal = async (
        what: string,
        call: () => Promise<{ value: unknown; error: { error: string } | null }>,
        code = 'BAD_REQUEST',
      ) => {
        const { result, ms } = await timed(call);
        assert.ok(ms < ANSWER_MS, `${what} took ${ms} ms`);
        assert.is(result.error?.error, code, what);
        const { value } = result;
        if (value !== null && typeof value === 'object' && 'ok' in value)
          assert.is(value.ok, false);
      };
      const salt = { cacheSalt: 'a@b' };
      await expectRefusal('salt', () => worker.tryStore(prompt, salt));
      await expectRefusal('salt', () =>
        client.call('LOOKUP', { key: keyOf(prompt, salt), tpSize: 1 }, 5000),
      );
      for (const token of [2 ** 40, -5]) {
        const tokens = [token, ...prompt.slice(1)];
        await expectRefusal(`token ${token}`, () => worker.tryStore(tokens));
        await expectRefusal(`token ${token}`, () =>
          client.call('LOOKUP', { key: keyOf(tokens), tpSize: 1 }, 5000),
        );
        const { value } = await client.call(
          'QUERY_PREFETCH_STATUS',
          { requestId: 'request' },
          5000,
        );
        assert.is(value, 0);
      }
      for (const blockIds of [[99], [-1]]) {
        await expectRefusal(`block ${blockIds}`, () => worker.tryStore(prompt, { blockIds }));
      }
      await expectRefusal('unaligned', () => worker.tryStore(promptOf(1, 1).slice(0, 15)));
      const stranger = s.newWorker(server, { instanceId: 5n, engineType: 'sglang' });
      const unknown = 'UNKNOWN_INSTANCE';
      await expectRefusal('unknown instance', () => stranger.tryStore(prompt), unknown);
      await expectRefusal('unknown instance', () => stranger.tryRetrieve(prompt), unknown);
      const { result, ms } = await timed(() =>
        client.exchange([client.nextUid(), opFrame('STORE')], 5000),
      );
      assert.ok(ms < ANSWER_MS, `missing payloads took ${ms} ms`);
      assert.is(result.length, 4, 'uid, op, neutral, error');
      assert.is((await server.l1())['total_object_count'], 0);
      await expectCalm(server);
    }),
  );

  for (const mode of ['strict', 'not strict'] as const) {
    test(
      `7.4 a retrieve that misses one chunk changes no byte of the engine (${mode})`,
      scenario(async (s) => {
        const server = await s.serve(mode === 'strict' ? {} : { '--no-strict-retrieve': true });
        const client = s.connect(server);
        const worker = await s.worker(server);
        const prompt = promptOf(1, 4);
        worker.fill([0, 1, 2, 3], 1);
        await worker.store(prompt);
        assert.is(await lookup(client, prompt), 4);
        await client.call('CLEAR', { isForced: true }, 5000);
        const cut = (startToken: number, endToken: number) =>
          worker.store(prompt, { startToken, endToken });
        await cut(0, 32);
        await cut(48, 64);
        worker.fillAll(0xaa);
        const retrieve = worker.tryRetrieve(prompt, { deadlineMs: 500 });
        if (mode === 'strict') {
          await rejects(retrieve, /no reply/);
          assert.is(await worker.ping(), false);
          assert.is(await worker.ping(), true);
        } else {
          assert.is((await retrieve).value?.ok, false);
        }
        const blocks = Array.from({ length: worker.geometry.blockCount }, (_, i) => i);
        const bytes = worker.read(blocks);
        assert.ok(bytes.equals(Buffer.alloc(bytes.length, 0xaa)), 'all bytes still 0xAA');
        await endSession(client);
        assert.is(await hitsOf(client, prompt), 2);
        await expectCalm(server);
      }),
    );
  }

  test(
    'every operation gets exactly one reply, also with payloads of a wrong kind',
    scenario(async (s) => {
      const server = await s.serve();
      const client = s.connect(server);
      await client.call('GET_CHUNK_SIZE', {}, 5000);
      const strays: unknown[] = [];
      client.onStrayReply((reply) => strays.push(reply));
      // A failed registration is answered by silence, because any reply means success, and so is a
      // read that nobody knows the worker of, because an old vLLM worker would take it for one.
      const silent = new Set([
        'RETRIEVE',
        'PREPARE_RETRIEVE',
        'REGISTER_KV_CACHE',
        'REGISTER_KV_CACHE_ENGINE_DRIVEN_CONTEXT',
        'CB_REGISTER_KV_CACHE',
        'CB_REGISTER_ROPE_V3',
      ]);
      const rounds = isFullRun ? 20 : 2;
      for (let round = 0; round < rounds; round += 1) {
        for (const [name, { payloadCountMax }] of dialectNamed('A').callsByName) {
          if (silent.has(name)) continue;
          const payloads = Array.from({ length: payloadCountMax }, () => Buffer.of(0xc1));
          const frames = [client.nextUid(), opFrame(name), ...payloads];
          const reply = await client.exchange(frames, 5000);
          // uid, op, neutral value, error map; without payloads there is nothing to refuse.
          if (payloadCountMax > 0) assert.is(reply.length, 4, name);
        }
      }
      await client.call('PING', { instanceId: null }, 5000);
      assert.equal(strays, []);
      await expectCalm(server);
    }),
  );

  test(
    'a RETRIEVE that cannot be read is answered like any that failed: silence, one false PING',
    scenario(async (s) => {
      const server = await s.serve();
      const worker = await s.worker(server);
      const strays: unknown[] = [];
      worker.client.onStrayReply((reply) => strays.push(reply));
      assert.is(await worker.ping(), true);
      const [, id] = callA('COMMIT_RETRIEVE').encodeRequest({
        key: keyOf(promptOf(1, 1)),
        instanceId: worker.instanceId,
      });
      const bad = Buffer.of(0xc1);
      const frames = [opFrame('RETRIEVE'), bad, id as Uint8Array, bad, bad, bad];
      await worker.client.send([worker.client.nextUid(), ...frames]);
      assert.equal([await worker.ping(), await worker.ping()], [false, true]);
      assert.equal(strays, []);
      assert.is((await server.status()).wire.replies_withheld['RETRIEVE'], 1);
      assert.is(server.linesWith(/RETRIEVE of client .* refused without an answer/).length, 1);
      await expectCalm(server);
    }),
  );

  test(
    '14.1 hostile pickles in a registration run nothing, map nothing and are answered by silence',
    scenario(async (s) => {
      const server = await s.serve();
      const client = s.connect(server);
      const strays: unknown[] = [];
      client.onStrayReply((reply) => strays.push(reply));
      const worker = s.newWorker(server);
      const payloads = callA('REGISTER_KV_CACHE').encodeRequest({
        instanceId: worker.instanceId,
        wrappers: [],
        modelName: 'm',
        worldSize: 1,
        engineType: 'vllm',
        layoutHints: {},
        engineGroupInfos: [],
      });
      for (const { hex } of wireVectors.hostile_pickles) {
        const writer = new MsgpackWriter();
        writer.writeArrayHeader(1);
        writer.writeExtension(1, frameBytes(hex));
        payloads[1] = writer.take();
        await client.send([client.nextUid(), opFrame('REGISTER_KV_CACHE'), ...payloads]);
      }
      const withheld = async () =>
        (await server.status()).wire.replies_withheld['REGISTER_KV_CACHE'] ===
        wireVectors.hostile_pickles.length;
      await until(withheld, 5000, 'all registrations have failed');
      assert.equal(strays, []);
      const status = await server.status();
      assert.equal(status.cache_context_meta, {});
      assert.is(fs.existsSync('pwned_by_pickle'), false);
      assert.equal(server.mappedSegments('lmcache_kv_'), []);
      await expectCalm(server);
    }),
  );

  test(
    'a prompt of more tokens than the bound is refused, and the next client served',
    scenario(async (s) => {
      const server = await s.serve();
      const client = s.connect(server);
      const worker = await s.worker(server);
      const tokens = tokenSpan(new Array<number>(1_048_577).fill(1));
      const key = { ...keyOf(promptOf(1, 1)), tokens };
      const { error } = await client.call('LOOKUP', { key, tpSize: 1 }, 5000);
      assert.is(error?.error, 'BAD_REQUEST');
      await worker.store(promptOf(1, 1));
      assert.is(await hitsOf(client, promptOf(1, 1)), 1);
      await expectCalm(server);
    }),
  );
});
