/** L2 on a folder: bounds, tenants, restarts and changes (spec field-lessons 3, 6.3, 9.5, 14.6). */
import fs from 'node:fs';
import path from 'node:path';
import * as assert from 'uvu/assert';
import { layoutRecordKey } from '../../src/l2/layout-record.ts';
import { type FakeWorker, hitsOf, promptOf } from '../support/fake-worker.ts';
import { isFullRun, type Scenario, scenario } from '../support/scenario.ts';
import type { Flags, ServerProcess } from '../support/server-process.ts';
import { suite } from '../support/suite.ts';
import { passTime, until } from '../support/waiting.ts';

const OBJECT_BYTES = 4096;
const RECORD = layoutRecordKey({ modelName: 'm', kvRank: 0, objectGroupId: 0 });
const RECORD_HASH = Buffer.from(RECORD.chunkHash).toString('hex');
const GIB = 2 ** 30;

/** Folders of a scenario, gone at its end. */
function folderOf(s: Scenario): string {
  const folder = fs.mkdtempSync('/tmp/kvd-e2e-l2-');
  s.own({ close: () => fs.rmSync(folder, { recursive: true, force: true }) });
  return folder;
}

function fsAdapter(folder: string, rest: Readonly<Record<string, unknown>> = {}) {
  return { type: 'fs', base_path: folder, ...rest };
}

const flagsOf = (adapter: unknown, rest: Flags = {}): Flags => ({
  '--l2-adapter': JSON.stringify(adapter),
  ...rest,
});

/** Chunks, without what belongs to nobody: layout records, files that are being written. */
function objectFiles(folder: string): string[] {
  const names = fs.readdirSync(folder, { recursive: true }) as string[];
  return names.filter((name) => {
    const file = path.join(folder, name);
    if (name.includes(RECORD_HASH)) return false;
    return name.endsWith('.data') && (fs.statSync(file, { throwIfNoEntry: false })?.size ?? 0) > 0;
  });
}

function usedBytes(folder: string): number {
  return objectFiles(folder).reduce((sum, name) => {
    const stat = fs.statSync(path.join(folder, name), { throwIfNoEntry: false });
    return sum + (stat?.size ?? 0);
  }, 0);
}

async function ask(server: ServerProcess, method: string, route: string, body?: unknown) {
  const response = await fetch(`${server.httpUrl}${route}`, {
    method,
    headers: { 'content-type': 'application/json' },
    ...(body === undefined ? {} : { body: JSON.stringify(body) }),
  });
  return { status: response.status, body: (await response.json()) as Record<string, unknown> };
}

interface EvictionStatus {
  readonly total_bytes_used: number;
  readonly tracked_object_count: number;
  readonly is_scanning: boolean;
}

async function evictionStatus(server: ServerProcess): Promise<EvictionStatus> {
  const { body } = await ask(server, 'GET', '/status');
  const storage = body['storage_manager'] as Record<string, Record<string, unknown>>;
  const adapters = storage['l2_eviction_controller']?.['adapters'];
  return (adapters as EvictionStatus[])[0] as EvictionStatus;
}

/** Prompts of one chunk each. */
async function storeMany(worker: FakeWorker, first: number, count: number, cacheSalt = '') {
  for (let number = first; number < first + count; number += 1) {
    await worker.store(promptOf(number, 1), { cacheSalt, requestId: `s${cacheSalt}${number}` });
  }
}

const isolated = { eviction: { eviction_policy: 'IsolatedLRU' } };

