/**
 * Addresses of the gRPC door, as its clients write them: `grpc://HOST:PORT` and
 * `grpc+unix:///PATH`. Like those of the ZMQ door they are checked before anything is bound.
 */
import { isIP, isIPv6 } from 'node:net';
import { badEndpoint, checkSocketPath, lookUp } from '../endpoints.ts';

const PORT_MAX = 65_535;
const TCP = /^grpc:\/\/(?:\[([^\]]+)\]|([^:[\]/]+)):(\d{1,5}|\*)$/;
const UNIX = /^grpc\+unix:\/\/(\/.+)$/;

export type GrpcAddress =
  | { readonly given: string; readonly host: string; readonly port: number }
  | { readonly given: string; readonly path: string };

/** Checks one endpoint and looks its host up. Throws `ERR_ADDRESS` with one sentence. */
export async function resolveGrpcEndpoint(given: string): Promise<GrpcAddress> {
  const path = UNIX.exec(given)?.[1];
  if (path !== undefined) {
    await checkSocketPath(given, path);
    return { given, path };
  }
  const parts = TCP.exec(given);
  if (!parts) {
    throw badEndpoint(given, 'is no endpoint: expected grpc://HOST:PORT or grpc+unix:///PATH');
  }
  const [, ipv6, name, port] = parts as unknown as [string, string?, string?, string?];
  const portNumber = port === '*' ? 0 : Number(port);
  if (portNumber > PORT_MAX) {
    throw badEndpoint(given, `has port ${port}: expected 0 to ${PORT_MAX}`);
  }
  if (ipv6 !== undefined && !isIPv6(ipv6.replace(/%.*$/, ''))) {
    throw badEndpoint(given, 'has no IPv6 address in brackets');
  }
  return { given, host: ipv6 ?? (await hostOf(given, name as string)), port: portNumber };
}

async function hostOf(given: string, name: string): Promise<string> {
  if (name === '*') return '0.0.0.0';
  const address = await lookUp(name);
  if (isIP(address) === 0) throw badEndpoint(given, `has a host that is not known: ${name}`);
  return address;
}

export function grpcEndpoint(host: string, port: number): string {
  return isIPv6(host) ? `grpc://[${host}]:${port}` : `grpc://${host}:${port}`;
}
