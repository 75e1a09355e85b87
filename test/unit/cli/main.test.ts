import { spawn, spawnSync } from 'node:child_process';
import http from 'node:http';
import type { AddressInfo } from 'node:net';
import path from 'node:path';
import * as assert from 'uvu/assert';
import { formatJson, formatTerminal } from '../../../src/cli/report.ts';
import { suite } from '../../support/suite.ts';
import live from '../../vectors/http/0.5.0-live-lmcache-driven.json' with { type: 'json' };

const MAIN = path.resolve(import.meta.dirname, '../../../src/cli/main.ts');

function kvd(args: readonly string[], environment: Record<string, string> = {}) {
  const { status, stdout, stderr } = spawnSync(process.execPath, [MAIN, ...args], {
    encoding: 'utf8',
    env: { PATH: process.env['PATH'], ...environment },
    timeout: 20_000,
  });
  return { status, stdout, stderr };
}

suite('kvd', (test) => {
  test('without a command prints the usage and exits 1', () => {
    const { status, stderr } = kvd([]);
    assert.is(status, 1);
    assert.match(stderr, /^usage: kvd <command>/);
  });

  test('an unknown command exits 2 and names it', () => {
    const { status, stderr } = kvd(['toString']);
    assert.is(status, 2);
    assert.match(stderr, /^kvd: error: unknown command 'toString'/);
  });

  test('version prints the version of package.json', () => {
    const { status, stdout } = kvd(['version']);
    assert.is(status, 0);
    assert.match(stdout, /^kvd \d+\.\d+\.\d+/);
    assert.is(kvd(['--version']).stdout, stdout);
  });
});

suite('kvd server', (test) => {
  test('every configuration problem is one line, exit code 2', () => {
    const { status, stdout, stderr } = kvd(['server', '--port', '70000', '--nope', '1']);
    assert.is(status, 2);
    assert.is(stdout, '');
    assert.equal(stderr.trimEnd().split('\n'), [
      'kvd server: error: --nope: unknown flag',
      "kvd server: error: --port: must be 1 to 65535, got '70000'",
      'kvd server: error: --l1-size-gb: required, for example --l1-size-gb 20',
      'kvd server: error: --eviction-policy: required, for example --eviction-policy LRU',
    ]);
  });

  test('--help exits 0 although required flags are missing', () => {
    const { status, stdout, stderr } = kvd(['server', '--help']);
    assert.is(status, 0);
    assert.is(stderr, '');
    assert.match(stdout, /^usage: kvd server/);
  });

  test('--check prints what is in effect and starts nothing', () => {
    const args = ['server', '--eviction-policy', 'noop', '--eviction-ratio', '0.3', '--check'];
    const { status, stdout, stderr } = kvd(args, { KVD_L1_SIZE_GB: '3' });
    assert.is(status, 0);
    assert.match(stdout, /^--l1-size-gb +3 +environment KVD_L1_SIZE_GB$/m);
    assert.match(stderr, /^kvd server: warning: --eviction-ratio has no effect/);
  });
});

suite('kvd ping', (test) => {
  test('an HTTP address and a bad timeout are usage errors', () => {
    assert.is(kvd(['ping', '--url', 'http://localhost:8080']).status, 2);
    const { status, stderr } = kvd(['ping', '--timeout', 'x']);
    assert.is(status, 2);
    assert.is(stderr, "--timeout: expected seconds above 0, got 'x'\n");
    assert.is(kvd(['ping', '--frmat', 'json']).status, 2);
  });
});

/** A server that answers `/status` with a recorded document. */
async function withStatus(
  code: number,
  body: unknown,
  run: (url: string) => Promise<void>,
): Promise<void> {
  const server = http.createServer((request, response) => {
    const isStatus = request.url === '/status';
    response.writeHead(isStatus ? code : 404).end(JSON.stringify(body));
  });
  server.listen(0, '127.0.0.1');
  await new Promise((resolve) => server.once('listening', resolve));
  try {
    await run(`127.0.0.1:${(server.address() as AddressInfo).port}`);
  } finally {
    server.closeAllConnections();
    server.close();
  }
}

