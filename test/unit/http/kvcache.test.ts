/** GET /kvcache/check (spec http 5.8) */
import * as assert from 'uvu/assert';
import { house, json } from '../../support/http-house.ts';
import { suite } from '../../support/suite.ts';

suite('http: block checksums', (test) => {
  test('answers in the shape of the reference', async () => {
    const { app, backend } = house();
    backend.addTarget(0n, 2, 16);
    const response = await app.request('/kvcache/check?block_ids=0,%20[2,5],8&chunk_size=4');
    assert.is(
      await response.text(),
      '{"status":"success","chunk_size":4,"num_chunks":2,"chunk_checksums":["aa","bb"],' +
        '"layerwise":false,"block_id_ranges":[0,[2,5],8]}',
    );
    const request = { blockIds: [0, 2, 3, 4, 5, 8], chunkSizeBlocks: 4, isLayerwise: false };
    assert.equal(backend.checksumRequests, [request]);
  });

  test('layerwise answers per layer', async () => {
    const { app, backend } = house();
    backend.addTarget(7n, 2, 16);
    const query = 'block_ids=1&chunk_size=1&layerwise=TRUE&instance_id=7&block_size=16';
    const body = await json(await app.request(`/kvcache/check?${query}`));
    assert.equal(body['chunk_checksums'], { layer_0: ['aa'], layer_1: ['bb'] });
    assert.is(body['layerwise'], true);
  });

  test('the question of later releases gets the same answer', async () => {
    const { app, backend } = house();
    backend.addTarget(1000n, 2, 16);
    const ask = (body: unknown) =>
      app.request('/cache/checksums', {
        method: 'POST',
        headers: { 'content-type': 'application/json' },
        body: body === undefined ? null : JSON.stringify(body),
      });
    const question = { block_ids: [0, 1, 2, '3'], chunk_size: 2, instance_id: '1000' };
    assert.is(
      await (await ask(question)).text(),
      '{"status":"success","chunk_size":2,"num_chunks":2,"chunk_checksums":["aa","bb"],' +
        '"layerwise":false,"block_id_ranges":[[0,3]]}',
    );
    const perLayer = await json(await ask({ ...question, layerwise: true }));
    assert.equal(perLayer['chunk_checksums'], { layer_0: ['aa'], layer_1: ['bb'] });

    const refusal = async (body: unknown) => {
      const response = await ask(body);
      return [response.status, (await json(response))['detail']];
    };
    const missing = { type: 'missing', loc: ['body'], msg: 'Field required', input: null };
    assert.equal(await refusal(undefined), [422, [missing]]);
    assert.equal(await refusal({}), [404, 'instance_id 0 not registered']);
    assert.equal(await refusal({ ...question, block_ids: [] }), [400, 'block_ids is required']);
    assert.equal(await refusal({ ...question, chunk_size: 0 }), [
      400,
      'chunk_size must be positive',
    ]);
    assert.equal(await refusal({ block_ids: ['a'] }), [
      422,
      [
        {
          type: 'int_parsing',
          loc: ['body', 'block_ids', 0],
          msg: 'Input should be a valid integer, unable to parse string as an integer',
          input: 'a',
        },
      ],
    ]);
  });

  test('errors come in the order of the reference', async () => {
    const { app, backend } = house();
    const ask = async (query: string) => {
      const response = await app.request(`/kvcache/check?${query}`);
      const body = await json(response);
      assert.is(body['detail'], body['error']);
      return `${response.status} ${body['error']}`;
    };
    backend.target = 'not-enabled';
    assert.match(await ask(''), /^501 /);
    backend.target = 'unknown';
    assert.is(await ask('instance_id=7'), '404 instance_id 7 not registered');
    backend.addTarget(0n, 2, 8);
    assert.is(await ask('chunk_size=0'), '400 block_ids is required');
    assert.is(await ask('block_ids=abc'), '400 Invalid block_ids format');
    assert.is(await ask('block_ids=[5,2]&chunk_size=1'), '400 Invalid block_ids format');
    assert.is(await ask('block_ids=0'), '400 chunk_size must be positive');
    assert.is(await ask('block_ids=0&chunk_size=-1'), '400 chunk_size must be positive');
    assert.is(await ask('block_ids=-1&chunk_size=1'), '400 block id -1 is out of range (8 blocks)');
    assert.is(await ask('block_ids=8&chunk_size=1'), '400 block id 8 is out of range (8 blocks)');
    backend.addTarget(0n, 0, 8);
    assert.is(await ask('block_ids=0&chunk_size=1'), '404 kv_caches empty');
    backend.addTarget(0n, 2, null);
    assert.is(await ask('block_ids=0&chunk_size=1'), '501 the KV format has no block axis');
    assert.equal(backend.checksumRequests, []);
  });

  test('what one answer would cost is bounded, and the refusal names the bound', async () => {
    const { app, backend } = house();
    backend.addTarget(0n, 64, 1_000_000);
    const ask = async (query: string) => {
      const response = await app.request(`/kvcache/check?${query}`);
      return `${response.status} ${(await json(response))['error'] ?? 'accepted'}`;
    };
    const perBlock = 'chunk_size=1&layerwise=true';
    assert.is(
      await ask(`block_ids=[0,1024]&${perBlock}`),
      '400 1025 chunks of 64 layers are 65600 checksums, at most 65536: raise chunk_size',
    );
    assert.is(await ask(`block_ids=[0,1023]&${perBlock}`), '200 accepted');
    assert.is(
      await ask('block_ids=[0,16384]&chunk_size=1000000'),
      '400 16385 blocks of 64 layers are 1048640 reads, at most 1048576: ask for fewer blocks',
    );
    assert.is(await ask('block_ids=[0,16383]&chunk_size=1000000'), '200 accepted');
    assert.is(backend.checksumRequests.length, 2);
  });

  test('a checksum that takes long keeps no clear waiting', async () => {
    const { app, backend } = house();
    const gate = Promise.withResolvers<string[]>();
    backend.instances.add(0n);
    backend.target = { layerCount: 1, blockCount: 8, checksum: () => gate.promise };
    const checksum = app.request('/kvcache/check?block_ids=0&chunk_size=1');
    const clear = await app.request('/clear-cache', { method: 'POST' });
    assert.is(clear.status, 200);
    gate.resolve(['aa']);
    assert.is((await checksum).status, 200);
  });

  test('only one heavy operation runs at a time', async () => {
    const { app, backend } = house();
    let running = 0;
    let runningMax = 0;
    backend.instances.add(0n);
    backend.target = {
      layerCount: 1,
      blockCount: 8,
      checksum: async () => {
        running += 1;
        runningMax = Math.max(runningMax, running);
        await new Promise(setImmediate);
        running -= 1;
        return ['aa'];
      },
    };
    const path = '/kvcache/check?block_ids=0&chunk_size=1';
    const answers = await Promise.all([1, 2, 3].map(() => app.request(path)));
    assert.equal(
      answers.map(({ status }) => status),
      [200, 200, 200],
    );
    assert.is(runningMax, 1);
  });
});