suite('L2: tenants and quotas', (test) => {
  test(
    '3.2 after a restart quotas are there, and tenants without one keep what they have',
    scenario(async (s) => {
      const folder = folderOf(s);
      const quotaFile = path.join(folder, 'quotas.json');
      const flags = flagsOf(fsAdapter(path.join(folder, 'l2'), isolated), {
        '--quota-file': quotaFile,
      });
      const before = await s.serve(flags);
      const worker = await s.worker(before);
      for (const cacheSalt of ['a', 'b', '']) await storeMany(worker, 1, 3, cacheSalt);
      await until(() => objectFiles(folder).length >= 9, 5000, 'all chunks in L2');
      const fileCount = objectFiles(folder).length;
      await ask(before, 'PUT', '/quota/a', { limit_gb: 1 });
      await before.stop();
      const after = await s.serve(flags);
      await passTime(isFullRun ? 10_000 : 2500);
      assert.is(objectFiles(folder).length, fileCount);
      const { body } = await ask(after, 'GET', '/quota/a');
      assert.equal([body['limit_gb'], body['exists'], body['effective']], [1, true, true]);
      assert.is(body['current_usage_gb'], (3 * OBJECT_BYTES) / GIB);
    }),
    60_000,
  );

  test(
    '3.3 a limit bounds what a tenant has in all adapters together',
    scenario(async (s) => {
      const folder = folderOf(s);
      const [first, second] = [path.join(folder, '1'), path.join(folder, '2')];
      const server = await s.serve(
        flagsOf(fsAdapter(first, isolated), { '--enable-reconfigure-api': true }),
      );
      const added = await ask(server, 'POST', '/config/adapters', fsAdapter(second, isolated));
      assert.is(added.status, 201);
      await ask(server, 'PUT', '/quota/a', { limit_gb: (10 * OBJECT_BYTES) / GIB });
      const worker = await s.worker(server);
      await storeMany(worker, 1, 3, 'b');
      await storeMany(worker, 1, 6, 'a');
      const ofTenant = () =>
        [first, second].flatMap(objectFiles).filter((name) => name.includes('@a.data')).length;
      await until(async () => {
        const { body } = await ask(server, 'GET', '/quota/a');
        const objectCount = ((body['current_usage_gb'] as number) * GIB) / OBJECT_BYTES;
        return ofTenant() > 0 && ofTenant() <= 10 && objectCount <= 10;
      }, 5000);
      await passTime(1500);
      assert.ok(ofTenant() <= 10, `${ofTenant()} objects of the tenant`);
      const others = [first, second].flatMap(objectFiles).filter((name) => name.includes('@b.'));
      assert.is(others.length, 6);
    }),
    60_000,
  );
});

suite('L2: capacity', (test) => {
  const capacityBytes = 64 * OBJECT_BYTES;
  const bounded = {
    max_capacity_gb: capacityBytes / GIB,
    eviction: { eviction_policy: 'LRU' },
  };

  test(
    '9.5 a folder never has more than its capacity',
    scenario(async (s) => {
      const folder = folderOf(s);
      const server = await s.serve(flagsOf(fsAdapter(folder, bounded)));
      const worker = await s.worker(server);
      let most = 0;
      const watch = setInterval(() => {
        most = Math.max(most, usedBytes(folder));
      }, 5);
      await storeMany(worker, 1, 400);
      await until(async () => (await evictionStatus(server)).total_bytes_used > 0, 5000);
      await passTime(1500);
      clearInterval(watch);
      // Layout records are no objects.
      assert.ok(most <= capacityBytes + 2 * OBJECT_BYTES, `${most} bytes`);
      assert.ok(most > capacityBytes / 2, `only ${most} bytes were stored`);
      const { body } = await ask(server, 'GET', '/readyz');
      assert.is(body['status'], 'ready');
    }),
    60_000,
  );

  test(
    '6.3 after a restart usage and age are known: the oldest leave first',
    scenario(async (s) => {
      const folder = folderOf(s);
      const flags = flagsOf(fsAdapter(folder, bounded));
      const before = await s.serve(flags);
      const worker = await s.worker(before);
      for (let number = 1; number <= 40; number += 10) {
        await storeMany(worker, number, 10);
        const count = number + 9;
        await until(async () => (await evictionStatus(before)).tracked_object_count >= count, 5000);
        await passTime(50);
      }
      await before.stop();
      const after = await s.serve(flags);
      await until(async () => {
        const { total_bytes_used: used, is_scanning: isScanning } = await evictionStatus(after);
        return used === 40 * OBJECT_BYTES && !isScanning;
      }, 10_000);
      const next = await s.worker(after);
      await storeMany(next, 100, 20);
      await until(async () => (await evictionStatus(after)).tracked_object_count < 52, 5000);
      await ask(after, 'POST', '/cache/clear', { tier: 'l1', force: true });
      const client = s.connect(after);
      const hits = async (number: number) => hitsOf(client, promptOf(number, 1));
      assert.is(await hits(35), 1, 'a young one stays');
      const old = await Promise.all([1, 2, 3].map((number) => hits(number)));
      assert.ok(old.includes(0), 'an old one has left');
      assert.is(await hits(105), 1, 'what was stored last stays');
    }),
    60_000,
  );
});

