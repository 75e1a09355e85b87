/**
 * Publishes what L1 gains and loses to whoever listens, as vLLM publishes its own KV events, so
 * that prefix-aware routers see what kvd holds (docs/kv-events.md).
 *
 *   bus ─▶ events of this turn ─▶ batch ─▶ PUB     [topic, seq, batch]
 *                                   └────▶ buffer ─▶ ROUTER, on request: [seq, batch] …, [-1, ""]
 *
 *  - All events of one turn of the event loop are one batch (several if they are large), in order.
 *    Batches are numbered from 0 without gaps, over all topics; seq has 8 bytes, big endian.
 *  - Publishing never waits. A subscriber that does not read loses batches when its queue is full,
 *    sees the gap in the numbers, and asks for what it has missed: [start seq] to the ROUTER.
 *  - The buffer of batches that can be asked for is bounded in number and bytes. A request gets
 *    what is there from its start on, and at last the number -1 with an empty batch.
 *
 * `{model}` in the topic stands for the model of the events, because an event does not name it.
 *
 * As in vLLM an address with a wildcard is bound and any other is connected to, for routers that
 * listen themselves. What nobody can connect to (0.0.0.0, port 0) is bound, too.
 */
import { Publisher as PubSocket } from 'zeromq';
import type { Clock } from '../clock.ts';
import { KvdError } from '../errors.ts';
import type { EventBus } from '../observability/event-bus.ts';
import type { Logger } from '../observability/log.ts';
import { bindEndpoint, removeIpcPath, resolveEndpoint } from './endpoints.ts';
import {
  encodeBatch,
  encodeCleared,
  encodeRemoved,
  encodeSeq,
  encodeStored,
} from './kv-event-codec.ts';
import { BatchBuffer, bindReplay, KvEventReplay, type ReplaySocket } from './kv-event-replay.ts';

/**
 * Batches that wait for one subscriber, as many as can be asked for again: when the first is lost
 * for it, those that it has not read are still in the buffer.
 */
const QUEUE_COUNT_MAX = 10_000;
/** A turn that stores a long prompt makes several batches of about this size. */
const BATCH_BYTES_MAX = 1024 * 1024;
const MODEL_PLACEHOLDER = '{model}';
const BOUND = /\*|::|^ipc:|^inproc:|^tcp:\/\/0\.0\.0\.0:|:0$/;

export interface KvEventPublisherOptions {
  readonly endpoint: string;
  /** Null: nothing can be asked for again. */
  readonly replayEndpoint: string | null;
  readonly topic: string;
  readonly clock: Clock;
  readonly bus: EventBus;
  readonly log: Logger;
}

/** Events of one topic that wait for the end of the turn. */
interface PendingBatch {
  events: Uint8Array[];
  sizeBytes: number;
}

export class KvEventPublisher {
  /** With its real port. */
  readonly endpoint: string;
  readonly #options: KvEventPublisherOptions;
  readonly #socket: PubSocket;
  readonly #replay: KvEventReplay | null;
  readonly #buffer = new BatchBuffer();
  readonly #pending = new Map<string, PendingBatch>();
  /** Topics whose subscribers believe something. */
  readonly #topics = new Set<string>();
  #isFlushDue = false;
  #isClosed = false;
  #failedSendCount = 0;

