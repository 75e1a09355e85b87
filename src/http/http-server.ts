/**
 * The HTTP sockets: the main one, and the one of `--prometheus-port` when that flag is given.
 *
 * Bound before the engine is built, so that a probe can tell "starting" (503) from "dead", and a
 * taken port is known before gigabytes are reserved. `serve(backend)` ends the starting phase.
 */
import { once } from 'node:events';
import type { Server } from 'node:http';
import type { AddressInfo } from 'node:net';
import { createAdaptorServer } from '@hono/node-server';
import type { Hono } from 'hono';
import type { Clock } from '../clock.ts';
import { KvdError } from '../errors.ts';
import type { Logger, LogLevels } from '../observability/log.ts';
import { createHttpApp, createMetricsApp } from './app.ts';
import type { HttpBackend } from './backend.ts';
import type { Version } from './room.ts';
import { isLoopback } from './security.ts';

export interface HttpServerOptions {
  readonly host: string;
  readonly port: number;
  /** The second listener, for metrics only. */
  readonly prometheus: { readonly host: string; readonly port: number } | null;
  readonly token: string | null;
  readonly version: Version;
  /** What `/loglevel` shows and changes. */
  readonly logLevels: LogLevels;
  readonly log: Logger;
  readonly clock: Clock;
}

const HEADER_BYTES_MAX = 16 * 1024;
const IDLE_MS = 30_000;
const CONNECTIONS_MAX = 512;
const IDLE_SWEEP_MS = 20;

interface Address {
  readonly host: string;
  readonly port: number;
  /** Named in the error. */
  readonly flag: string;
}

async function listen(app: Hono, { host, port, flag }: Address): Promise<Server> {
  const server = createAdaptorServer({
    fetch: app.fetch,
    serverOptions: {
      maxHeaderSize: HEADER_BYTES_MAX,
      keepAliveTimeout: IDLE_MS,
      headersTimeout: IDLE_MS,
      requestTimeout: IDLE_MS,
    },
  }) as Server;
  server.maxConnections = CONNECTIONS_MAX;
  // `*` is how the ZMQ side says "all interfaces".
  server.listen(port, host === '*' ? '::' : host.replaceAll(/^\[|\]$/g, ''));
  try {
    await once(server, 'listening');
  } catch (error) {
    const { code, message } = error as NodeJS.ErrnoException;
    const reason = code === 'EADDRINUSE' ? 'the port is in use' : message;
    throw new KvdError('ERR_ADDRESS', `${flag}: ${host}:${port}: ${reason}`, { cause: error });
  }
  return server;
}

export class HttpServer {
  readonly #servers: Server[] = [];
  readonly #clock: Clock;
  #backend: HttpBackend | null = null;

  private constructor(clock: Clock) {
    this.#clock = clock;
  }

  static async bind(options: HttpServerOptions): Promise<HttpServer> {
    const { host, port, prometheus, token, log } = options;
    const self = new HttpServer(options.clock);
    const findBackend = () => self.#backend;
    const app = createHttpApp({ ...options, findBackend });
    self.#servers.push(await listen(app, { host, port, flag: '--http-port' }));
    if (!isLoopback(host) && token === null) {
      log.warn(
        `--http-host ${host}: whoever reaches port ${self.port} can read and clear the cache; ` +
          'set --http-token-file, or keep the port inside a trusted network',
      );
    }
    log.info('LMCache HTTP server initialized', { url: self.url });
    if (prometheus && prometheus.port !== port) await self.#bindMetrics(prometheus, log);
    return self;
  }

  /** A taken port here must not stop the start: charts always pass the flag. */
  async #bindMetrics(address: { host: string; port: number }, log: Logger): Promise<void> {
    const app = createMetricsApp({ findBackend: () => this.#backend, log });
    try {
      this.#servers.push(await listen(app, { ...address, flag: '--prometheus-port' }));
    } catch (error) {
      log.warn(`${(error as Error).message}; /metrics stays on ${this.url}/metrics`);
    }
  }

  get port(): number {
    return (this.#servers[0]!.address() as AddressInfo).port;
  }

  get url(): string {
    const { address, family, port } = this.#servers[0]!.address() as AddressInfo;
    return `http://${family === 'IPv6' ? `[${address}]` : address}:${port}`;
  }

  /** From now on requests are answered; until then they got 503. */
  serve(backend: HttpBackend): void {
    this.#backend = backend;
  }

  /** Stops accepting, lets running requests end until the deadline, then cuts them off. */
  async close(deadlineMs: number): Promise<void> {
    const timer = this.#clock.after(deadlineMs, () => {
      for (const server of this.#servers) server.closeAllConnections();
    });
    // A connection whose last request ends now stays open for the next one, which never comes.
    const sweep = this.#clock.every(IDLE_SWEEP_MS, () => {
      for (const server of this.#servers) server.closeIdleConnections();
    });
    await Promise.all(
      this.#servers.map((server) => {
        const closed = once(server, 'close');
        server.close();
        server.closeIdleConnections();
        return closed;
      }),
    );
    timer.cancel();
    sweep.cancel();
  }
}