suite('L2: what operators do', (test) => {
  test(
    '14.6 tiers are cleared one by one, objects are listed and deleted by key',
    scenario(async (s) => {
      const folder = folderOf(s);
      const server = await s.serve(flagsOf(fsAdapter(folder, { scan_on_start: true })));
      const worker = await s.worker(server);
      const client = s.connect(server);
      await storeMany(worker, 1, 5);
      await until(async () => {
        const { body } = await ask(server, 'GET', '/l2/keys?page_size=2');
        return (body['entries'] as unknown[]).length === 2 && body['next_page_token'] !== null;
      }, 5000);
      const listAll = async () => {
        const entries: { key: Record<string, unknown> }[] = [];
        let token: string | null = '';
        while (token !== null) {
          const query: string = `page_size=2&page_token=${encodeURIComponent(token)}`;
          const { body } = await ask(server, 'GET', `/cache/objects?${query}`);
          entries.push(...(body['entries'] as typeof entries));
          token = body['next_page_token'] as string | null;
        }
        return entries;
      };
      await until(async () => (await listAll()).length === 5, 5000, 'five objects are listed');
      const [entry] = await listAll();
      const options = { keys: [entry?.key], tier: 'all' };
      const { body: deleted } = await ask(server, 'DELETE', '/cache/objects', options);
      assert.equal([deleted['l1_deleted'], deleted['l2_deleted']], [1, 1]);
      const l1 = await ask(server, 'POST', '/cache/clear', { tier: 'l1' });
      assert.is((l1.body['tiers'] as { l1: Record<string, number> }).l1['removed_objects'], 4);
      const countHits = async () => {
        let hits = 0;
        for (let number = 1; number <= 5; number += 1)
          hits += await hitsOf(client, promptOf(number, 1));
        return hits;
      };
      assert.is(await countHits(), 4, 'L2 has the other four');
      const all = await ask(server, 'POST', '/cache/clear', { tier: 'all', force: true });
      const { l2 } = all.body['tiers'] as { l2: Record<string, number> };
      assert.is(l2['removed_objects'], 4);
      assert.is(await countHits(), 0);
      assert.is((await listAll()).length, 0);
    }),
    60_000,
  );

  test(
    'adapters come and go while the server runs',
    scenario(async (s) => {
      const folder = folderOf(s);
      const server = await s.serve({ '--enable-reconfigure-api': true });
      const worker = await s.worker(server);
      const client = s.connect(server);
      const none = await ask(server, 'GET', '/config/adapters');
      assert.equal(none.body, { adapters: [] });
      const bad = await ask(server, 'POST', '/config/adapters', { type: 'nope' });
      assert.is(bad.status, 400);
      const { status } = await ask(server, 'POST', '/config/adapters', fsAdapter(folder));
      assert.is(status, 201);
      await storeMany(worker, 1, 3);
      await until(() => objectFiles(folder).length >= 3, 5000);
      await ask(server, 'POST', '/cache/clear', { tier: 'l1', force: true });
      assert.is(await hitsOf(client, promptOf(1, 1)), 1);
      await ask(server, 'POST', '/cache/clear', { tier: 'l1', force: true });
      const removed = await ask(server, 'DELETE', '/config/adapters/0');
      assert.equal(removed.body, { id: 0, type_name: 'fs', status: 'removed' });
      assert.is(await hitsOf(client, promptOf(1, 1)), 0);
      await ask(server, 'POST', '/config/adapters', fsAdapter(folder));
      const { body } = await ask(server, 'GET', '/l2/adapters');
      const [again] = body['adapters'] as Record<string, unknown>[];
      assert.equal([again?.['index'], again?.['id']], [0, 1]);
      assert.is(await hitsOf(client, promptOf(1, 1)), 1);
      const limits = { eviction_trigger_watermark: 0.5 };
      assert.is((await ask(server, 'PATCH', '/config/l1', limits)).status, 200);
      const changed = (await ask(server, 'GET', '/status')).body;
      const storage = changed['storage_manager'] as Record<string, Record<string, unknown>>;
      assert.is(storage['l1_eviction_controller']?.['trigger_watermark'], 0.5);
    }),
    60_000,
  );
});
