/** `kvd server` as a process: what it prints, how it ends, what it leaves behind. */
import { type ChildProcess, spawn } from 'node:child_process';
import fs from 'node:fs';
import net from 'node:net';
import path from 'node:path';
import * as assert from 'uvu/assert';
import { suite } from '../support/suite.ts';

const MAIN = path.resolve(import.meta.dirname, '../../src/cli/main.ts');

interface Running {
  readonly child: ChildProcess;
  readonly output: () => string;
  /** Resolves when a line of the output matches. */
  until(pattern: RegExp): Promise<void>;
  readonly ended: Promise<number | null>;
}

function kvd(args: readonly string[]): Running {
  const child = spawn(process.execPath, [MAIN, ...args]);
  let text = '';
  let wake = () => {};
  const onData = (chunk: Buffer) => {
    text += chunk.toString();
    wake();
  };
  child.stdout.on('data', onData);
  child.stderr.on('data', onData);
  const ended = new Promise<number | null>((resolve) =>
    child.once('close', (code) => {
      resolve(code);
      wake();
    }),
  );
  const until = async (pattern: RegExp) => {
    while (!pattern.test(text)) {
      assert.is(child.exitCode, null, `ended without ${pattern}:\n${text}`);
      await new Promise<void>((resolve) => {
        wake = resolve;
      });
    }
  };
  return { child, output: () => text, until, ended };
}

async function freePort(): Promise<number> {
  const server = net.createServer().listen(0, '127.0.0.1');
  await new Promise((resolve) => server.once('listening', resolve));
  const { port } = server.address() as net.AddressInfo;
  await new Promise((resolve) => server.close(resolve));
  return port;
}

interface Ports {
  readonly port: number;
  readonly httpPort: number;
}

async function freePorts(): Promise<Ports> {
  return { port: await freePort(), httpPort: await freePort() };
}

function startServer({ port, httpPort }: Ports, extra: readonly string[] = []): Running {
  return kvd([
    ...['server', '--l1-size-gb', '0.05', '--eviction-policy', 'LRU'],
    ...['--host', '127.0.0.1', '--port', String(port), '--http-port', String(httpPort)],
    ...extra,
  ]);
}

const SERVING = /LMCache cache server is running/;

async function stopped({ child, ended }: Running): Promise<number | null> {
  child.kill('SIGTERM');
  return ended;
}

suite('server process', (test) => {
  test('answers PING, and ends with 0 and nothing in /dev/shm after SIGTERM', async () => {
    const ports = await freePorts();
    const server = startServer(ports);
    try {
      await server.until(SERVING);
      const ping = kvd(['ping', '--url', `tcp://127.0.0.1:${ports.port}`, '--format', 'json']);
      assert.is(await ping.ended, 0, ping.output());
      const { metrics } = JSON.parse(ping.output()) as { metrics: Record<string, unknown> };
      assert.is(metrics['status'], 'OK');
      const ready = await fetch(`http://127.0.0.1:${ports.httpPort}/readyz`);
      assert.equal(await ready.json(), { status: 'ready' });
    } finally {
      assert.is(await stopped(server), 0, server.output());
    }
    const left = fs.readdirSync('/dev/shm').filter((n) => n.endsWith(`_${server.child.pid}`));
    assert.equal(left, []);
  });

  test('rehearses unseen: every request is served, and nothing of it is left', async () => {
    const ports = await freePorts();
    const server = startServer(ports, ['--log-level', 'DEBUG']);
    try {
      await server.until(/rehearsal.* ms /);
      const [, served, sent] = /rehearsal: (\d+) of (\d+) requests served/.exec(server.output())!;
      assert.ok(Number(sent) > 100);
      assert.is(served, sent);
      const url = `http://127.0.0.1:${ports.httpPort}`;
      const status = (await (await fetch(`${url}/status`)).json()) as Record<string, never>;
      assert.is(status['active_sessions'], 0);
      assert.is(status['storage_manager']!['l1_manager']!['total_object_count'], 0);
      assert.is(status['storage_manager']!['l1_manager']!['memory_used_bytes'], 0);
      assert.not.match(JSON.stringify(status), /rehears/);
      const metrics = await (await fetch(`${url}/metrics`)).text();
      assert.not.match(metrics, /rehears|PREPARE_STORE/);
    } finally {
      assert.is(await stopped(server), 0, server.output());
    }
    assert.not.match(server.output(), /Stored|Registered/);
  });

  test('SIGINT ends it with 0 too, and SIGHUP does not end it', async () => {
    const server = startServer(await freePorts());
    await server.until(SERVING);
    server.child.kill('SIGHUP');
    await server.until(/SIGHUP: nothing to reopen/);
    server.child.kill('SIGINT');
    assert.is(await server.ended, 0, server.output());
  });

  test('a reader of its log that goes away does not end it', async () => {
    const ports = await freePorts();
    const server = startServer(ports);
    await server.until(SERVING);
    server.child.stderr?.destroy();
    server.child.kill('SIGHUP');
    let lostCount = 0;
    while (lostCount === 0) {
      const status = await fetch(`http://127.0.0.1:${ports.httpPort}/status`);
      lostCount = ((await status.json()) as Record<string, number>)['lost_log_line_count'] ?? 0;
    }
    assert.is(await stopped(server), 0);
  });

  test('a second signal ends it at once with 130', async () => {
    const ports = await freePorts();
    const server = startServer(ports);
    await server.until(SERVING);
    // A request that never ends keeps the shutdown waiting.
    const socket = net.connect(ports.httpPort, '127.0.0.1');
    await new Promise((resolve) => socket.write('GET / HTTP/1.1\r\nhost: x\r\n', resolve));
    server.child.kill('SIGTERM');
    await server.until(/SIGTERM: shutting down/);
    server.child.kill('SIGTERM');
    assert.is(await server.ended, 130, server.output());
    socket.destroy();
  });

  test('a taken port stops the start with 1 and one line that names flag and port', async () => {
    const ports = await freePorts();
    const first = startServer(ports);
    try {
      await first.until(SERVING);
      const other = await freePort();
      const errors = (text: string) => text.split('\n').filter((l) => l.includes('error: '));
      const zmq = startServer({ port: ports.port, httpPort: other });
      assert.is(await zmq.ended, 1, zmq.output());
      assert.is(errors(zmq.output()).length, 1);
      assert.match(zmq.output(), new RegExp(`^kvd server: error: .*${ports.port}`, 'm'));
      const http = startServer({ port: other, httpPort: ports.httpPort });
      assert.is(await http.ended, 1, http.output());
      assert.match(http.output(), new RegExp(`error: --http-port: .*${ports.httpPort}`));
    } finally {
      await stopped(first);
    }
  });

  test('logs JSON when asked to', async () => {
    const server = startServer(await freePorts(), ['--log-format', 'json']);
    await server.until(SERVING);
    assert.is(await stopped(server), 0);
    for (const line of server.output().trimEnd().split('\n')) {
      assert.is(typeof (JSON.parse(line) as { message: unknown }).message, 'string');
    }
  });
});
