/**
 * Addresses that the server listens on: `tcp://HOST:PORT` and `ipc://PATH`.
 *
 * libzmq does less than an operator expects, so the work is done here:
 *   - it takes port 99999 and binds another one: ports are checked.
 *   - it sees IPv6 only when told to, and then maps IPv4 addresses. Names are looked up first; the
 *     option is set when one of the addresses needs it.
 *   - before it binds an ipc path it deletes whatever lies there, be it a document or the socket of
 *     a running server: only a socket that nobody listens on may be replaced. On close it leaves
 *     its own behind.
 *   - its errors are a code without a sentence.
 */
import { lookup } from 'node:dns/promises';
import { lstat, rm } from 'node:fs/promises';
import { connect, isIPv6 } from 'node:net';
import { KvdError } from '../errors.ts';

/** `sun_path` has 108 bytes with its final NUL. */
const IPC_PATH_BYTES_MAX = 107;
const PORT_MAX = 65_535;
const TCP = /^tcp:\/\/(?:\[([^\]]+)\]|([^:[\]]+)):(\d{1,5}|\*)$/;
const MAPPED_IPV4 = /\[::ffff:(\d+\.\d+\.\d+\.\d+)\]/;
/** Names of our own inside the process (`rehearsal.ts`); others are refused. */
const INSIDE = 'inproc://kvd-';
const LOOPBACK = /^(?:tcp|grpc):\/\/(?:127\.\d+\.\d+\.\d+|\[::1\]):/;

/** `::1`, 5555 → `tcp://[::1]:5555`. */
export function tcpEndpoint(host: string, port: number): string {
  return isIPv6(host) ? `tcp://[${host}]:${port}` : `tcp://${host}:${port}`;
}

export interface ResolvedEndpoint {
  /** As the user wrote it, for messages. */
  readonly given: string;
  /** As libzmq gets it. */
  readonly address: string;
  readonly needsIpv6: boolean;
}

/** Checks one endpoint and looks its host up. Throws `ERR_ADDRESS` with one sentence. */
export async function resolveEndpoint(given: string): Promise<ResolvedEndpoint> {
  if (given.startsWith(INSIDE)) return { given, address: given, needsIpv6: false };
  if (given.startsWith('ipc://')) {
    await checkIpcPath(given);
    return { given, address: given, needsIpv6: false };
  }
  const parts = TCP.exec(given);
  if (!parts) {
    throw badEndpoint(given, 'is no endpoint: expected tcp://HOST:PORT or ipc://PATH');
  }
  const [, ipv6, host, port] = parts as unknown as [string, string?, string?, string?];
  if (port !== '*' && Number(port) > PORT_MAX) {
    throw badEndpoint(given, `has port ${port}: expected 0 to ${PORT_MAX}`);
  }
  if (ipv6 !== undefined) {
    if (!isIPv6(ipv6.replace(/%.*$/, '')))
      throw badEndpoint(given, 'has no IPv6 address in brackets');
    return { given, address: given, needsIpv6: true };
  }
  const address = host === '*' ? '*' : await lookUp(host as string);
  const needsIpv6 = isIPv6(address);
  return { given, address: `tcp://${needsIpv6 ? `[${address}]` : address}:${port}`, needsIpv6 };
}

/** IPv4 where a name has both, as the peer binds it. Names of network interfaces are libzmq's. */
export async function lookUp(host: string): Promise<string> {
  try {
    const addresses = await lookup(host, { all: true });
    const chosen = addresses.find(({ family }) => family === 4) ?? addresses[0];
    return chosen?.address ?? host;
  } catch {
    // Not a host name: libzmq knows names of interfaces, and refuses what is neither.
    return host;
  }
}

async function checkIpcPath(given: string): Promise<void> {
  const path = given.slice('ipc://'.length);
  // Abstract sockets have no file.
  if (!path.startsWith('@')) await checkSocketPath(given, path);
  else if (Buffer.byteLength(path) > IPC_PATH_BYTES_MAX) throw tooLong(given);
}

/** That a socket can be made there without harm to what is there. Throws `ERR_ADDRESS`. */
export async function checkSocketPath(given: string, path: string): Promise<void> {
  if (path === '') throw badEndpoint(given, 'has no path');
  if (Buffer.byteLength(path) > IPC_PATH_BYTES_MAX) throw tooLong(given);
  const found = await lstat(path).catch(() => null);
  if (!found) return;
  if (!found.isSocket()) throw badEndpoint(given, 'names a file that is not a socket');
  if (await isListening(path)) throw badEndpoint(given, 'is in use by another process');
}

function tooLong(given: string): KvdError {
  return badEndpoint(given, `has a path of more than ${IPC_PATH_BYTES_MAX} bytes`);
}

function isListening(path: string): Promise<boolean> {
  return new Promise((resolve) => {
    const probe = connect({ path });
    probe.once('connect', () => {
      probe.destroy();
      resolve(true);
    });
    probe.once('error', (error: NodeJS.ErrnoException) => {
      probe.destroy();
      // Refused or vanished: a leftover. Anything else (a full backlog) means somebody is there.
      resolve(error.code !== 'ECONNREFUSED' && error.code !== 'ENOENT');
    });
  });
}

/** The part of a socket that binding needs. */
interface BindableSocket {
  bind(address: string): Promise<void>;
  readonly lastEndpoint: string | null;
}

/** Binds and returns the endpoint with its real address and port. Throws `ERR_ADDRESS`. */
export async function bindEndpoint(
  socket: BindableSocket,
  endpoint: ResolvedEndpoint,
): Promise<string> {
  try {
    await socket.bind(endpoint.address);
  } catch (error) {
    const code = (error as NodeJS.ErrnoException).code ?? 'unknown error';
    throw badEndpoint(endpoint.given, `cannot be bound: ${REASONS[code] ?? code}`, error);
  }
  return (socket.lastEndpoint ?? endpoint.address).replace(MAPPED_IPV4, '$1');
}

const REASONS: Readonly<Record<string, string>> = {
  EADDRINUSE: 'another process listens there; choose another port or stop it',
  EADDRNOTAVAIL: 'this host has no such address',
  ENODEV: 'no such host or network interface',
  EACCES: 'permission denied',
  ENOENT: 'its folder does not exist',
};

/** Removes the file of an ipc endpoint, which is ours for certain only while it is bound. */
export async function removeIpcPath(endpoint: string): Promise<void> {
  if (!endpoint.startsWith('ipc://') || endpoint.startsWith('ipc://@')) return;
  // What cannot be removed does no harm: the next start replaces it.
  await rm(endpoint.slice('ipc://'.length), { force: true }).catch(() => {});
}

/** True when it belongs to the gRPC door (`grpc/grpc-endpoints.ts`). */
export function isGrpcEndpoint(endpoint: string): boolean {
  return endpoint.startsWith('grpc');
}

/** True when only processes of this host can connect. */
export function isLocal(endpoint: string): boolean {
  return /^(ipc|inproc|grpc\+unix):/.test(endpoint) || LOOPBACK.test(endpoint);
}

/** `ERR_ADDRESS`: what is wrong with an endpoint. */
export function badEndpoint(given: string, problem: string, cause?: unknown): KvdError {
  return new KvdError('ERR_ADDRESS', `endpoint ${given} ${problem}`, { cause });
}
