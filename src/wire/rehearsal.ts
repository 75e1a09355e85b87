/**
 * A rehearsal: made-up requests right after the start, so that the first real ones meet compiled
 * code. V8 interprets a function until it has run often enough; without this a PREPARE/COMMIT pair
 * took twice as long in the first hundred requests as after two thousand, and a server that is
 * restarted under load gets those hundreds at once.
 *
 *   real house     doors open ─┬──────────── requests ────────────▶
 *   rehearsal                  └─▶ house 1 ─▶ house 2 ─▶ over, nothing left
 *
 * A house is what stands behind a door, and the door: the same parts as the real ones, put together
 * by the composition root, with an L1 of a few megabytes. The requests come over a socket inside
 * the process, so everything runs that a client's request would run, from its frames to the frames
 * of its reply. Only the code is shared with the real house.
 *
 * Two houses, because V8 compiles for the objects that it has seen: code made for the parts of one
 * house alone is thrown away when the real ones come. The first speaks the oldest dialect on offer,
 * the second the newest one.
 *
 * Invariants
 *   - One request at a time, with a turn of the event loop between: a real one waits behind one of
 *     the rehearsal, or the opening of a house, at most. That is 7 ms for a house, up to 5 ms for
 *     the first request of its kind, and far below a millisecond for the others.
 *   - A house is closed again, whatever happens in it.
 *   - It fails and is stopped without harm: then the first requests are slower, as said above.
 *
 * STORE and RETRIEVE are not rehearsed. They need memory of an engine, and copy for longer than
 * they compute.
 */
import { Dealer } from 'zeromq';
import type { Clock, Timer } from '../clock.ts';
import type { TokenSpan } from '../core/chunk-hasher.ts';
import type { CacheKey, OperationName, RequestOf } from '../engine/api.ts';
import type { Logger } from '../observability/log.ts';
import { callNamed, type Dialect, type DialectChoice, offeredDialects } from './dialect.ts';
import { integerFrame, operationFrame } from './frames.ts';

export interface RehearsalHouse {
  /** Address of its door, inside the process. */
  readonly endpoint: string;
  readonly chunkSizeTokens: number;
  /** False: no worker that moves its bytes itself is taken. */
  readonly hasSlots: boolean;
  /** Requests that were answered as they should be. */
  servedCount(): number;
  close(): Promise<void>;
}

export interface RehearsalOptions {
  openHouse(): Promise<RehearsalHouse>;
  readonly dialect: DialectChoice;
  /** Runs after the last house has been closed, unless the rehearsal was stopped. */
  readonly onEnd: () => void;
  readonly clock: Clock;
  readonly log: Logger;
}

/** The first clients have waited for the doors; they come first. */
const DELAY_MS = 5;
/** Twice this number of rounds and V8 has compiled what a round calls (see `cli/server.ts`). */
const ROUND_COUNT = 16;
/** Every so many rounds a longer prompt: loops over chunks run, too. */
const LONG_ROUND_INTERVAL = 4;
const LONG_PROMPT_TOKENS = 4096;
/** A reply takes less than a millisecond; this is for one that never comes. */
const REPLY_TIMEOUT_MS = 1_000;

/** msgpack: `dd` and a length, then `cd` and two bytes for each token. */
const ARRAY_HEADER_BYTES = 5;
const TOKEN_BYTES = 3;

const INSTANCE_ID = 2n ** 62n;
const MODEL = { modelName: 'rehearsal', worldSize: 1 };

export class Rehearsal {
  readonly #options: RehearsalOptions;
  readonly #timer: Timer;
  #isStopped = false;
  #sentCount = 0;
  #servedCount = 0;
  #running: Promise<void> = Promise.resolve();

  /** Begins by itself, shortly after. */
  constructor(options: RehearsalOptions) {
    this.#options = options;
    this.#timer = options.clock.after(DELAY_MS, () => {
      this.#running = this.#run();
    });
  }

  /** Ends it behind the request that runs. Never rejects. */
  async stop(): Promise<void> {
    this.#isStopped = true;
    this.#timer.cancel();
    await this.#running;
  }

  async #run(): Promise<void> {
    const { clock, dialect, log } = this.#options;
    const startMs = clock.preciseMs();
    const dialects = offeredDialects(dialect);
    try {
      for (const spoken of [dialects[0], dialects.at(-1)]) {
        if (!this.#isStopped) await this.#useHouse(spoken as Dialect);
      }
      const ms = (clock.preciseMs() - startMs).toFixed(0);
      log.debug(`rehearsal: ${this.#servedCount} of ${this.#sentCount} requests served, ${ms} ms`);
    } catch (error) {
      log.debug(`rehearsal given up, the first requests will be slower: ${String(error)}`);
    }
    if (!this.#isStopped) this.#options.onEnd();
  }

  async #useHouse(dialect: Dialect): Promise<void> {
    const house = await this.#options.openHouse();
    let client: RehearsalClient | null = null;
    try {
      client = new RehearsalClient(house.endpoint, dialect);
      if (house.hasSlots) await client.register();
      for (let round = 0; round < ROUND_COUNT; round += 1) {
        for (const play of roundOf(round, house)) {
          if (this.#isStopped) return;
          await play(client);
        }
      }
    } finally {
      client?.close();
      this.#sentCount += client?.sentCount ?? 0;
      this.#servedCount += house.servedCount();
      await house.close();
    }
  }
}

