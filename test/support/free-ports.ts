/**
 * Ports of the loopback interface for servers that start in a moment.
 *
 * They come from below the range that the kernel hands out by itself (32768 and up): a port from
 * there could become the source port of somebody's connection before the server binds it.
 */
import net from 'node:net';

const FIRST_PORT = 20_000;
const PORT_COUNT = 12_000;

/** Test files run side by side, so each process begins at a place of its own. */
let next = (process.pid * 101) % PORT_COUNT;

function isFree(port: number): Promise<boolean> {
  const probe = net.createServer();
  return new Promise((resolve) => {
    probe.once('error', () => resolve(false));
    probe.listen(port, '127.0.0.1', () => probe.close(() => resolve(true)));
  });
}

export async function freePorts(count: number): Promise<number[]> {
  const ports: number[] = [];
  while (ports.length < count) {
    const port = FIRST_PORT + next;
    next = (next + 1) % PORT_COUNT;
    if (await isFree(port)) ports.push(port);
  }
  return ports;
}
