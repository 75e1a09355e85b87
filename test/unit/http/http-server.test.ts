import net from 'node:net';
import * as assert from 'uvu/assert';
import { systemClock } from '../../../src/clock.ts';
import { HttpServer, type HttpServerOptions } from '../../../src/http/http-server.ts';
import { silentLogger } from '../../../src/observability/log.ts';
import { LogLevels } from '../../../src/observability/log-levels.ts';
import { FakeHttpBackend } from '../../support/fake-http-backend.ts';
import { rejects } from '../../support/rejects.ts';
import { suite } from '../../support/suite.ts';

const CLOSE_MS = 1000;

function recordWarnings() {
  const warnings: string[] = [];
  return { warnings, log: { ...silentLogger, warn: (text: string) => void warnings.push(text) } };
}

function bind(options: Partial<HttpServerOptions> = {}): Promise<HttpServer> {
  return HttpServer.bind({
    logLevels: new LogLevels({ root: 'info' }),
    ...{ host: '127.0.0.1', port: 0, prometheus: null, token: null },
    ...{ version: { version: '1', commit: '' }, log: silentLogger, clock: systemClock },
    ...options,
  });
}

/** A port that was free a moment ago. */
async function freePort(): Promise<number> {
  const server = net.createServer().listen(0, '127.0.0.1');
  await new Promise((resolve) => server.once('listening', resolve));
  const { port } = server.address() as net.AddressInfo;
  await new Promise((resolve) => server.close(resolve));
  return port;
}

suite('http server', (test) => {
  test('says starting until it serves, then healthy', async () => {
    const server = await bind();
    try {
      const starting = await fetch(`${server.url}/healthcheck`);
      assert.is(starting.status, 503);
      assert.is(((await starting.json()) as { status: string }).status, 'starting');
      server.serve(new FakeHttpBackend());
      assert.is((await fetch(`${server.url}/healthcheck`)).status, 200);
    } finally {
      await server.close(CLOSE_MS);
    }
  });

  test('a taken port fails with the flag and the address', async () => {
    const server = await bind();
    try {
      const text = `--http-port: 127.0.0.1:${server.port}: the port is in use`;
      const error = await rejects(bind({ port: server.port }), new RegExp(text));
      assert.is((error as { code?: string }).code, 'ERR_ADDRESS');
    } finally {
      await server.close(CLOSE_MS);
    }
  });

  test('the metrics port serves metrics; when taken it is a warning only', async () => {
    const port = await freePort();
    const prometheus = { host: '127.0.0.1', port };
    const first = await bind({ prometheus });
    first.serve(new FakeHttpBackend());
    const { warnings, log } = recordWarnings();
    const second = await bind({ prometheus, log });
    try {
      const response = await fetch(`http://127.0.0.1:${port}/metrics`);
      assert.match(await response.text(), /^x 1$/m);
      assert.match(warnings[0]!, /--prometheus-port: 127.0.0.1:\d+: the port is in use/);
      assert.is((await fetch(`${second.url}/`)).status, 200);
    } finally {
      await Promise.all([first.close(CLOSE_MS), second.close(CLOSE_MS)]);
    }
  });

  test('an address beyond this machine without a token is warned about', async () => {
    const { warnings, log } = recordWarnings();
    const open = await bind({ host: '0.0.0.0', log });
    const closed = await bind({ host: '0.0.0.0', log, token: 'correct-horse-battery' });
    await Promise.all([open.close(CLOSE_MS), closed.close(CLOSE_MS)]);
    assert.is(warnings.length, 1);
    assert.match(warnings[0]!, /--http-host 0\.0\.0\.0.*--http-token-file/);
  });

  test('IPv6 addresses work with and without brackets', async () => {
    for (const host of ['::1', '[::1]']) {
      const server = await bind({ host });
      try {
        assert.match(server.url, /^http:\/\/\[::1\]:\d+$/);
        assert.is((await fetch(`${server.url}/`)).status, 200);
      } finally {
        await server.close(CLOSE_MS);
      }
    }
  });

  test('closing waits for a running request', async () => {
    const server = await bind();
    const backend = new FakeHttpBackend();
    const gate = Promise.withResolvers<void>();
    const started = Promise.withResolvers<void>();
    backend.readiness = async () => {
      started.resolve();
      await gate.promise;
      return { state: 'ready', reasons: [] };
    };
    server.serve(backend);
    const answer = fetch(`${server.url}/readyz`);
    await started.promise;
    const closed = server.close(CLOSE_MS);
    gate.resolve();
    assert.is((await answer).status, 200);
    await closed;
  });

  test('closing cuts off a request that does not end', async () => {
    const server = await bind();
    const backend = new FakeHttpBackend();
    const started = Promise.withResolvers<void>();
    backend.readiness = () => {
      started.resolve();
      return new Promise(() => {});
    };
    server.serve(backend);
    const answer = fetch(`${server.url}/readyz`);
    await started.promise;
    const failed = rejects(answer, /fetch failed/);
    await server.close(20);
    await failed;
  });
});