/** The server of the test lives in this process, so the command must not block it. */
async function kvdBeside(args: readonly string[]) {
  const child = spawn(process.execPath, [MAIN, ...args]);
  let stdout = '';
  let stderr = '';
  child.stdout.on('data', (chunk) => {
    stdout += chunk;
  });
  child.stderr.on('data', (chunk) => {
    stderr += chunk;
  });
  const status = await new Promise<number | null>((resolve) => child.once('close', resolve));
  return { status, stdout, stderr };
}

const status = live.exchanges.find(({ request }) => request.path === '/status')!.response.json;

suite('kvd status', (test) => {
  test('prints only JSON with the keys of the reference', async () => {
    await withStatus(200, status, async (url) => {
      const result = await kvdBeside(['status', '--url', url, '--format', 'json']);
      assert.is(result.status, 0, result.stderr);
      const { metrics } = JSON.parse(result.stdout) as { metrics: Record<string, unknown> };
      assert.is(metrics['health'], 'OK');
      assert.is(metrics['url'], `http://${url}`);
      assert.is(metrics['l1_capacity_gb'], 0.5);
      assert.is(metrics['l1_used_gb'], '0.01 (1.4%)');
      assert.is(metrics['cached_objects'], 28);
      const [model] = metrics['models'] as Record<string, unknown>[];
      assert.is(model!['model_name'], 'test-model');
      assert.is((metrics['kernel_groups'] as unknown[]).length, 1);
      assert.is((metrics['l2_adapters'] as unknown[]).length, 3);
    });
  });

  test('is for people by default', async () => {
    await withStatus(200, status, async (url) => {
      const result = await kvdBeside(['status', '--url', url]);
      const lines = result.stdout.trimEnd().split('\n');
      assert.match(lines[0]!, /^=+ KV Cache Status =+$/);
      assert.match(result.stdout, /^Cached objects: +28$/m);
    });
  });

  test('output that a pipe cannot take at once arrives whole', async () => {
    const engineType = 'x'.repeat(4 * 1024 * 1024);
    await withStatus(200, { is_healthy: true, engine_type: engineType }, async (url) => {
      const result = await kvdBeside(['status', '--url', url, '--format', 'json']);
      assert.is(result.status, 0, result.stderr);
      const { metrics } = JSON.parse(result.stdout) as { metrics: Record<string, unknown> };
      assert.ok(metrics['engine_type'] === engineType);
    });
  });

  test('an unhealthy server, an error and no server all exit 1 and say which', async () => {
    await withStatus(200, { is_healthy: false }, async (url) => {
      const result = await kvdBeside(['status', '--url', url, '--format', 'json']);
      assert.is(result.status, 1);
      assert.match(result.stdout, /"health": "UNHEALTHY"/);
    });
    await withStatus(503, { error: 'engine not initialized' }, async (url) => {
      const result = await kvdBeside(['status', '--url', url]);
      assert.is(result.status, 1);
      assert.is(result.stderr, 'Server unhealthy: engine not initialized (HTTP 503)\n');
    });
    await withStatus(401, { detail: 'Unauthorized' }, async (url) => {
      const result = await kvdBeside(['status', '--url', url]);
      assert.is(result.stderr, 'Server error: Unauthorized (HTTP 401)\n');
    });
    const refused = kvd(['status', '--url', '127.0.0.1:9']);
    assert.is(refused.status, 1);
    assert.match(refused.stderr, /^Cannot connect to http:\/\/127\.0\.0\.1:9: .+\n$/);
  });
});

suite('report', (test) => {
  const report = {
    title: 'T',
    width: 20,
    rows: [
      { key: 'a', label: 'Label', value: 1.5 },
      { key: 'b', label: 'None', value: null },
    ],
    sections: [{ key: 's', title: 'S', entries: [[{ key: 'c', label: 'C', value: 2 }]] }],
  };

  test('terminal: centred titles, values right aligned, floats with two digits', () => {
    const lines = [
      '======== T =========',
      'Label:          1.50',
      'None:            N/A',
      '-------- S ---------',
      'C:                 2',
      '====================',
    ];
    assert.is(formatTerminal(report), `${lines.join('\n')}\n`);
  });

  test('json: title, metrics, sections as lists', () => {
    const expected = { title: 'T', metrics: { a: 1.5, b: null, s: [{ c: 2 }] } };
    assert.equal(JSON.parse(formatJson(report)), expected);
  });
});
