import * as assert from 'uvu/assert';
import { KvdError } from '../../../src/errors.ts';
import {
  BODY_BYTES_MAX,
  CONCURRENT_REQUESTS_MAX,
  createHttpApp,
  createMetricsApp,
} from '../../../src/http/app.ts';
import { silentLogger } from '../../../src/observability/log.ts';
import { LogLevels } from '../../../src/observability/log-levels.ts';
import { house, json } from '../../support/http-house.ts';
import { type Exchange, expectAnswer, labelOf, send } from '../../support/http-vectors.ts';
import { RecordingLogger } from '../../support/recording-logger.ts';
import { suite } from '../../support/suite.ts';
import { VirtualClock } from '../../support/virtual-clock.ts';
import idle from '../../vectors/http/0.5.0-idle.json' with { type: 'json' };
import newer from '../../vectors/http/0.5.6-idle.json' with { type: 'json' };

/** Where we answer more than the reference (spec http 10.3). */
const DIFFERENT_METHODS = new Set(['HEAD', 'OPTIONS']);

/** The reference refuses these; here other tiers can be cleared (field lessons 14.6). */
const clearsL2 = (body: unknown) =>
  ['l2', 'all'].includes((body as { tier?: string } | undefined)?.tier ?? '');

function vectorTests(
  test: (title: string, body: () => Promise<void>) => void,
  release: string,
  exchanges: readonly Exchange[],
  path: RegExp,
): void {
  const chosen = exchanges.filter(
    ({ request }) =>
      path.test(request.path) && !DIFFERENT_METHODS.has(request.method) && !clearsL2(request.body),
  );
  assert.ok(chosen.length > 4, `${release}: only ${chosen.length} exchanges`);
  for (const [index, exchange] of chosen.entries()) {
    const label = `${release} #${index} ${labelOf(exchange)}`;
    test(label, async () => expectAnswer(await send(house().app, exchange), exchange));
  }
}

suite('http: exchanges of the reference', (test) => {
  const paths = /^\/($|nope|healthcheck$|clear-cache|kvcache\/check)/;
  vectorTests(test, '0.5.0', idle.exchanges as unknown as Exchange[], paths);
  const clear = /^\/(cache\/clear|healthcheck$|nope)/;
  vectorTests(test, '0.5.6', newer.exchanges as unknown as Exchange[], clear);
});

suite('http: probes', (test) => {
  test('before the engine is there probes say starting, and nothing else answers', async () => {
    const { early } = house();
    for (const path of ['/healthcheck', '/readyz']) {
      const response = await early.request(path);
      assert.is(response.status, 503);
      assert.is((await json(response))['status'], 'starting');
    }
    assert.is((await early.request('/')).status, 200);
    assert.is((await early.request('/version')).status, 200);
    for (const path of ['/status', '/metrics', '/conf', '/kvcache/check']) {
      const response = await early.request(path);
      assert.is(response.status, 503, path);
      assert.is((await json(response))['error'], 'engine not initialized');
    }
    assert.is((await early.request('/clear-cache', { method: 'POST' })).status, 503);
  });

  test('/healthcheck fails with the reason', async () => {
    const { app, backend } = house();
    backend.reason = 'the ZMQ loop has not turned for 31 s';
    const response = await app.request('/healthcheck');
    assert.is(response.status, 503);
    const body = await json(response);
    assert.is(body['status'], 'unhealthy');
    assert.is(body['reason'], backend.reason);
    assert.is(body['detail'], backend.reason);
  });

  test('/readyz tells ready, degraded and unready apart', async () => {
    const { app, backend } = house();
    assert.equal(await json(await app.request('/readyz')), { status: 'ready' });
    backend.ready = { state: 'degraded', reasons: ['L2 fs: read-only'] };
    const degraded = await app.request('/readyz');
    assert.is(degraded.status, 200);
    assert.equal(await json(degraded), { status: 'degraded', reasons: ['L2 fs: read-only'] });
    backend.ready = { state: 'unready', reasons: ['draining', 'no answer to PING'] };
    const unready = await app.request('/readyz');
    assert.is(unready.status, 503);
    assert.is((await json(unready))['reason'], 'draining; no answer to PING');
  });
});

