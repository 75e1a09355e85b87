/** `resp` and `valkey` with real servers. */
import { spawnSync } from 'node:child_process';
import fs from 'node:fs/promises';
import os from 'node:os';
import path from 'node:path';
import { createClient, createCluster } from '@redis/client';
import * as assert from 'uvu/assert';
import { backendType as resp } from '../../src/l2/adapters/resp.ts';
import { backendType as valkey } from '../../src/l2/adapters/valkey.ts';
import type { L2BackendType } from '../../src/l2/backend.ts';
import { encodeWireKey } from '../../src/l2/key-text.ts';
import { type L2Store, l2BackendContract } from '../contract/l2-backend.ts';
import { freePorts } from '../support/free-ports.ts';
import { openBackend } from '../support/l2-context.ts';
import { l2Key, l2Value } from '../support/l2-objects.ts';
import {
  type L2Server,
  startRedis,
  startRedisCluster,
  startValkey,
} from '../support/l2-servers.ts';
import { suite } from '../support/suite.ts';

const never = new AbortController().signal;

/** One server for all tests of a suite; each test finds it empty. */
class Shared {
  readonly #start: () => Promise<L2Server>;
  #server: Promise<L2Server> | null = null;

  constructor(start: () => Promise<L2Server>) {
    this.#start = start;
    ENDED.push(async () => (await this.#server)?.stop());
  }

  get(): Promise<L2Server> {
    this.#server ??= this.#start();
    return this.#server;
  }
}

const ENDED: (() => Promise<void>)[] = [];
const redis = new Shared(() => startRedis());
const cluster = new Shared(startRedisCluster);
const valkeyServer = new Shared(startValkey);

async function makeStore(
  type: L2BackendType,
  server: L2Server,
  json: Record<string, unknown>,
): Promise<L2Store> {
  const client = createClient({ socket: { port: server.port, host: '127.0.0.1' } });
  await client.connect();
  await client.flushAll();
  const prefix = json['key_prefix'] === undefined ? '' : `${json['key_prefix']}@`;
  return {
    open: () => openBackend(type, json),
    plant: async (key, bytes) => {
      await client.set(prefix + encodeWireKey(key), Buffer.from(bytes));
    },
    dispose: () => client.close(),
  };
}

l2BackendContract({
  name: 'resp on Redis',
  isPersistent: true,
  isShared: true,
  makeStore: async () => {
    const server = await redis.get();
    return makeStore(resp, server, { host: '127.0.0.1', port: server.port, num_workers: 4 });
  },
});

l2BackendContract({
  name: 'valkey on Valkey, with a prefix',
  isPersistent: true,
  isShared: true,
  makeStore: async () => {
    const server = await valkeyServer.get();
    const startup_nodes = `127.0.0.1:${server.port}`;
    return makeStore(valkey, server, { startup_nodes, key_prefix: 'pre*fix', num_workers: 2 });
  },
});

l2BackendContract({
  name: 'resp on a Redis cluster',
  isPersistent: true,
  isShared: true,
  makeStore: async () => {
    const { port } = await cluster.get();
    const client = createCluster({ rootNodes: [{ socket: { port, host: '127.0.0.1' } }] });
    await client.connect();
    for (const node of client.masters) await (await client.nodeClient(node)).flushAll();
    const json = { host: '127.0.0.1', port, cluster_mode: true, num_workers: 2 };
    return {
      open: () => openBackend(resp, json),
      plant: async (key, bytes) => {
        await client.set(encodeWireKey(key), Buffer.from(bytes));
      },
      dispose: () => client.close(),
    };
  },
});

suite('resp with a real server', (test) => {
  test('a value expires when ttl_seconds says so', async () => {
    const { port } = await redis.get();
    const backend = await openBackend(resp, { host: '127.0.0.1', port, ttl_seconds: 1000 });
    const client = createClient({ socket: { port, host: '127.0.0.1' } });
    await client.connect();
    try {
      await backend.store([{ key: l2Key(1), bytes: l2Value(100, 1) }], never);
      const left = await client.ttl(encodeWireKey(l2Key(1)));
      assert.ok(left > 900 && left <= 1000, `${left} s`);
    } finally {
      await client.close();
      await backend.close();
    }
  });

  test('password and user are taken from the environment, and a wrong one is no hit', async () => {
    const server = await startRedis({ options: ['--requirepass', 'secret-word'] });
    const json = { host: '127.0.0.1', port: server.port, num_workers: 1 };
    const good = await openBackend(resp, json, { LMCACHE_RESP_PASSWORD: 'secret-word' });
    const bad = await openBackend(resp, { ...json, password: 'other' });
    try {
      const object = { key: l2Key(1), bytes: l2Value(100, 1) };
      assert.equal(await good.store([object], never), ['stored']);
      assert.equal(await good.lookup([l2Key(1)], never), [100]);
      assert.instance((await bad.lookup([l2Key(1)], never))[0], Error);
      assert.is(bad.status()['is_healthy'], false);
      assert.not.match(JSON.stringify([good.status(), bad.status()]), /secret-word|other/);
    } finally {
      await good.close();
      await bad.close();
      await server.stop();
    }
  });

  test('a server that is killed and comes back is used again', async () => {
    const first = await startRedis();
    const json = { host: '127.0.0.1', port: first.port, num_workers: 2 };
    const backend = await openBackend(resp, json);
    const object = { key: l2Key(1), bytes: l2Value(100, 1) };
    try {
      assert.equal(await backend.store([object], never), ['stored']);
      await first.stop();
      assert.instance((await backend.store([object], never))[0], Error);
      const second = await startRedis({ port: first.port });
      try {
        while (backend.status()['connections'] !== 2) await new Promise(setImmediate);
        assert.equal(await backend.store([object], never), ['stored']);
      } finally {
        await second.stop();
      }
    } finally {
      await backend.close();
    }
  });

  test('a full server refuses what does not fit and keeps answering', async () => {
    const server = await startRedis({ options: ['--maxmemory', '16mb'] });
    const backend = await openBackend(resp, {
      host: '127.0.0.1',
      port: server.port,
      num_workers: 1,
    });
    try {
      const objects = Array.from({ length: 32 }, (_, i) => ({
        key: l2Key(i),
        bytes: l2Value(1 << 20, i),
      }));
      const results = await backend.store(objects, never);
      assert.ok(results.some((result) => result === 'stored'));
      assert.ok(results.some((result) => result instanceof Error && /OOM/.test(result.message)));
      const sizes = await backend.lookup(
        objects.map(({ key }) => key),
        never,
      );
      assert.equal(
        sizes,
        results.map((result) => (result === 'stored' ? 1 << 20 : null)),
      );
    } finally {
      await backend.close();
      await server.stop();
    }
  });

  test('connections are encrypted, and an unknown authority is refused', async () => {
    const folder = await fs.mkdtemp(path.join(os.tmpdir(), 'kvd-tls-'));
    const [key, cert] = [path.join(folder, 'key.pem'), path.join(folder, 'cert.pem')];
    const request = ['req', '-x509', '-newkey', 'ec', '-pkeyopt', 'ec_paramgen_curve:P-256'];
    const names = ['-subj', '/CN=kvd-test', '-addext', 'subjectAltName=IP:127.0.0.1'];
    spawnSync('openssl', [...request, '-nodes', ...names, '-keyout', key, '-out', cert]);
    const [tlsPort] = (await freePorts(1)) as [number];
    const server = await startRedis({
      options: [
        ...['--tls-port', String(tlsPort), '--tls-auth-clients', 'no'],
        ...['--tls-cert-file', cert, '--tls-key-file', key, '--tls-ca-cert-file', cert],
      ],
    });
    const json = { host: '127.0.0.1', port: tlsPort, num_workers: 2, tls_enable: true };
    const trusting = await openBackend(resp, { ...json, tls_ca_file: cert });
    const distrusting = await openBackend(resp, json);
    try {
      const objects = [1, 2, 3].map((i) => ({ key: l2Key(i), bytes: l2Value(3 << 20, i) }));
      assert.equal(await trusting.store(objects, never), ['stored', 'stored', 'stored']);
      const targets = objects.map(({ key }) => ({ key, bytes: new Uint8Array(3 << 20) }));
      assert.equal(await trusting.load(targets, never), ['loaded', 'loaded', 'loaded']);
      assert.equal(targets, objects);
      assert.match(`${(await distrusting.lookup([l2Key(1)], never))[0]}`, /certificate/);
    } finally {
      await trusting.close();
      await distrusting.close();
      await server.stop();
      await fs.rm(folder, { recursive: true });
    }
  });

  test.after(async () => {
    for (const end of ENDED) await end();
  });
});
