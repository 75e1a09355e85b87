/**
 * The floor: a ROUTER that answers whatever it gets with a reply of the size of kvd's, and does
 * nothing else. What a client measures against it is the price of ZMQ, the kernel and the machine.
 */
import { Router } from 'zeromq';
import { Child, serve } from './child.ts';

export class EchoServer {
  readonly #child: Child<'bind'>;
  readonly url: string;

  private constructor(child: Child<'bind'>, url: string) {
    this.#child = child;
    this.url = url;
  }

  static async start(): Promise<EchoServer> {
    const child = new Child<'bind'>(import.meta.filename);
    return new EchoServer(child, await child.ask<string>('bind'));
  }

  get pid(): number {
    return this.#child.pid;
  }

  stop(): Promise<void> {
    return this.#child.stop();
  }
}

async function echo(socket: Router): Promise<void> {
  for await (const [identity, uid, op] of socket) {
    await socket.send([identity as Buffer, uid as Buffer, op as Buffer]);
  }
}

if (import.meta.main) {
  serve<'bind'>(async () => {
    const socket = new Router({ linger: 0 });
    await socket.bind('tcp://127.0.0.1:*');
    void echo(socket);
    return socket.lastEndpoint;
  });
}
