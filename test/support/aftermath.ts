/**
 * What holds after every fault: the conditions of `expectCalm`, and beyond them that nothing is
 * pending, that CLEAR finds nothing which somebody still uses, and that a stop leaves neither
 * segment, port nor child behind. The server has ended afterwards.
 */
import fs from 'node:fs';
import net from 'node:net';
import * as assert from 'uvu/assert';
import { KvdClient } from '../../src/client/client.ts';
import { expectCalm } from './scenario.ts';
import type { ServerProcess } from './server-process.ts';
import { until } from './waiting.ts';

const CLEAR_DEADLINE_MS = 5000;
const CHILD_DEADLINE_MS = 1000;
const NOTHING_PENDING = {
  pending_write_count: 0,
  pending_write_bytes: 0,
  pending_read_count: 0,
  pending_read_bytes: 0,
  quarantined_transfer_count: 0,
  quarantined_bytes: 0,
  held_reply_count: 0,
};

/** `objectSizeBytes` null: objects of several sizes were stored. */
export async function expectNothingLeft(
  server: ServerProcess,
  options: { readonly objectSizeBytes?: number | null } = {},
): Promise<void> {
  await expectCalm(server, options);
  const status = await server.status();
  assert.equal(pendingOf(status.engine_driven_transfer), NOTHING_PENDING);
  assert.is(status.lmcache_driven_transfer['closing_instance_count'], 0, 'closing instances');
  await expectEmptyAfterClear(server);
  const children = childrenOf(server.pid);
  await server.stop();
  for (const port of Object.values(server.ports)) {
    assert.is(await connectionTo(port), 'ECONNREFUSED', `port ${port} is still open`);
  }
  const haveEnded = () => children.every((pid) => !fs.existsSync(`/proc/${pid}`));
  await until(haveEnded, CHILD_DEADLINE_MS, `the children ${children} have ended`);
}

/** The engine-driven module has nothing that waits for a worker or for its time. */
export async function hasNothingPending(server: ServerProcess): Promise<boolean> {
  const { engine_driven_transfer: transfer } = await server.status();
  return Object.values(pendingOf(transfer)).every((count) => count === 0);
}

function pendingOf(transfer: Readonly<Record<string, number>>): Record<string, unknown> {
  const names = Object.keys(NOTHING_PENDING);
  return Object.fromEntries(names.map((name) => [name, transfer[name]]));
}

/** A forced CLEAR defers what is pinned or held: then bytes would stay in use. */
async function expectEmptyAfterClear(server: ServerProcess): Promise<void> {
  const client = KvdClient.connect(server.url);
  try {
    await client.call('CLEAR', { isForced: true }, CLEAR_DEADLINE_MS);
    const { memory_used_bytes, memory_deferred_bytes, total_object_count } = await server.l1();
    const left = { memory_used_bytes, memory_deferred_bytes, total_object_count };
    const nothing = { memory_used_bytes: 0, memory_deferred_bytes: 0, total_object_count: 0 };
    assert.equal(left, nothing, 'after CLEAR');
  } finally {
    client.close();
  }
}

function childrenOf(parentPid: number): string[] {
  const pids = fs.readdirSync('/proc').filter((name) => /^\d+$/.test(name));
  return pids.filter((pid) => parentOf(pid) === parentPid);
}

/** Behind the name, which stands in parentheses: the state, then the parent. */
function parentOf(pid: string): number | null {
  try {
    const stat = fs.readFileSync(`/proc/${pid}/stat`, 'latin1');
    return Number(/\) \w (\d+) /.exec(stat)?.[1]);
  } catch {
    // It has ended since the folder was listed.
    return null;
  }
}

/** What comes of connecting: the code of the error, or `connected`. */
function connectionTo(port: number): Promise<string> {
  return new Promise((resolve) => {
    const socket = net.connect({ port, host: '127.0.0.1' });
    const settle = (outcome: string) => {
      socket.destroy();
      resolve(outcome);
    };
    socket.once('connect', () => settle('connected'));
    socket.once('error', (error: NodeJS.ErrnoException) => settle(String(error.code)));
  });
}
