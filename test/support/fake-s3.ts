/**
 * An S3 server for tests of what real ones do only when they break. It keeps objects by path and
 * checks no signature; a fault takes over single requests.
 */
import { once } from 'node:events';
import http from 'node:http';
import type net from 'node:net';

export interface SeenRequest {
  readonly method: string;
  readonly path: string;
  readonly headers: http.IncomingHttpHeaders;
}

/** Called for each request before its body is read; true = it has been dealt with. */
export type S3Fault = (
  request: http.IncomingMessage,
  response: http.ServerResponse,
  count: number,
) => boolean;

export class FakeS3 {
  readonly objects = new Map<string, Buffer>();
  readonly requests: SeenRequest[] = [];
  fault: S3Fault = () => false;
  readonly #server: http.Server;

  private constructor() {
    this.#server = http.createServer((request, response) => {
      const { method = '', url: path = '', headers } = request;
      this.requests.push({ method, path, headers });
      request.on('error', () => {});
      if (this.fault(request, response, this.requests.length)) return;
      void this.#answer(request, response);
    });
  }

  static async listen(): Promise<FakeS3> {
    const fake = new FakeS3();
    fake.#server.listen(0, '127.0.0.1');
    await once(fake.#server, 'listening');
    return fake;
  }

  get port(): number {
    return (this.#server.address() as net.AddressInfo).port;
  }

  connectionCount(): Promise<number> {
    return new Promise((resolve) => this.#server.getConnections((_, count) => resolve(count)));
  }

  async close(): Promise<void> {
    this.#server.closeAllConnections();
    this.#server.close();
    await once(this.#server, 'close');
  }

  async #answer(request: http.IncomingMessage, response: http.ServerResponse): Promise<void> {
    const path = (request.url ?? '').split('?')[0] as string;
    const object = this.objects.get(path);
    if (request.method === 'PUT') {
      const parts: Buffer[] = [];
      for await (const part of request) parts.push(part as Buffer);
      this.objects.set(path, Buffer.concat(parts));
      response.writeHead(200).end();
    } else if (request.method === 'DELETE') {
      this.objects.delete(path);
      response.writeHead(204).end();
    } else if (!object) response.writeHead(404).end();
    else if (request.method === 'HEAD') {
      response.writeHead(200, { 'content-length': object.length }).end();
    } else sendRange(object, request, response);
  }
}

function sendRange(
  object: Buffer,
  request: http.IncomingMessage,
  response: http.ServerResponse,
): void {
  const [, first = '0', last = ''] = /^bytes=(\d+)-(\d+)$/.exec(request.headers.range ?? '') ?? [];
  const part = object.subarray(Number(first), Number(last) + 1);
  if (part.length === 0) {
    response.writeHead(416).end();
    return;
  }
  const endByte = Number(first) + part.length - 1;
  response.writeHead(206, {
    'content-length': part.length,
    'content-range': `bytes ${first}-${endByte}/${object.length}`,
  });
  response.end(part);
}
