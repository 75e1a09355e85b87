/** Bounds of the ZMQ door. Each has a defined effect when it is reached. */
import { GIB, MIB } from '../units.ts';

export interface WireLimits {
  /**
   * All frames of a message together; `Admission` has a lower bound for each operation without
   * data. Above: the request is refused.
   */
  readonly messageBytesMax: number;
  /** One frame, inside ZMQ. Above: ZMQ closes the connection without a reply, the last resort. */
  readonly frameBytesMax: number;
  /** Connections that are remembered. Above: those not heard from for longest are forgotten. */
  readonly connectionCountMax: number;
  /** Requests without a reply yet, per connection. Above: `OVERLOADED`. */
  readonly inFlightCountMax: number;
  /** The same for all connections together. Above: `OVERLOADED` for those beyond their reserve. */
  readonly inFlightCountMaxTotal: number;
  /** Requests in flight that every connection may have, whatever the others have. */
  readonly inFlightCountReserved: number;
  /** Replies that wait for a client that does not read. Above: dropped and counted. */
  readonly queueCountMax: number;
  readonly queueBytesMax: number;
  readonly queueBytesMaxTotal: number;
  /** Streams that a connection, and all together, may have open. Above: `OVERLOADED`. */
  readonly streamCountMax: number;
  readonly streamCountMaxTotal: number;
}

export const DEFAULT_WIRE_LIMITS: WireLimits = {
  // A LOOKUP of 128k tokens has 0.65 MB; an inline COMMIT_STORE can have gigabytes, and its data
  // is one msgpack `bin`, which ends at 4 GiB.
  messageBytesMax: 5 * GIB,
  frameBytesMax: 8 * GIB,
  connectionCountMax: 65_536,
  // vLLM keeps one request per running prompt open; hundreds are normal, thousands are not.
  inFlightCountMax: 4096,
  inFlightCountMaxTotal: 65_536,
  // A worker has a transfer for each running prompt and a scheduler asks in turn; with this many
  // both go on, if more slowly.
  inFlightCountReserved: 16,
  // A client that pipelines sees its replies queue up for milliseconds; bytes are the real bound.
  queueCountMax: 65_536,
  queueBytesMax: 64 * MIB,
  queueBytesMaxTotal: 512 * MIB,
  // An engine has one subscription; one that resynchronises opens the next before the last has
  // ended.
  streamCountMax: 8,
  streamCountMaxTotal: 4096,
};

/**
 * Elements of all arrays and pairs of all maps of one message, skipped ones included. 1,048,576
 * block ids are what the reference takes for one request (spec engine 8); the rest is for all other
 * things in it. Above: the message is refused as malformed. An element costs 2 to 100 ns.
 */
export const ELEMENTS_PER_MESSAGE_MAX = 1_048_576 + 65_536;
/**
 * Elements of a list whose elements are maps, lists or wrappers (µs each): tensors and groups of a
 * registration, kernel groups of a transfer, shapes, records of a scheduler's step. Models have a
 * few hundred layers, schedulers run up to some thousand prompts at once.
 */
export const LIST_COUNT_MAX = 4096;
/**
 * The same where an element stands for a chunk: 1,048,576 tokens are 4096 chunks, and keys of
 * objects name each chunk once per rank.
 */
export const CHUNK_LIST_COUNT_MAX = 65_536;

/**
 * Messages that ZMQ itself queues per client. ZMQ counts messages, not bytes, and never says when
 * it has sent, so this stays small: 64 replies of 32 MiB are 2 GiB.
 */
export const SEND_HIGH_WATER_MARK = 64;
/** Requests of one client that wait in ZMQ. When full, TCP slows the client down. */
export const RECEIVE_HIGH_WATER_MARK = 256;
/** Connections that may wait to be accepted: a whole rack of workers starts at once. */
export const ACCEPT_BACKLOG = 1024;
/** How long ZMQ may go on sending after close, so that the last replies leave the process. */
export const CLOSE_LINGER_MS = 200;

/**
 * A burst of messages is interrupted after this many of them, or after this much time spent in
 * handlers, so that timers, completions of copies and HTTP get their turn. 2 ms is what one LOOKUP
 * may wait behind others; 64 messages make the cost of one turn (about 2 µs) vanish.
 */
export const BATCH_COUNT_MAX = 64;
export const BATCH_MS_MAX = 2;