suite('http: methods and paths', (test) => {
  test('HEAD answers like GET without a body', async () => {
    const response = await house().app.request('/healthcheck', { method: 'HEAD' });
    assert.is(response.status, 200);
    assert.is(await response.text(), '');
  });

  test('OPTIONS is 204 with all methods, 404 for an unknown path', async () => {
    const { app } = house();
    const response = await app.request('/status', { method: 'OPTIONS' });
    assert.is(response.status, 204);
    assert.is(response.headers.get('allow'), 'GET, HEAD, OPTIONS');
    assert.is((await app.request('/nope', { method: 'OPTIONS' })).status, 404);
  });

  test('a wrong method is 405 with the methods that work', async () => {
    const response = await house().app.request('/instances/7', { method: 'PUT' });
    assert.is(response.status, 405);
    assert.is(response.headers.get('allow'), 'DELETE, OPTIONS');
    const body = await json(response);
    assert.equal(body, { detail: 'Method Not Allowed', error: 'Method Not Allowed' });
  });

  test('a trailing slash is served, a double slash or other case is not found', async () => {
    const { app } = house();
    assert.is((await app.request('/status/')).status, 200);
    assert.is((await app.request('//status')).status, 404);
    assert.is((await app.request('/Status')).status, 404);
    const missing = await json(await app.request('/nope'));
    assert.equal(missing, { detail: 'Not Found', error: 'Not Found' });
  });

  test('scripts are never run', async () => {
    const response = await house().app.request('/run_script', { method: 'POST', body: 'x' });
    assert.is(response.status, 404);
  });
});

suite('http: state', (test) => {
  test('63-bit instance ids stay integers', async () => {
    const { app, backend } = house();
    backend.statusDocument = { registered_gpu_ids: [9_223_372_036_854_775_807n], text: 'é' };
    const text = await (await app.request('/status')).text();
    assert.is(text, '{"registered_gpu_ids":[9223372036854775807],"text":"é"}');
  });

  test('what is asked every few seconds is a detail of the log, the rest is not', async () => {
    const log = new RecordingLogger();
    const { backend } = house();
    const app = createHttpApp({
      logLevels: new LogLevels({ root: 'info' }),
      ...{ token: null, log, clock: new VirtualClock(), findBackend: () => backend },
      version: { version: '1.2.3', commit: 'abc' },
    });
    const levelOf = async (path: string, method = 'GET') => {
      await app.request(path, { method });
      const line = log.lines.at(-1);
      assert.is(line?.message, `${method} ${path}`);
      return line?.level;
    };
    for (const path of ['/', '/healthcheck', '/readyz', '/status', '/metrics']) {
      assert.is(await levelOf(path), 'debug', path);
    }
    assert.is(await levelOf('/config'), 'info');
    assert.is(await levelOf('/clear-cache', 'POST'), 'info');
  });

  test('versions are JSON strings, with NA for what is unknown', async () => {
    const { app } = house();
    assert.is(await (await app.request('/version')).text(), '"1.2.3-abc"');
    assert.is(await (await app.request('/lmc_version')).text(), '"1.2.3"');
    assert.is(await (await app.request('/commit_id')).text(), '"abc"');
    const bare = createHttpApp({
      logLevels: new LogLevels({ root: 'info' }),
      ...{ token: null, log: silentLogger, clock: new VirtualClock(), findBackend: () => null },
      version: { version: '1.2.3', commit: '' },
    });
    assert.is(await (await bare.request('/version')).text(), '"1.2.3-NA"');
    assert.is(await (await bare.request('/commit_id')).text(), '""');
  });

  test('/conf and /config are the same, indented by two', async () => {
    const { app } = house();
    const text = await (await app.request('/conf')).text();
    assert.is(text, '{\n  "mp": {\n    "port": 5555\n  }\n}');
    assert.is(await (await app.request('/config')).text(), text);
  });

  test('/metrics has the type that Accept asks for', async () => {
    const { app } = house();
    const plain = await app.request('/metrics');
    assert.is(plain.headers.get('content-type'), 'text/plain; charset=utf-8');
    const accept = 'application/openmetrics-text;version=1.0.0,text/plain;version=0.0.4;q=0.5';
    const asked = await app.request('/metrics', { headers: { accept } });
    assert.is(asked.headers.get('content-type'), 'text/plain; version=0.0.4; charset=utf-8');
  });

  test('the second listener has metrics on any path', async () => {
    const { backend } = house();
    const app = createMetricsApp({ findBackend: () => backend, log: silentLogger });
    assert.match(await (await app.request('/anything')).text(), /^x 1$/m);
  });

  test('DELETE /instances/{id} drops one worker', async () => {
    const { app, backend } = house();
    backend.instances.add(9_223_372_036_854_775_806n);
    const drop = (id: string) => app.request(`/instances/${id}`, { method: 'DELETE' });
    const dropped = await drop('9223372036854775806');
    assert.is(dropped.status, 200);
    assert.is(await dropped.text(), '{"instance_id":9223372036854775806,"dropped":true}');
    const again = await drop('9223372036854775806');
    assert.is(again.status, 404);
    const text = 'instance_id 9223372036854775806 not registered';
    assert.equal(await json(again), { detail: text, error: text });
    assert.is((await drop('x')).status, 422);
  });
});

