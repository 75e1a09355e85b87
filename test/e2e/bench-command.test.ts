/** `kvd bench` as its users start it, against a server that is well and others that are not. */
import { type ChildProcess, spawn } from 'node:child_process';
import { once } from 'node:events';
import fs from 'node:fs';
import os from 'node:os';
import path from 'node:path';
import * as assert from 'uvu/assert';
import { expectCalm, scenario } from '../support/scenario.ts';
import type { ServerProcess } from '../support/server-process.ts';
import { suite } from '../support/suite.ts';
import { deadline, until } from '../support/waiting.ts';
import { type ReplyHook, WireProxy } from '../support/wire-proxy.ts';

const MAIN = path.resolve(import.meta.dirname, '../../src/cli/main.ts');
const BENCH_DEADLINE_MS = 20_000;

/** 2 layers of keys and values with pieces of 1 KiB: requests of four chunks have 16 KiB. */
const SMALL = ['--layers', '2', '--heads', '2', '--head-size', '16'];
const SHORT = ['--num-tokens', '64', '--lookup-seconds', '0'];
const LMCACHE_DRIVEN = ['--transfer-mode', 'lmcache_driven'];
const PIECE_BYTES = 16 * 2 * 16 * 2;
const REQUEST_BLOCKS = 4;

interface Ended {
  readonly code: number | null;
  readonly stdout: string;
  readonly stderr: string;
}

interface Bench {
  readonly child: ChildProcess;
  ended(): Promise<Ended>;
  /** Its segments in /dev/shm. */
  segments(): string[];
}

function startBench(url: string, args: readonly string[], shape = SMALL): Bench {
  const executable = process.env['KVD_E2E_EXECUTABLE'];
  const [file = '', ...rest] = executable ? [executable] : [process.execPath, MAIN];
  const words = ['bench', 'server', '--rpc-url', url, ...shape, ...SHORT, ...args];
  const child = spawn(file, [...rest, ...words]);
  let stdout = '';
  let stderr = '';
  child.stdout.on('data', (part) => {
    stdout += part;
  });
  child.stderr.on('data', (part) => {
    stderr += part;
  });
  const ended = once(child, 'close').then(([code]) => ({ code, stdout, stderr }) as Ended);
  const prefix = `lmcache_kv_${child.pid}_`;
  return {
    child,
    ended: () => deadline(ended, BENCH_DEADLINE_MS, 'kvd bench did not end'),
    segments: () => fs.readdirSync('/dev/shm').filter((name) => name.startsWith(prefix)),
  };
}

async function runBench(url: string, ...args: string[]): Promise<Ended> {
  return await endOf(startBench(url, args));
}

async function endOf(bench: Bench): Promise<Ended> {
  try {
    const ended = await bench.ended();
    assert.equal(bench.segments(), [], 'left in /dev/shm');
    return ended;
  } finally {
    bench.child.kill('SIGKILL');
  }
}

/** A bench whose replies pass through `hook`. */
async function runProxied(
  server: ServerProcess,
  watched: Parameters<typeof WireProxy.start>[1],
  hook: (name: string, bench: Bench) => void | Promise<void>,
  ...args: string[]
): Promise<Ended> {
  let bench: Bench | null = null;
  const onReply: ReplyHook = (name) => (bench ? hook(name, bench) : undefined);
  const proxy = await WireProxy.start(server.url, watched, onReply);
  try {
    bench = startBench(proxy.url, args);
    return await bench.ended();
  } finally {
    bench?.child.kill('SIGKILL');
    proxy.close();
  }
}

/** Changes one byte of the first layer's keys. */
function flipByte(bench: Bench, offset: number): void {
  flipByteOf(`/dev/shm/${bench.segments().sort()[0]}`, offset);
}

function flipByteOf(name: string, offset: number): void {
  const file = fs.openSync(name, 'r+');
  const byte = Buffer.alloc(1);
  fs.readSync(file, byte, 0, 1, offset);
  fs.writeSync(file, Buffer.of((byte[0] ?? 0) ^ 0x10), 0, 1, offset);
  fs.closeSync(file);
}

type Metrics = Record<string, Record<string, unknown>>;

function metricsOf({ stdout }: Ended): Metrics {
  const { title, metrics } = JSON.parse(stdout) as { title: string; metrics: Metrics };
  assert.is(title, 'Server Bench Result');
  return metrics;
}