  private constructor(
    options: KvEventPublisherOptions,
    open: { socket: PubSocket; endpoint: string; replay: ReplaySocket | null },
  ) {
    const { bus, log } = options;
    this.endpoint = open.endpoint;
    this.#options = options;
    this.#socket = open.socket;
    this.#replay = open.replay && new KvEventReplay(open.replay, this.#buffer, log);
    bus.subscribe('l1.chunks.stored', (chunks) => {
      const topic = this.#topicOf(chunks.modelName);
      for (const event of encodeStored(chunks)) this.#add(topic, event);
    });
    bus.subscribe('l1.chunks.removed', (chunks) => {
      this.#add(this.#topicOf(chunks.modelName), encodeRemoved(chunks));
    });
    bus.subscribe('l1.chunks.cleared', () => this.#addCleared());
    // That nothing may be relied on is all that the format can say here, and it is enough.
    bus.subscribe('l1.chunks.lost', () => this.#addCleared());
  }

  /** Throws `ERR_ADDRESS` and leaves nothing open when an endpoint is of no use. */
  static async open(options: KvEventPublisherOptions): Promise<KvEventPublisher> {
    const { endpoint, replayEndpoint, log } = options;
    const socket = new PubSocket({ linger: 0, sendTimeout: 0, sendHighWaterMark: QUEUE_COUNT_MAX });
    let address = '';
    try {
      address = await openPub(socket, endpoint);
      const replay = replayEndpoint === null ? null : await bindReplay(replayEndpoint);
      const publisher = new KvEventPublisher(options, { socket, endpoint: address, replay });
      log.info(`KV events are published on ${address}`, {
        topic: options.topic,
        replay: publisher.replayEndpoint,
      });
      return publisher;
    } catch (error) {
      socket.close();
      await removeIpcPath(address);
      throw error;
    }
  }

  get replayEndpoint(): string | null {
    return this.#replay?.endpoint ?? null;
  }

  status(): Record<string, unknown> {
    return {
      endpoint: this.endpoint,
      replay_endpoint: this.replayEndpoint,
      topic: this.#options.topic,
      next_seq: this.#buffer.nextSeq,
      buffered_batches: this.#buffer.count,
      buffered_bytes: this.#buffer.sizeBytes,
      replay_count: this.#replay?.replayCount ?? 0,
      bad_replay_request_count: this.#replay?.badRequestCount ?? 0,
      failed_send_count: this.#failedSendCount,
    };
  }

  async close(): Promise<void> {
    this.#flush();
    this.#isClosed = true;
    this.#socket.close();
    await removeIpcPath(this.endpoint);
    await this.#replay?.close();
  }

  #topicOf(modelName: string): string {
    return this.#options.topic.replaceAll(MODEL_PLACEHOLDER, () => modelName);
  }

  #addCleared(): void {
    for (const topic of [...this.#topics]) this.#add(topic, encodeCleared());
    // Nobody believes anything now, until the next event of a topic.
    this.#topics.clear();
  }

  #add(topic: string, event: Uint8Array): void {
    if (this.#isClosed) return;
    this.#topics.add(topic);
    const batch = this.#pending.get(topic) ?? { events: [], sizeBytes: 0 };
    this.#pending.set(topic, batch);
    batch.events.push(event);
    batch.sizeBytes += event.length;
    if (batch.sizeBytes >= BATCH_BYTES_MAX) this.#send(topic, batch);
    if (this.#isFlushDue) return;
    this.#isFlushDue = true;
    setImmediate(() => this.#flush());
  }

  #flush(): void {
    this.#isFlushDue = false;
    for (const [topic, batch] of this.#pending) this.#send(topic, batch);
  }

  #send(topic: string, { events }: PendingBatch): void {
    this.#pending.delete(topic);
    if (this.#isClosed) return;
    const payload = encodeBatch(this.#options.clock.wallMs(), events);
    const seq = this.#buffer.push(payload);
    this.#socket.send([topic, encodeSeq(seq), payload]).catch((error) => {
      // Subscribers see a gap and can ask for it.
      this.#failedSendCount += 1;
      this.#options.log.limited('warn', 'kv-events', `KV events are not published: ${error}`);
    });
  }
}

async function openPub(socket: PubSocket, given: string): Promise<string> {
  if (BOUND.test(given)) return await bindEndpoint(socket, await resolveEndpoint(given));
  try {
    socket.connect(given);
    return given;
  } catch (error) {
    throw new KvdError('ERR_ADDRESS', `endpoint ${given} cannot be connected to`, { cause: error });
  }
}
