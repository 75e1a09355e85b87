/** The ROUTER socket with its options, bound to every endpoint. */
import { Router as RouterSocket } from 'zeromq';
import type { Logger } from '../observability/log.ts';
import { bindEndpoint, isLocal, removeIpcPath, resolveEndpoint } from './endpoints.ts';
import {
  ACCEPT_BACKLOG,
  RECEIVE_HIGH_WATER_MARK,
  SEND_HIGH_WATER_MARK,
  type WireLimits,
} from './wire-limits.ts';

export interface SocketOptions {
  readonly endpoints: readonly string[];
  readonly limits: WireLimits;
  readonly log: Logger;
}

export interface BoundSocket {
  readonly socket: RouterSocket;
  /** With real addresses and ports. */
  readonly endpoints: readonly string[];
  /** Inside the process, for `LoopProbe`. */
  readonly probeEndpoint: string;
}

/** Endpoints inside the process share one name space. */
let probeEndpointCount = 0;

/** Throws `ERR_ADDRESS` and leaves nothing open when one endpoint cannot be bound. */
export async function openSocket({ endpoints, limits, log }: SocketOptions): Promise<BoundSocket> {
  const resolved = [];
  for (const endpoint of endpoints) resolved.push(await resolveEndpoint(endpoint));
  const socket = new RouterSocket({
    // Nothing waits for a client: not a send (EAGAIN, EHOSTUNREACH), not the end of the process.
    mandatory: true,
    sendTimeout: 0,
    linger: 0,
    sendHighWaterMark: SEND_HIGH_WATER_MARK,
    receiveHighWaterMark: RECEIVE_HIGH_WATER_MARK,
    maxMessageSize: limits.frameBytesMax,
    backlog: ACCEPT_BACKLOG,
    ipv6: resolved.some((endpoint) => endpoint.needsIpv6),
  });
  const bound: string[] = [];
  try {
    for (const endpoint of resolved) bound.push(await bindEndpoint(socket, endpoint));
    probeEndpointCount += 1;
    const probeEndpoint = `inproc://kvd-loop-probe-${probeEndpointCount}`;
    await socket.bind(probeEndpoint);
    for (const endpoint of bound.filter((candidate) => !isLocal(candidate))) {
      log.warn(`${endpoint} can be reached from other hosts: it has no authentication`);
    }
    return { socket, endpoints: bound, probeEndpoint };
  } catch (error) {
    for (const endpoint of bound) await removeIpcPath(endpoint);
    socket.close();
    throw error;
  }
}
