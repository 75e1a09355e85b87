import * as assert from 'uvu/assert';
import { createHttpApp } from '../../../src/http/app.ts';
import { isLoopback } from '../../../src/http/security.ts';
import { silentLogger } from '../../../src/observability/log.ts';
import { LogLevels } from '../../../src/observability/log-levels.ts';
import { FakeHttpBackend } from '../../support/fake-http-backend.ts';
import { suite } from '../../support/suite.ts';
import { VirtualClock } from '../../support/virtual-clock.ts';

const TOKEN = 'correct-horse-battery';

function house(token: string | null) {
  const backend = new FakeHttpBackend();
  const app = createHttpApp({
    logLevels: new LogLevels({ root: 'info' }),
    token,
    version: { version: '1', commit: '' },
    log: silentLogger,
    clock: new VirtualClock(),
    findBackend: () => backend,
  });
  return { app, backend };
}

const PROTECTED: [string, string][] = [
  ['GET', '/status'],
  ['GET', '/conf'],
  ['GET', '/config'],
  ['GET', '/kvcache/check'],
  ['POST', '/clear-cache'],
  ['POST', '/cache/clear'],
  ['DELETE', '/instances/1'],
  ['GET', '/loglevel'],
  ['POST', '/loglevel'],
];
const OPEN = ['/', '/healthcheck', '/readyz', '/version', '/lmc_version', '/commit_id', '/metrics'];

suite('http: bearer token', (test) => {
  for (const [method, path] of PROTECTED) {
    test(`${method} ${path} asks for it`, async () => {
      const { app, backend } = house(TOKEN);
      for (const authorization of ['', 'Bearer', 'Bearer wrong', `Basic ${TOKEN}`, TOKEN]) {
        const response = await app.request(path, { method, headers: { authorization } });
        assert.is(response.status, 401, authorization);
        assert.is(response.headers.get('www-authenticate'), 'Bearer');
        const body = await response.json();
        assert.equal(body, { detail: 'Unauthorized', error: 'Unauthorized' });
      }
      assert.equal(backend.clears, []);
      const headers = { authorization: `Bearer ${TOKEN}` };
      assert.is.not((await app.request(path, { method, headers })).status, 401);
    });
  }

  test('HEAD does not go around it', async () => {
    const response = await house(TOKEN).app.request('/status', { method: 'HEAD' });
    assert.is(response.status, 401);
  });

  test('probes, versions and metrics stay open', async () => {
    const { app } = house(TOKEN);
    for (const path of OPEN) assert.is((await app.request(path)).status, 200, path);
  });
});

suite('http: cross-site requests', (test) => {
  const clear = (headers: Record<string, string>) =>
    house(null).app.request('http://kvd:8080/clear-cache', {
      method: 'POST',
      headers: { host: 'kvd:8080', ...headers },
    });

  test('pages of other sites cannot change anything', async () => {
    const hostile = [
      { origin: 'http://evil.example' },
      { origin: 'http://kvd:9999' },
      { origin: 'null' },
      { 'sec-fetch-site': 'cross-site' },
    ];
    for (const headers of hostile) {
      const response = await clear(headers as Record<string, string>);
      assert.is(response.status, 403, JSON.stringify(headers));
      const body = (await response.json()) as Record<string, unknown>;
      assert.is(body['detail'], body['error']);
    }
  });

  test('tools and pages of the same host can', async () => {
    for (const headers of [{}, { origin: 'http://KVD:8080' }, { 'sec-fetch-site': 'none' }]) {
      const response = await clear(headers as Record<string, string>);
      assert.is(response.status, 200, JSON.stringify(headers));
    }
  });

  test('reading is not affected', async () => {
    const headers = { origin: 'http://evil.example' };
    assert.is((await house(null).app.request('/status', { headers })).status, 200);
  });
});

suite('http: loopback', (test) => {
  test('knows the names of this machine only', () => {
    for (const host of ['localhost', '127.0.0.1', '127.1.2.3', '::1', '[::1]']) {
      assert.ok(isLoopback(host), host);
    }
    for (const host of ['0.0.0.0', '*', '::', '10.0.0.1', '127.evil.example', '']) {
      assert.not.ok(isLoopback(host), host);
    }
  });
});
