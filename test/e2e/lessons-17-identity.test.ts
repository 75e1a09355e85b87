/**
 * Tokens and identity (spec field-lessons 17, and 3.1 as far as it needs no L2). Whether the key
 * of a prompt is the same in every process shows in the root of the chain, which is logged, and in
 * the vectors of test/core/hash.test.ts; 17.2 is about L2.
 */
import * as assert from 'uvu/assert';
import { endSession, hitsOf, keyOf, lookup, promptOf } from '../support/fake-worker.ts';
import { expectCalm, scenario } from '../support/scenario.ts';
import type { ServerProcess } from '../support/server-process.ts';
import { suite } from '../support/suite.ts';

const BLAKE3_ROOT = '7e3eff9ef7613a50340eb12677ee03b83ac759fcba9bb32705f07248d56d473b';

function rootOf(server: ServerProcess): string | undefined {
  return /chunk hashes: \w+ root=([0-9a-f]+)/.exec(server.output)?.[1];
}

suite('lesson 17: tokens and identity', (test) => {
  test(
    '17.1 algorithm and root digest are logged at start and equal in every process',
    scenario(async (s) => {
      for (const _ of ['first', 'second']) {
        const server = await s.serve();
        assert.is(rootOf(server), BLAKE3_ROOT);
        await expectCalm(server);
      }
      const sha = { '--hash-algorithm': 'sha256_cbor' };
      const seeded = { env: { PYTHONHASHSEED: '0' } };
      const [one, two] = [await s.serve(sha, seeded), await s.serve(sha, seeded)];
      assert.is(rootOf(one), rootOf(two));
      assert.is(rootOf(one)?.length, 64);
      assert.is(one.linesWith(/WARNING.*PYTHONHASHSEED/).length, 0);
    }),
  );

  test(
    '17.1 without PYTHONHASHSEED sha256_cbor has a root of its own at each start, and says so',
    scenario(async (s) => {
      const sha = { '--hash-algorithm': 'sha256_cbor' };
      const [one, two] = [await s.serve(sha), await s.serve(sha)];
      assert.is.not(rootOf(one), rootOf(two));
      assert.is(one.linesWith(/WARNING.*PYTHONHASHSEED/).length, 1);
      const worker = await s.worker(one);
      await worker.store(promptOf(1, 4));
      assert.is(await hitsOf(s.connect(one), promptOf(1, 4)), 4);
      await expectCalm(one);
    }),
  );

  test(
    '17.3 nonsense ranges give 0 hits and no lock',
    scenario(async (s) => {
      const server = await s.serve();
      const client = s.connect(server);
      const worker = await s.worker(server);
      const prompt = promptOf(1, 4);
      await worker.store(prompt);
      const ranges = [
        { startToken: 32, endToken: 16 },
        { startToken: -16, endToken: 64 },
        { startToken: 0, endToken: 640 },
        { startToken: 0, endToken: -1 },
      ];
      for (const range of ranges) {
        assert.is(await lookup(client, prompt, range), 0, JSON.stringify(range));
        assert.is((await server.l1())['read_locked_count'], 0, JSON.stringify(range));
        assert.is((await worker.store(prompt, range)).ok, false, JSON.stringify(range));
      }
      assert.is(await lookup(client, prompt), 4);
      await endSession(client);
      await expectCalm(server);
    }),
  );

  test(
    '17.3 an unaligned end is no nonsense: it is floored to whole chunks',
    scenario(async (s) => {
      const server = await s.serve();
      const client = s.connect(server);
      const worker = await s.worker(server);
      const prompt = promptOf(1, 4);
      await worker.store(prompt);
      assert.is(await lookup(client, [...prompt, 1, 2, 3]), 4);
      const key = keyOf(prompt, { endToken: 40 });
      await client.call('FREE_LOOKUP_LOCKS', { key, tpSize: 1 }, 5000);
      assert.is((await server.l1())['read_locked_count'], 2);
      await endSession(client);
      await expectCalm(server);
    }),
  );

  test(
    '17.4 an empty list and one shorter than a chunk give 0, and the session stays usable',
    scenario(async (s) => {
      const server = await s.serve();
      const client = s.connect(server);
      const worker = await s.worker(server);
      const prompt = promptOf(1, 4);
      await worker.store(prompt);
      for (const tokens of [[], prompt.slice(0, 15)]) {
        assert.is(await lookup(client, tokens), 0);
        assert.is(await lookup(client, prompt), 4);
      }
      assert.is((await server.l1())['read_locked_count'], 4);
      assert.is(await lookup(client, []), 0);
      assert.is((await server.l1())['read_locked_count'], 0, 'the new lookup replaces the old');
      await endSession(client);
      await expectCalm(server);
    }),
  );

  test(
    '3.1 a salt is part of identity, and so are model, world size and rank',
    scenario(async (s) => {
      const server = await s.serve();
      const client = s.connect(server);
      const worker = await s.worker(server);
      const others = [
        { modelName: 'n', worldSize: 1 },
        { modelName: 'm', worldSize: 2 },
      ];
      for (const [i, other] of others.entries()) {
        await s.worker(server, { ...other, instanceId: BigInt(i) });
      }
      const prompt = promptOf(1, 4);
      await worker.store(prompt, { cacheSalt: 'A' });
      assert.is(await hitsOf(client, prompt, { cacheSalt: 'A' }), 4);
      assert.is(await hitsOf(client, prompt, { cacheSalt: 'B' }), 0);
      assert.is(await hitsOf(client, prompt), 0);
      for (const other of others) {
        assert.is(await hitsOf(client, prompt, { ...other, cacheSalt: 'A' }), 0);
      }
      await expectCalm(server);
    }),
  );

  test(
    '17 a reused request id never serves the chunks of the earlier prompt',
    scenario(async (s) => {
      const server = await s.serve();
      const client = s.connect(server);
      const worker = await s.worker(server);
      const [first, second] = [promptOf(1, 4), promptOf(2, 4)];
      worker.fill([0, 1, 2, 3], 1);
      worker.fill([4, 5, 6, 7], 2);
      const options = { requestId: '0' };
      await worker.store(first, { ...options, blockIds: [0, 1, 2, 3] });
      assert.is(await lookup(client, second, options), 0);
      await worker.store(second, { ...options, blockIds: [4, 5, 6, 7] });
      const target = [8, 9, 10, 11];
      await worker.retrieve(first, { ...options, blockIds: target });
      assert.equal(worker.read(target), worker.read([0, 1, 2, 3]));
      await worker.retrieve(second, { ...options, blockIds: target });
      assert.equal(worker.read(target), worker.read([4, 5, 6, 7]));
      await endSession(client, '0');
      await expectCalm(server);
    }),
  );
});
