/**
 * Batches of KV events that subscribers can ask for again (kv-event-publisher.ts).
 *
 *   ◀ [identity, "", start seq]        8 bytes, big endian
 *   ▶ [identity, "", seq, batch]       every batch from there on that is in the buffer
 *   ▶ [identity, "", -1, ""]           the end
 *
 * Requests are served one after the other, in slices between other work. A client that does not
 * read its answer has room for one: the rest of it is dropped, also its end.
 */
import { Router as RouterSocket } from 'zeromq';
import type { Logger } from '../observability/log.ts';
import { bindEndpoint, removeIpcPath, resolveEndpoint } from './endpoints.ts';
import { encodeSeq } from './kv-event-codec.ts';

/** vLLM's default. */
const BATCH_COUNT_MAX = 10_000;
const BUFFER_BYTES_MAX = 64 * 1024 * 1024;
/** About 0.2 ms. */
const SLICE_BATCH_COUNT = 32;
const REQUEST_BYTES_MAX = 1024;
const SEQ_SIZE_BYTES = 8;
const END_SEQ = new Uint8Array(SEQ_SIZE_BYTES).fill(0xff);
const NO_BATCH = new Uint8Array(0);

/** The latest batches. The oldest leave when it is full. */
export class BatchBuffer {
  readonly #countMax: number;
  readonly #bytesMax: number;
  #batches: (Uint8Array | undefined)[] = [];
  #head = 0;
  #firstSeq = 0;
  #sizeBytes = 0;

  constructor(countMax: number = BATCH_COUNT_MAX, bytesMax: number = BUFFER_BYTES_MAX) {
    this.#countMax = countMax;
    this.#bytesMax = bytesMax;
  }

  get count(): number {
    return this.#batches.length - this.#head;
  }

  get sizeBytes(): number {
    return this.#sizeBytes;
  }

  get firstSeq(): number {
    return this.#firstSeq;
  }

  get nextSeq(): number {
    return this.#firstSeq + this.count;
  }

  /** Returns the number of the batch. */
  push(batch: Uint8Array): number {
    const seq = this.nextSeq;
    this.#batches.push(batch);
    this.#sizeBytes += batch.length;
    while (this.count > this.#countMax || (this.#sizeBytes > this.#bytesMax && this.count > 1)) {
      this.#dropOldest();
    }
    return seq;
  }

  /** Must be one of `firstSeq` to `nextSeq - 1`. */
  at(seq: number): Uint8Array {
    return this.#batches[this.#head + seq - this.#firstSeq] as Uint8Array;
  }

  #dropOldest(): void {
    this.#sizeBytes -= this.at(this.#firstSeq).length;
    this.#batches[this.#head] = undefined;
    this.#head += 1;
    this.#firstSeq += 1;
    if (this.#head < this.count) return;
    this.#batches = this.#batches.slice(this.#head);
    this.#head = 0;
  }
}

export interface ReplaySocket {
  readonly socket: RouterSocket;
  /** With its real port. */
  readonly endpoint: string;
}

/** Throws `ERR_ADDRESS`. */
export async function bindReplay(given: string): Promise<ReplaySocket> {
  const resolved = await resolveEndpoint(given);
  const socket = new RouterSocket({
    mandatory: true,
    linger: 0,
    sendTimeout: 0,
    // One whole answer.
    sendHighWaterMark: BATCH_COUNT_MAX + 1,
    maxMessageSize: REQUEST_BYTES_MAX,
    ipv6: resolved.needsIpv6,
  });
  try {
    return { socket, endpoint: await bindEndpoint(socket, resolved) };
  } catch (error) {
    socket.close();
    throw error;
  }
}

export class KvEventReplay {
  readonly endpoint: string;
  readonly #socket: RouterSocket;
  readonly #buffer: BatchBuffer;
  readonly #log: Logger;
  readonly #ended: Promise<void>;
  replayCount = 0;
  badRequestCount = 0;

  constructor({ socket, endpoint }: ReplaySocket, buffer: BatchBuffer, log: Logger) {
    this.endpoint = endpoint;
    this.#socket = socket;
    this.#buffer = buffer;
    this.#log = log;
    this.#ended = this.#serve();
  }

  async close(): Promise<void> {
    this.#socket.close();
    await this.#ended;
    await removeIpcPath(this.endpoint);
  }

  async #serve(): Promise<void> {
    try {
      for await (const frames of this.#socket) {
        const [identity, , start] = frames;
        if (frames.length === 3 && identity && start && start.length <= SEQ_SIZE_BYTES) {
          await this.#answer(identity, Number(readBigEndian(start)));
        } else {
          this.badRequestCount += 1;
        }
      }
    } catch (error) {
      // Subscribers keep what they get from the PUB socket, and see gaps that nobody fills.
      this.#log.error(`Replay of KV events has ended: ${error}`);
    }
  }

  async #answer(identity: Uint8Array, startSeq: number): Promise<void> {
    this.replayCount += 1;
    try {
      let seq = startSeq;
      for (let sentCount = 1; seq < this.#buffer.nextSeq; sentCount += 1) {
        // The oldest may leave the buffer between two slices.
        seq = Math.max(seq, this.#buffer.firstSeq);
        await this.#socket.send([identity, NO_BATCH, encodeSeq(seq), this.#buffer.at(seq)]);
        seq += 1;
        if (sentCount % SLICE_BATCH_COUNT === 0) {
          await new Promise((resolve) => setImmediate(resolve));
        }
      }
      await this.#socket.send([identity, NO_BATCH, END_SEQ, NO_BATCH]);
    } catch (error) {
      if (this.#socket.closed) return;
      this.#log.limited('warn', 'kv-replay', `A replay of KV events is not taken: ${error}`);
    }
  }
}

function readBigEndian(bytes: Uint8Array): bigint {
  let value = 0n;
  for (const byte of bytes) value = (value << 8n) | BigInt(byte);
  return value;
}