suite('http: clear', (test) => {
  const post = (path: string, body?: unknown) => {
    const { app, backend } = house();
    const init = {
      method: 'POST',
      headers: { 'content-type': 'application/json' },
      ...(body === undefined ? {} : { body: JSON.stringify(body) }),
    };
    return { backend, response: app.request(path, init) };
  };
  const counts = { removed_objects: 3, deferred_objects: 1, freed_bytes: 4096 };

  test('/clear-cache forces and ignores its body', async () => {
    const { backend, response } = post('/clear-cache', { force: false });
    assert.equal(await json(await response), { status: 'ok', ...counts });
    assert.equal(backend.clears, [true]);
  });

  test('/cache/clear leaves what is in use unless told otherwise', async () => {
    const plain = post('/cache/clear', { tier: 'l1' });
    const tiers = { l1: counts };
    const expected = { status: 'ok', cleared: { tier: 'l1' }, ...counts, tiers };
    assert.equal(await json(await plain.response), expected);
    assert.equal(plain.backend.clears, [false]);
    const forced = post('/cache/clear', { force: 'yes' });
    await forced.response;
    assert.equal(forced.backend.clears, [true]);
  });

  test('a body that is not JSON is refused and clears nothing', async () => {
    const { app, backend } = house();
    const text = await app.request('/cache/clear', { method: 'POST', body: '{"tier":"l1"}' });
    assert.is(text.status, 422);
    const [issue] = (await json(text))['detail'] as { type: string; loc: unknown }[];
    assert.is(issue!.type, 'dataclass_type');
    const headers = { 'content-type': 'application/json' };
    const broken = await app.request('/cache/clear', { method: 'POST', headers, body: '{' });
    assert.is(((await json(broken))['detail'] as { type: string }[])[0]!.type, 'json_invalid');
    assert.equal(backend.clears, []);
  });
});

suite('http: failures and limits', (test) => {
  test('an unexpected error is 500 JSON with a request id and no stack', async () => {
    const { app, backend } = house();
    backend.failure = new Error('secret inner state');
    const response = await app.request('/status');
    assert.is(response.status, 500);
    const body = await json(response);
    assert.is(body['detail'], 'Internal Server Error');
    assert.match(String(body['request_id']), /^[0-9a-f-]{36}$/);
    assert.not.match(JSON.stringify(body), 'secret');
  });

  test('a typed error keeps its status and text', async () => {
    const { app, backend } = house();
    backend.failure = new KvdError('ERR_SHUTTING_DOWN', 'the server is shutting down');
    const response = await app.request('/status');
    assert.is(response.status, 503);
    assert.is((await json(response))['error'], 'the server is shutting down');
  });

  test('a body above the limit is 413', async () => {
    const headers = { 'content-length': String(BODY_BYTES_MAX + 1) };
    const init = { method: 'POST', headers, body: 'x' };
    assert.is((await house().app.request('/clear-cache', init)).status, 413);
  });

  test('requests beyond the limit are refused at once, and the place is given back', async () => {
    const { app, backend } = house();
    const gate = Promise.withResolvers<void>();
    backend.readiness = async () => {
      await gate.promise;
      return { state: 'ready', reasons: [] };
    };
    const waiting = Array.from({ length: CONCURRENT_REQUESTS_MAX }, () => app.request('/readyz'));
    assert.is((await app.request('/status')).status, 503);
    gate.resolve();
    await Promise.all(waiting);
    assert.is((await app.request('/status')).status, 200);
  });
});
