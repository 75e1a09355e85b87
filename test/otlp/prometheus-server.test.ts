/**
 * A real Prometheus scrapes a server: its parser takes the whole answer, and its queries find what
 * was counted. Debian's build, as `.ci/setup prometheus` unpacks it; left out where that fails, for
 * want of Debian or of the network.
 */
import { type ChildProcess, spawn, spawnSync } from 'node:child_process';
import { once } from 'node:events';
import fs from 'node:fs';
import os from 'node:os';
import path from 'node:path';
import * as assert from 'uvu/assert';
import { FakeWorker, promptOf } from '../support/fake-worker.ts';
import { freePorts } from '../support/free-ports.ts';
import { ServerProcess } from '../support/server-process.ts';
import { suite } from '../support/suite.ts';
import { until } from '../support/waiting.ts';

const ROOT = path.resolve(import.meta.dirname, '../..');
const WAIT_MS = 25_000;

function findPrometheus(): string | null {
  const setup = spawnSync('bash', [path.join(ROOT, '.ci/setup'), 'prometheus'], {
    encoding: 'utf8',
    stdio: ['ignore', 'pipe', 'inherit'],
  });
  return setup.status === 0 ? path.join(setup.stdout.trim(), 'prometheus') : null;
}

interface QueryResult {
  readonly metric: Readonly<Record<string, string>>;
  readonly value: readonly [atSeconds: number, value: string];
}

class Prometheus {
  readonly #url: string;
  readonly #folder: string;
  readonly #child: ChildProcess;

  private constructor(url: string, folder: string, child: ChildProcess) {
    this.#url = url;
    this.#folder = folder;
    this.#child = child;
  }

  static async start(executable: string, target: string): Promise<Prometheus> {
    const [port] = await freePorts(1);
    const folder = fs.mkdtempSync(path.join(os.tmpdir(), 'kvd-prometheus-'));
    const config = path.join(folder, 'prometheus.yml');
    fs.writeFileSync(
      config,
      'global: { scrape_interval: 1s }\n' +
        `scrape_configs: [{ job_name: kvd, static_configs: [{ targets: ["${target}"] }] }]\n`,
    );
    const child = spawn(
      executable,
      [
        `--config.file=${config}`,
        `--storage.tsdb.path=${path.join(folder, 'data')}`,
        `--web.listen-address=127.0.0.1:${port}`,
        '--log.level=error',
      ],
      { stdio: ['ignore', 'inherit', 'inherit'] },
    );
    const prometheus = new Prometheus(`http://127.0.0.1:${port}`, folder, child);
    const isReady = () =>
      fetch(`${prometheus.#url}/-/ready`).then(
        ({ status }) => status === 200,
        () => false,
      );
    await until(isReady, WAIT_MS, 'a Prometheus');
    return prometheus;
  }

  async query(expression: string): Promise<readonly QueryResult[]> {
    const query = new URLSearchParams({ query: expression });
    const response = await fetch(`${this.#url}/api/v1/query?${query}`);
    const { status, data } = (await response.json()) as {
      readonly status: string;
      readonly data: { readonly result: readonly QueryResult[] };
    };
    assert.is(status, 'success', expression);
    return data.result;
  }

  async lastError(): Promise<string> {
    const response = await fetch(`${this.#url}/api/v1/targets`);
    const { data } = (await response.json()) as {
      readonly data: { readonly activeTargets: readonly { readonly lastError: string }[] };
    };
    return data.activeTargets.map(({ lastError }) => lastError).join();
  }

  async stop(): Promise<void> {
    const ended = once(this.#child, 'exit');
    this.#child.kill('SIGKILL');
    await ended;
    fs.rmSync(this.#folder, { recursive: true, force: true });
  }
}

async function scrape(executable: string): Promise<void> {
  const server = await ServerProcess.start({ '--instance-id': 'scraped' });
  let prometheus: Prometheus | null = null;
  try {
    const worker = new FakeWorker(server.url);
    await worker.register();
    await worker.store(promptOf(1, 4));
    worker.close();
    const started = await Prometheus.start(executable, new URL(server.httpUrl).host);
    prometheus = started;
    const isUp = async () => (await started.query('up{job="kvd"}'))[0]?.value[1] === '1';
    await until(isUp, WAIT_MS, 'the target is up').catch(async (error: Error) => {
      throw new Error(`${error.message}: ${await started.lastError()}`);
    });
    const [writes] = await started.query('sum(lmcache_mp_l1_write_chunks_total)');
    assert.is(writes?.value[1], '4');
    // As dashboards ask it: the instance id joined to a metric.
    const [ratio] = await started.query(
      'lmcache_mp_l1_usage_ratio * on (instance) group_left (service_instance_id) target_info',
    );
    assert.is(ratio?.metric['service_instance_id'], 'scraped');
    assert.ok(Number(ratio?.value[1]) > 0);
    const [types] = await started.query('process_resident_memory_bytes');
    assert.ok(Number(types?.value[1]) > 20e6);
    await server.stop();
  } finally {
    await prometheus?.stop();
    if (!server.hasEnded) await server.kill();
    server.removeSegments();
  }
}

suite('a real Prometheus', (test) => {
  test('takes the whole answer and finds what was counted', async () => {
    const executable = findPrometheus();
    if (executable === null) console.log('left out: there is no prometheus here');
    else await scrape(executable);
  });
});
