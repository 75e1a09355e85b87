/**
 * A TCP relay between vLLM and kvd that can hold back what one worker says, while the scheduler's
 * own connection goes on: the only way to make chunks vanish between a lookup and its load.
 */
import { once } from 'node:events';
import net from 'node:net';

/** A registration is among the first bytes of its connection; its tensors come behind the id. */
const HEAD_BYTES_MAX = 1 << 20;

interface Line {
  readonly engine: net.Socket;
  readonly server: net.Socket;
  head: Buffer;
}

export class Gate {
  readonly #listener: net.Server;
  readonly #lines = new Set<Line>();

  private constructor(targetPort: number) {
    this.#listener = net.createServer((engine) => this.#relay(engine, targetPort));
  }

  static async open(port: number, targetPort: number): Promise<Gate> {
    const gate = new Gate(targetPort);
    gate.#listener.listen(port, '127.0.0.1');
    await once(gate.#listener, 'listening');
    return gate;
  }

  /** Holds what the worker sends from now on. Returns what lets it through again. */
  hold(instanceId: bigint): () => void {
    const wanted = encodeUint64(instanceId);
    const lines = [...this.#lines].filter(({ head }) => head.includes(wanted));
    if (lines.length === 0) throw new Error(`no connection has registered ${instanceId}`);
    for (const { engine } of lines) engine.pause();
    return () => {
      for (const { engine } of lines) engine.resume();
    };
  }

  close(): void {
    this.#listener.close();
    for (const { engine, server } of this.#lines) {
      engine.destroy();
      server.destroy();
    }
  }

  #relay(engine: net.Socket, targetPort: number): void {
    const line: Line = {
      engine,
      server: net.connect(targetPort, '127.0.0.1'),
      head: Buffer.alloc(0),
    };
    this.#lines.add(line);
    engine.on('data', (part) => {
      if (line.head.length < HEAD_BYTES_MAX) line.head = Buffer.concat([line.head, part]);
      line.server.write(part);
    });
    line.server.on('data', (part) => engine.write(part));
    const end = (): void => {
      this.#lines.delete(line);
      engine.destroy();
      line.server.destroy();
    };
    for (const socket of [engine, line.server]) socket.once('close', end).once('error', end);
  }
}

/** As msgpack writes it into the registration. */
function encodeUint64(value: bigint): Buffer {
  const bytes = Buffer.alloc(9);
  bytes.writeUInt8(0xcf, 0);
  bytes.writeBigUInt64BE(value, 1);
  return bytes;
}
