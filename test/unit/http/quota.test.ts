/** /quota (spec http 6, 10.7; field lessons 3.4). */
import * as assert from 'uvu/assert';
import { KvdError } from '../../../src/errors.ts';
import { house, json } from '../../support/http-house.ts';
import { type Exchange, expectAnswer, send } from '../../support/http-vectors.ts';
import { suite } from '../../support/suite.ts';
import idle from '../../vectors/http/0.5.0-idle.json' with { type: 'json' };
import newer from '../../vectors/http/0.5.6-idle.json' with { type: 'json' };

/** Where kvd refuses what the reference takes: salts that no key can have, `true`, overflow. */
const REFUSED = [/a%40b/, /a%2Fb/, /has%20space/];
const isRefused = ({ request }: Exchange) =>
  REFUSED.some((path) => path.test(request.path)) ||
  (request.body as { limit_gb?: unknown } | undefined)?.limit_gb === true;

async function replay(exchanges: readonly Exchange[]): Promise<number> {
  const { app } = house();
  let count = 0;
  for (const exchange of exchanges) {
    const { method, path } = exchange.request;
    // A trailing slash is served here, and a list shows what was refused.
    if (!path.startsWith('/quota') || path === '/quota/' || ['HEAD', 'OPTIONS'].includes(method)) {
      continue;
    }
    const answer = await send(app, exchange);
    if (isRefused(exchange)) assert.is(answer.status, 400, path);
    else if (path !== '/quota' || method !== 'GET') await expectAnswer(answer, exchange);
    count += 1;
  }
  return count;
}

const put = (body: string, path = '/quota/carol') => {
  const { app, backend } = house();
  const answer = app.request(path, { method: 'PUT', body });
  return { backend, answer };
};

suite('http: quotas', (test) => {
  test('exchanges of the reference', async () => {
    assert.ok((await replay(idle.exchanges as unknown as Exchange[])) > 25);
    assert.ok((await replay(newer.exchanges as unknown as Exchange[])) > 25);
  });

  test('the list has registered salts in the order of their setting, with usage', async () => {
    const { app, backend } = house();
    const { quotas } = backend;
    quotas.limits
      .set('bob', 2 ** 30)
      .set('', 0)
      .set('alice', 2 ** 31);
    quotas.usage.set('alice', 2 ** 30).set('eve', 5 * 2 ** 30);
    const list = await json(await app.request('/quota'));
    assert.equal(list['users'], {
      bob: { limit_gb: 1, current_usage_gb: 0, current_l1_usage_gb: 0 },
      _default: { limit_gb: 0, current_usage_gb: 0, current_l1_usage_gb: 0 },
      alice: { limit_gb: 2, current_usage_gb: 1, current_l1_usage_gb: 0.5 },
    });
    assert.equal(Object.keys(list['users'] as object), ['bob', '_default', 'alice']);
    const all = await json(await app.request('/quota?include_unregistered=true'));
    const eve = { limit_gb: 0, current_usage_gb: 5, current_l1_usage_gb: 0, exists: false };
    assert.equal((all['users'] as Record<string, unknown>)['eve'], eve);
  });

  test('answers say when nothing enforces quotas, and the default limit', async () => {
    const { app, backend } = house();
    backend.quotas.isEffective = false;
    backend.quotas.defaultLimitBytes = 2 ** 29;
    for (const path of ['/quota', '/quota/x']) {
      const answer = await json(await app.request(path));
      assert.is(answer['effective'], false, path);
      assert.is(answer['default_limit_gb'], 0.5, path);
    }
    const body = '{"limit_gb":1}';
    const set = await json(await app.request('/quota/x', { method: 'PUT', body }));
    assert.is(set['effective'], false);
  });

  test('limits are whole bytes, and `_default` is the empty salt', async () => {
    const { backend, answer } = put('{"limit_gb": 0.2}', '/quota/_default');
    assert.is((await json(await answer))['limit_gb'], 0.2);
    assert.equal([...backend.quotas.limits], [['', Math.trunc(0.2 * 2 ** 30)]]);
  });

  test('what is no limit or no salt is refused, and nothing changes', async () => {
    const cases: [string, string | undefined, string][] = [
      ['{"limit_gb":1e400}', undefined, 'limit_gb must be finite'],
      ['{"limit_gb":-Infinity}', undefined, 'limit_gb must be finite'],
      ['{"limit_gb":"nan"}', undefined, 'limit_gb must be finite'],
      ['{"limit_gb":1e300}', undefined, 'limit_gb must be below 8388608'],
      ['{"limit_gb":true}', undefined, 'limit_gb must be numeric'],
      ['{"limit_gb":""}', undefined, 'limit_gb must be numeric'],
      ['{"limit_gb":"0x10"}', undefined, 'limit_gb must be numeric'],
      ['"limit_gb"', undefined, "body must be {'limit_gb': <float>}"],
      ['', undefined, 'invalid JSON body'],
      [
        '{"limit_gb":1}',
        `/quota/${'s'.repeat(129)}`,
        'cache_salt must have at most 128 characters (got 129)',
      ],
      [
        '{"limit_gb":1}',
        '/quota/a%00%5C',
        "cache_salt must not contain frozenset({'\\\\', '\\x00'}) (got 'a\0\\\\')",
      ],
    ];
    for (const [body, path, text] of cases) {
      const { backend, answer } = put(body, path);
      const response = await answer;
      assert.is(response.status, 400, body);
      assert.equal(await json(response), { detail: text, error: text });
      assert.is(backend.quotas.limits.size, 0);
    }
  });

  test('a quota that cannot be kept is 503 with the reason', async () => {
    const { app, backend } = house();
    backend.quotas.failure = new KvdError('ERR_QUOTA_FILE', 'no space left on device');
    const response = await app.request('/quota/a', { method: 'PUT', body: '{"limit_gb":1}' });
    assert.is(response.status, 503);
    assert.is((await json(response))['error'], 'no space left on device');
  });
});