/** Sends one request after the other and looks at no reply. */
class RehearsalClient {
  readonly #socket: Dealer;
  readonly #dialect: Dialect;
  sentCount = 0;

  constructor(endpoint: string, dialect: Dialect) {
    this.#dialect = dialect;
    this.#socket = new Dealer({ linger: 0, receiveTimeout: REPLY_TIMEOUT_MS });
    this.#socket.connect(endpoint);
  }

  async call<N extends OperationName>(name: N, request: RequestOf<N>): Promise<void> {
    const call = callNamed(this.#dialect, name);
    this.sentCount += 1;
    const op = operationFrame(call);
    const uid = integerFrame(this.sentCount);
    await this.#socket.send([uid, op, ...call.encodeRequest(request)]);
    await this.#socket.receive();
  }

  register(): Promise<void> {
    return this.call('REGISTER_KV_CACHE_ENGINE_DRIVEN_CONTEXT', {
      ...MODEL,
      instanceId: INSTANCE_ID,
      blockSize: 16,
      layerCount: 1,
      hiddenSize: 8,
      dtype: 'bfloat16',
      usesMla: false,
      physicalSlotCount: null,
    });
  }

  close(): void {
    this.#socket.close();
  }
}

type Play = (client: RehearsalClient) => Promise<void>;

/** What a prompt goes through: a miss, a store, a hit that is read, a hit that is given up. */
function roundOf(round: number, { chunkSizeTokens, hasSlots }: RehearsalHouse): Play[] {
  const isLong = round % LONG_ROUND_INTERVAL === 0;
  const chunkCount = isLong ? Math.max(1, Math.floor(LONG_PROMPT_TOKENS / chunkSizeTokens)) : 1;
  const tokens = tokensOf(chunkCount * chunkSizeTokens, round);
  const keyOf = (requestId: string, workerId: number | null): CacheKey => ({
    ...MODEL,
    workerId,
    tokens,
    startToken: 0,
    endToken: tokens.count,
    requestId,
    cacheSalt: '',
    readerCount: 1,
    requestConfigs: null,
  });
  const [read, freed] = [`rehearsal-read-${round}`, `rehearsal-freed-${round}`];
  const own = { key: keyOf(read, 0), instanceId: INSTANCE_ID };
  const wanted = { key: keyOf(read, null), tpSize: 1 };
  const unwanted = { key: keyOf(freed, null), tpSize: 1 };
  const lookup: Play[] = [
    (client) => client.call('LOOKUP', wanted),
    (client) => client.call('QUERY_PREFETCH_STATUS', { requestId: read }),
  ];
  const store: Play[] = [
    (client) => client.call('PREPARE_STORE', own),
    (client) => client.call('COMMIT_STORE', { ...own, data: { kind: 'none' } }),
  ];
  const retrieve: Play[] = [
    (client) => client.call('PREPARE_RETRIEVE', own),
    (client) => client.call('COMMIT_RETRIEVE', own),
  ];
  return [
    ...lookup,
    ...(hasSlots ? [...store, ...lookup, ...retrieve] : []),
    (client) => client.call('END_SESSION', { requestId: read }),
    (client) => client.call('LOOKUP', unwanted),
    (client) => client.call('QUERY_PREFETCH_STATUS', { requestId: freed }),
    (client) => client.call('FREE_LOOKUP_LOCKS', unwanted),
    (client) => client.call('END_SESSION', { requestId: freed }),
    (client) => client.call('PING', { instanceId: INSTANCE_ID }),
  ];
}

/** An array of 16-bit token ids, another one for each `seed`, as it stands in a frame. */
function tokensOf(count: number, seed: number): TokenSpan {
  const bytes = Buffer.alloc(ARRAY_HEADER_BYTES + count * TOKEN_BYTES);
  bytes[0] = 0xdd;
  bytes.writeUInt32BE(count, 1);
  for (let i = 0; i < count; i += 1) {
    const offset = ARRAY_HEADER_BYTES + i * TOKEN_BYTES;
    bytes[offset] = 0xcd;
    bytes[offset + 1] = 1 + seed;
    bytes[offset + 2] = i;
  }
  return { bytes, count };
}
