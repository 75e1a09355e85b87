/** Endpoints: what is checked before libzmq gets them. */
import { spawnSync } from 'node:child_process';
import { existsSync, mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { createServer } from 'node:net';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import * as assert from 'uvu/assert';
import { isLocal, resolveEndpoint, tcpEndpoint } from '../../../src/wire/endpoints.ts';
import { rejects } from '../../support/rejects.ts';
import { suite } from '../../support/suite.ts';

async function withFolder(run: (folder: string) => Promise<void>): Promise<void> {
  const folder = mkdtempSync(join(tmpdir(), 'kvd-endpoints-'));
  try {
    await run(folder);
  } finally {
    rmSync(folder, { recursive: true });
  }
}

suite('endpoint', (test) => {
  test('is made of host and port, with brackets around IPv6', () => {
    assert.is(tcpEndpoint('localhost', 5555), 'tcp://localhost:5555');
    assert.is(tcpEndpoint('::1', 5555), 'tcp://[::1]:5555');
  });

  test('is resolved to an address, IPv4 first', async () => {
    for (const [given, address, needsIpv6] of [
      ['tcp://localhost:5555', 'tcp://127.0.0.1:5555', false],
      ['tcp://127.0.0.1:0', 'tcp://127.0.0.1:0', false],
      ['tcp://0.0.0.0:*', 'tcp://0.0.0.0:*', false],
      ['tcp://*:5555', 'tcp://*:5555', false],
      ['tcp://[::1]:5555', 'tcp://[::1]:5555', true],
      ['tcp://[fe80::1%eth0]:5555', 'tcp://[fe80::1%eth0]:5555', true],
      ['ipc://@abstract', 'ipc://@abstract', false],
    ] as const) {
      assert.equal(await resolveEndpoint(given), { given, address, needsIpv6 });
    }
  });

  test('that cannot be right is refused with a sentence', async () => {
    for (const [given, problem] of [
      ['localhost:5555', /expected tcp:\/\/HOST:PORT or ipc:\/\/PATH/],
      ['tcp://localhost', /expected tcp/],
      ['tcp://:5555', /expected tcp/],
      ['tcp://::1:5555', /expected tcp/],
      ['udp://localhost:5555', /expected tcp/],
      ['inproc://x', /expected tcp/],
      ['tcp://localhost:99999', /has port 99999: expected 0 to 65535/],
      ['tcp://[fe80]:1', /no IPv6 address in brackets/],
      ['ipc://', /has no path/],
      [`ipc:///tmp/${'x'.repeat(108)}`, /more than 107 bytes/],
    ] as const) {
      await rejects(resolveEndpoint(given), problem);
    }
  });

  test('of kind ipc never replaces a file or the socket of somebody who listens', () =>
    withFolder(async (folder) => {
      const document = join(folder, 'document');
      writeFileSync(document, 'precious');
      await rejects(resolveEndpoint(`ipc://${document}`), /a file that is not a socket/);
      const path = join(folder, 'socket');
      const server = createServer().listen(path);
      await new Promise((resolve) => server.once('listening', resolve));
      await rejects(resolveEndpoint(`ipc://${path}`), /in use by another process/);
      await new Promise((resolve) => server.close(resolve));
    }));

  test('of kind ipc takes the place of a socket that was left over', () =>
    withFolder(async (folder) => {
      const path = join(folder, 'left-over');
      const holder = `net.createServer().listen(${JSON.stringify(path)}, () => {
        process.kill(process.pid, 'SIGKILL');
      })`;
      const { signal } = spawnSync(process.execPath, ['-e', holder], { timeout: 10_000 });
      assert.is(signal, 'SIGKILL');
      assert.ok(existsSync(path));
      const endpoint = await resolveEndpoint(`ipc://${path}`);
      assert.is(endpoint.address, `ipc://${path}`);
    }));

  test('is local when only this host reaches it', () => {
    for (const endpoint of [
      'ipc:///x',
      'tcp://127.0.0.1:1',
      'tcp://127.9.9.9:1',
      'tcp://[::1]:1',
    ]) {
      assert.ok(isLocal(endpoint), endpoint);
    }
    for (const endpoint of ['tcp://0.0.0.0:1', 'tcp://[::]:1', 'tcp://10.0.0.1:1']) {
      assert.not.ok(isLocal(endpoint), endpoint);
    }
  });
});