suite('kvd bench', (test) => {
  test(
    'passes on a sound server and leaves nothing behind but the objects',
    scenario(async (s) => {
      const server = await s.serve();
      const ended = await runBench(
        server.url,
        ...[...LMCACHE_DRIVEN, '--requests', '6', '--clients', '3'],
        ...['--lookup-seconds', '0.1', '--url', server.httpUrl, '--format', 'json'],
      );
      assert.is(ended.code, 0, ended.stderr);
      assert.is(ended.stderr, '');
      const metrics = metricsOf(ended);
      assert.equal(metrics['config'], {
        rpc_url: server.url,
        mode: 'cpu',
        transfer_mode: 'lmcache_driven',
        transport: 'shared memory, copied by the server',
        kvcache_shape_spec: '(2,8,16,2,16):float16:2',
        num_tokens: 64,
        num_chunks: 4,
        request_bytes: 16 << 10,
        clients: 3,
        interval: 0,
      });
      assert.is(metrics['results']?.['total_requests'], 6);
      assert.is(metrics['results']?.['checksum_ok'], 6);
      assert.is(metrics['results']?.['pass_rate'], 100);
      for (const step of ['cold_lookup', 'cold_store', 'warm_lookup', 'warm_retrieve']) {
        assert.is(metrics[step]?.[`${step}_count`], 6, step);
      }
      assert.ok((metrics['throughput']?.['lookups_per_s'] as number) > 0);
      assert.is(metrics['server']?.['health'], 'OK');
      assert.is(metrics['server']?.['cached_objects'], 24);
      assert.equal((await server.status()).cache_context_meta, {});
      await expectCalm(server);
    }),
  );

  test(
    'prints a table for people, to a file if asked, and nothing with -q',
    scenario(async (s) => {
      const server = await s.serve();
      const table = await runBench(server.url, '--requests', '2');
      assert.is(table.code, 0, table.stderr);
      const lines = table.stdout.trimEnd().split('\n');
      assert.match(lines[0] ?? '', /^=+ Server Bench Result =+$/);
      assert.match(lines.at(-1) ?? '', /^=+$/);
      assert.match(table.stdout, /^Checksum OK: +2$/m);
      assert.match(table.stdout, /^-+ Warm Retrieve \(ms\) -+$/m);
      const folder = fs.mkdtempSync(path.join(os.tmpdir(), 'kvd-bench-'));
      try {
        const file = path.join(folder, 'report.json');
        const args = ['--requests', '2', '-q', '--format', 'json', '--output', file];
        assert.equal(await runBench(server.url, ...args), { code: 0, stdout: '', stderr: '' });
        const report = JSON.parse(fs.readFileSync(file, 'utf8'));
        assert.is(report.metrics.results.checksum_ok, 2);
      } finally {
        fs.rmSync(folder, { recursive: true });
      }
      await expectCalm(server);
    }),
  );

  test(
    'engine-driven workers write and read the memory of the server, or send the bytes',
    scenario(async (s) => {
      const transports: [string, RegExp][] = [
        ['auto', /^shared memory of the server, lmcache_l1_pool_\d+$/],
        ['', /^inline$/],
      ];
      for (const [shmName, expected] of transports) {
        const server = await s.serve(shmName === '' ? { '--shm-name': '' } : {});
        for (const shape of [SMALL, ['--kvcache-shape-spec', '(1,64,8,1,40):bfloat16:3']]) {
          const args = ['--requests', '4', '--clients', '2', '--format', 'json'];
          const ended = await endOf(startBench(server.url, args, shape));
          assert.is(ended.code, 0, ended.stderr);
          const metrics = metricsOf(ended);
          assert.is(metrics['config']?.['transfer_mode'], 'engine_driven');
          assert.match(metrics['config']?.['transport'] as string, expected);
          assert.is(metrics['results']?.['checksum_ok'], 4);
          for (const step of ['prepare_store', 'commit_store', 'prepare_retrieve']) {
            assert.is(metrics[step]?.[`${step}_count`], 4, step);
          }
        }
        await expectCalm(server, { objectSizeBytes: null });
      }
    }),
  );

  test(
    'a wrong byte in an engine-driven slot is found, too',
    scenario(async (s) => {
      const server = await s.serve();
      const { memory_shm_name: pool } = (await server.status()).storage_manager.l1_manager;
      const ended = await runProxied(
        server,
        ['COMMIT_STORE'],
        () => flipByteOf(`/dev/shm/${pool}`, 5 * PIECE_BYTES),
        ...['--transfer-mode', 'engine_driven', '--requests', '1'],
      );
      assert.is(ended.code, 1);
      // The slots of the first request: four pieces a chunk, keys of both layers first.
      assert.match(ended.stderr, /: loaded block differs: block 1 of the request, layer 1, keys\n/);
      await expectCalm(server);
    }),
  );

  test(
    'layers of different shapes and MLA are stored and loaded, too',
    scenario(async (s) => {
      const server = await s.serve();
      for (const spec of [
        '(2,64,16,2,16):float16:2;(2,64,16,4,8):float32:1',
        '(1,64,8,1,40):bfloat16:3',
      ]) {
        const args = [...LMCACHE_DRIVEN, '--requests', '2'];
        const shape = ['--kvcache-shape-spec', spec];
        const { code, stderr } = await endOf(startBench(server.url, args, shape));
        assert.is(code, 0, `${spec}: ${stderr}`);
      }
      await expectCalm(server, { objectSizeBytes: null });
    }),
  );

  test(
    'one wrong byte in a loaded block is found, named, and exit code 1',
    scenario(async (s) => {
      const server = await s.serve();
      let count = 0;
      const ended = await runProxied(
        server,
        ['RETRIEVE'],
        (_, bench) => {
          count += 1;
          // The last byte of the second of the blocks that were loaded.
          if (count === 2) flipByte(bench, (REQUEST_BLOCKS + 2) * PIECE_BYTES - 1);
        },
        ...[...LMCACHE_DRIVEN, '--requests', '3', '--format', 'json'],
      );
      assert.is(count, 3);
      assert.is(ended.code, 1);
      assert.match(ended.stderr, /^1 of 3 requests failed, first request 1: .*\n$/);
      assert.match(
        ended.stderr,
        /: loaded block differs: block \d of the request, layer 0, keys\n/,
      );
      const metrics = metricsOf(ended);
      assert.is(metrics['results']?.['checksum_ok'], 2);
      assert.is(metrics['results']?.['checksum_fail'], 1);
      assert.is((metrics['errors'] as unknown as unknown[]).length, 1);
      await expectCalm(server);
    }),
  );

  test(
    'a byte written into a block that was only to be read is found, too',
    scenario(async (s) => {
      const server = await s.serve();
      const ended = await runProxied(
        server,
        ['RETRIEVE'],
        (_, bench) => flipByte(bench, 0),
        ...[...LMCACHE_DRIVEN, '--requests', '1'],
      );
      assert.is(ended.code, 1);
      assert.match(ended.stderr, /source block was overwritten: block \d .*, layer 0, keys/);
      await expectCalm(server);
    }),
  );

  test(
    'a cache that loses what was stored fails the request and not the run',
    scenario(async (s) => {
      const server = await s.serve();
      let isFirst = true;
      const ended = await runProxied(
        server,
        ['STORE'],
        async () => {
          if (isFirst) await fetch(`${server.httpUrl}/clear-cache`, { method: 'POST' });
          isFirst = false;
        },
        ...[...LMCACHE_DRIVEN, '--requests', '2', '--format', 'json'],
      );
      assert.is(ended.code, 1);
      assert.match(ended.stderr, /^1 of 2 requests failed, first request 0: LOOKUP: expected 4 /);
      const { results } = metricsOf(ended);
      assert.equal([results?.['failed_requests'], results?.['checksum_ok']], [1, 1]);
      await expectCalm(server);
    }),
  );

  test(
    'Ctrl-C ends it within a moment with 130, the report so far, and an empty /dev/shm',
    scenario(async (s) => {
      const server = await s.serve();
      const args = ['--duration', '60', '--clients', '2', '--interval', '5'];
      const bench = startBench(server.url, [...LMCACHE_DRIVEN, ...args]);
      try {
        await until(() => bench.segments().length === 4, BENCH_DEADLINE_MS, 'segments');
        const isPausing = async () => {
          const { active_sessions, storage_manager } = await server.status();
          return storage_manager.l1_manager['total_object_count'] === 8 && active_sessions === 0;
        };
        await until(isPausing, BENCH_DEADLINE_MS, 'a request of both workers');
        bench.child.kill('SIGINT');
        const ended = await bench.ended();
        assert.is(ended.code, 130);
        assert.match(ended.stdout, /^Checksum OK: +2$/m);
        assert.equal(bench.segments(), []);
        await expectCalm(server);
      } finally {
        bench.child.kill('SIGKILL');
      }
    }),
  );

  test(
    'a server that dies meanwhile ends the run with 1 after one time limit',
    scenario(async (s) => {
      const server = await s.serve();
      const args = ['--duration', '60', '--interval', '0.05', '--timeout', '0.5'];
      const bench = startBench(server.url, [...LMCACHE_DRIVEN, ...args]);
      try {
        const isBusy = async () => Number((await server.l1())['total_object_count']) >= 4;
        await until(isBusy, BENCH_DEADLINE_MS, 'a store');
        await server.kill();
        const ended = await bench.ended();
        assert.is(ended.code, 1);
        assert.match(ended.stderr, /^1 of \d+ requests failed, .*no reply within 500 ms\n$/);
        assert.equal(bench.segments(), []);
      } finally {
        bench.child.kill('SIGKILL');
      }
    }),
  );

  test(
    'no server, a mode that it does not serve, and a prompt below one chunk',
    scenario(async (s) => {
      const server = await s.serve({ '--supported-transfer-mode': 'lmcache_driven' });
      const none = await runBench('tcp://127.0.0.1:9', '--timeout', '0.3');
      assert.is(none.code, 1);
      assert.match(none.stderr, /^No answer from tcp:\/\/127\.0\.0\.1:9: GET_CHUNK_SIZE: no reply/);
      const other = await runBench(server.url, '--transfer-mode', 'engine_driven');
      assert.is(other.code, 1);
      assert.match(other.stderr, /does not serve engine_driven transfers/);
      const tiny = await runBench(server.url, '--num-tokens', '15');
      assert.equal(
        [tiny.code, tiny.stdout, tiny.stderr],
        [2, '', 'kvd bench: error: expected at least one chunk of 16 tokens, got 15 tokens\n'],
      );
      await expectCalm(server);
    }),
  );
});
