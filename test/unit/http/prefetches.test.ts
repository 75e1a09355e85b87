/** POST /cache/prefetches and GET /cache/prefetches/{id} (spec http 5.7) */
import * as assert from 'uvu/assert';
import { house, json } from '../../support/http-house.ts';
import { suite } from '../../support/suite.ts';

function prefetchHouse() {
  const { app, backend } = house();
  backend.layouts.add('test-model/1');
  const post = async (body: unknown) => {
    const response = await app.request('/cache/prefetches', {
      method: 'POST',
      headers: { 'content-type': 'application/json' },
      body: body === undefined ? null : JSON.stringify(body),
    });
    return [response.status, await json(response)] as const;
  };
  const detail = async (body: unknown) => {
    const [status, answer] = await post(body);
    return [status, answer['detail']];
  };
  return { app, backend, post, detail };
}

const PROMPT = { model_name: 'test-model', world_size: 1, token_ids: [1, 2, 3] };
const LONG = { ...PROMPT, token_ids: new Array<number>(600).fill(7) };

suite('http: warm prefetch', (test) => {
  test('a prompt of whole chunks becomes a job, a shorter one is nothing to do', async () => {
    const { backend, post } = prefetchHouse();
    assert.equal(await post(PROMPT), [202, { chunks: 0, status: 'noop' }]);
    assert.equal(await post({ ...LONG, cache_salt: 'a', extra: 1 }), [
      202,
      { request_id: 'p2', chunks: 2, status: 'submitted' },
    ]);
    const { token_ids: tokenIds } = LONG;
    const asked = { modelName: 'test-model', worldSize: 1, tokenIds, cacheSalt: 'a' };
    assert.equal(backend.prefetches[1], asked);
  });

  test('the answer to a job is pending, then its outcome, then unknown', async () => {
    const { app, backend } = prefetchHouse();
    const get = async () => json(await app.request('/cache/prefetches/p1'));
    backend.outcomes.set('p1', 'pending');
    assert.equal(await get(), { request_id: 'p1', status: 'pending' });
    backend.outcomes.set('p1', { foundKeyCount: 1, totalKeyCount: 2 });
    const completed = { status: 'completed', found_keys: 1, total_keys: 2 };
    assert.equal(await get(), { request_id: 'p1', ...completed });
    backend.outcomes.delete('p1');
    const reason = "unknown prefetch request_id='p1' (already completed or never submitted)";
    assert.is((await get())['detail'], reason);
  });

  test('refusals have the texts of the reference, in its order', async () => {
    const { backend, detail } = prefetchHouse();
    const missing = { type: 'missing', loc: ['body'], msg: 'Field required', input: null };
    assert.equal(await detail(undefined), [422, [missing]]);
    assert.equal(await detail({ ...PROMPT, source_tier: 'l1', model_name: 'm' }), [
      400,
      "unsupported prefetch direction 'l1'->'l1'; only 'l2'->'l1'",
    ]);
    assert.equal(await detail({ ...PROMPT, world_size: 2, cache_salt: 'a@b' }), [
      503,
      "no layout registered for model_name='test-model' world_size=2; " +
        'the model has not allocated KV cache on this node yet',
    ]);
    const salt = 'cache_salt: expected at most 128 characters, none of @ / \\ and NUL';
    assert.equal(await detail({ ...PROMPT, cache_salt: 'a@b' }), [400, salt]);
    assert.equal(await detail({ ...PROMPT, token_ids: [1, -2] }), [
      400,
      'token_ids[1]: expected 0 to 4294967295, got -2',
    ]);
    const [status, issues] = await detail({ token_ids: ['a'] });
    assert.is(status, 422);
    const locations = (issues as { loc: unknown }[]).map(({ loc }) => loc);
    assert.equal(locations, [
      ['body', 'model_name'],
      ['body', 'world_size'],
      ['body', 'token_ids', 0],
    ]);
    assert.equal(backend.prefetches, []);
  });
});
