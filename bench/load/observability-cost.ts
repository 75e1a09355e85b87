/**
 * What does observing cost? Two servers that differ in `--disable-observability` only, the same
 * requests for both in short turns (A B B A B A A B), and for each turn the time that it took and
 * the processor time of the server's main thread, all of it, so also what is drained later:
 *
 *   lookups        LOOKUP of 8192 tokens that are there, its result, and the end of its session
 *   stores         STORE of four chunks of 1 MiB, new ones, LMCache-driven
 *   small stores   PREPARE and COMMIT of four chunks of 4 KiB, new ones: what a store costs beside
 *                  its bytes
 *
 * Requests are encoded before their turn and many are under way at a time, so that the server is
 * what everybody waits for. Machines drift, so turns are short, the eight of a row are compared,
 * and the median of all rows counts. Two equal processes differ, too, by some per cent for as long
 * as they live (where their memory lies), so each round has servers of its own; who is started
 * first changes. The figures of the rounds stand beside their mean: their spread is the error.
 */
import { setTimeout as pause } from 'node:timers/promises';
import { KvdClient } from '../../src/client/client.ts';
import { type BenchPrompt, promptOf } from '../../src/client/load/bench-requests.ts';
import { Caller } from '../../src/client/load/bench-worker.ts';
import { BlockPattern } from '../../src/client/load/block-pattern.ts';
import { type CacheGeometry, fitCacheShape } from '../../src/client/load/cache-shape.ts';
import {
  CPU_CLIENT_EVENT,
  LmcacheDrivenWorker,
} from '../../src/client/load/lmcache-driven-worker.ts';
import { newInstanceId } from '../../src/client/load/transfer-mode.ts';
import type { Flags } from '../../test/support/server-process.ts';
import { inParallel, percentile } from '../../test/support/waiting.ts';
import { type PreparedCall, prepareCall, sendPrepared } from './prepared-calls.ts';
import type { Report } from './report.ts';
import { coreUseOf, openServer, type Server } from './server.ts';
import { SmallObjectWorker } from './small-object-worker.ts';

const FLAGS: Flags = { '--chunk-size': 256, '--l1-size-gb': 0.5, '--eviction-policy': 'LRU' };
const CHUNK_SIZE_TOKENS = 256;
const LOOKED_UP_CHUNKS = 32;
const STORED_TOKENS = 4 * CHUNK_SIZE_TOKENS;
const TIMEOUT_MS = 60_000;
/** Until the code of both is compiled for good. */
const WARM_UP_PAIRS = 8;
const PAIRS_PER_ROUND = 8;

const ORDER = [
  ...(['observed', 'blind', 'blind', 'observed'] as const),
  ...(['blind', 'observed', 'observed', 'blind'] as const),
];
const TURNS_PER_SIDE = ORDER.length / 2;
/** For what comes behind the last reply. */
const SETTLE_MS = 30;
/** Keys and values of a token in one layer of 256 elements: 1 MiB per chunk in four layers. */
const GEOMETRY: CacheGeometry = {
  blockCount: null,
  slotsPerBlock: 16,
  groups: [
    { kvSize: 2, headCount: 4, headSize: 64, dtype: 'bfloat16', itemSizeBytes: 2, layerCount: 4 },
  ],
};
/** Last bytes of responses. */
const HITS_32 = 0x20;
const TRUE = 0xc3;

/** One request as its client sees it: calls that follow each other. */
type Steps = readonly PreparedCall[];

interface Kind {
  readonly name: string;
  readonly requestsPerTurn: number;
  readonly inFlightCount: number;
  prepare(side: Side, sequence: number): Steps;
}

const KINDS: readonly Kind[] = [
  {
    name: 'lookups',
    requestsPerTurn: 200,
    inFlightCount: 16,
    prepare: ({ lookedUp }, sequence) => {
      const key = lookedUp.lookupKey(`look-${sequence}`);
      const { requestId } = key;
      return [
        prepareCall('LOOKUP', { key, tpSize: 1 }),
        prepareCall('QUERY_PREFETCH_STATUS', { requestId }, HITS_32),
        prepareCall('END_SESSION', { requestId }),
      ];
    },
  },
  {
    name: 'stores',
    requestsPerTurn: 50,
    inFlightCount: 4,
    prepare: ({ modelName, instanceId, blockIds }, sequence) => {
      const key = promptOf(sequence, STORED_TOKENS, modelName).transferKey('store');
      return [prepareCall('STORE', { key, instanceId, blockIds, event: CPU_CLIENT_EVENT }, TRUE)];
    },
  },
  {
    name: 'small stores',
    requestsPerTurn: 200,
    inFlightCount: 16,
    prepare: ({ small: { modelName, instanceId } }, sequence) => {
      const key = promptOf(sequence, STORED_TOKENS, modelName).transferKey('store');
      const data = { kind: 'none' } as const;
      return [
        prepareCall('PREPARE_STORE', { key, instanceId }),
        prepareCall('COMMIT_STORE', { key, instanceId, data }, TRUE),
      ];
    },
  },
];

/** One of the two servers, and its workers. */
class Side {
  readonly modelName = 'observed';
  readonly instanceId = newInstanceId();
  readonly blockIds: readonly (readonly number[])[];
  readonly small: SmallObjectWorker;
  readonly lookedUp: BenchPrompt;
  readonly #server: Server;
  readonly #client: KvdClient;
  readonly #worker: LmcacheDrivenWorker;

  private constructor(server: Server, small: SmallObjectWorker) {
    const shape = fitCacheShape(GEOMETRY, {
      chunkSizeTokens: CHUNK_SIZE_TOKENS,
      tokenCountMax: STORED_TOKENS,
    });
    const pattern = new BlockPattern(Math.max(...shape.planes.map((plane) => plane.pieceBytes)));
    this.#server = server;
    this.#client = KvdClient.connect(server.url);
    const caller = new Caller(this.#client, TIMEOUT_MS);
    const { instanceId, modelName } = this;
    this.#worker = new LmcacheDrivenWorker({ caller, instanceId, modelName, shape, pattern });
    this.blockIds = [Array.from({ length: shape.blockCount }, (_, i) => i)];
    this.small = small;
    this.lookedUp = promptOf(0, LOOKED_UP_CHUNKS * CHUNK_SIZE_TOKENS, small.modelName);
  }

  static async open(flags: Flags): Promise<Side> {
    const server = await openServer({ ...FLAGS, ...flags }, null);
    const side = new Side(server, await SmallObjectWorker.register(server.url, 'small'));
    await side.#worker.register();
    return side;
  }

  /** The stores of other turns push it out. */
  async storeLookedUpPrompt(): Promise<void> {
    await this.small.storeMissing(this.lookedUp.sequence, LOOKED_UP_CHUNKS);
  }

  async run(steps: readonly Steps[], inFlightCount: number): Promise<Turn> {
    const pid = this.#server.pid as number;
    const [runMs, startMs] = [coreUseOf(pid).runMs, performance.now()];
    await inParallel(steps.length, inFlightCount, async (i) => {
      for (const call of steps[i] as Steps) await sendPrepared(this.#client, call);
    });
    const elapsedMs = performance.now() - startMs;
    await pause(SETTLE_MS);
    return { elapsedMs, runMs: coreUseOf(pid).runMs - runMs };
  }

  async close(): Promise<void> {
    await this.#worker.unregister();
    await this.small.unregister();
    this.#worker.close();
    this.#client.close();
    await this.#server.stop();
  }
}

interface Turn {
  readonly elapsedMs: number;
  /** Processor time of the server's main thread. */
  readonly runMs: number;
}

const NO_TIME: Turn = { elapsedMs: 0, runMs: 0 };

/** All turns of each. */
interface Pair {
  readonly observed: Turn;
  readonly blind: Turn;
}

/** Pairs by kind. */
type Round = ReadonlyMap<string, readonly Pair[]>;

export async function measureObservabilityCost({ rounds }: { rounds: number }): Promise<Report> {
  const measured: Round[] = [];
  for (let round = 0; round < rounds; round += 1) {
    measured.push(await measureRound(round % 2 === 0));
    console.error(`round ${round + 1} of ${rounds}`);
  }
  return reportOf(measured);
}

async function measureRound(isObservedFirst: boolean): Promise<Round> {
  const flagsOf = (isObserved: boolean): Flags =>
    isObserved ? {} : { '--disable-observability': true };
  const first = await Side.open(flagsOf(isObservedFirst));
  const second = await Side.open(flagsOf(!isObservedFirst));
  const [observed, blind] = isObservedFirst ? [first, second] : [second, first];
  const round = new Map<string, Pair[]>(KINDS.map(({ name }) => [name, []]));
  let sequence = 1;
  try {
    for (let pairIndex = 0; pairIndex < WARM_UP_PAIRS + PAIRS_PER_ROUND; pairIndex += 1) {
      for (const kind of KINDS) {
        const pair = await measurePair({ observed, blind }, kind, sequence);
        sequence += ORDER.length * kind.requestsPerTurn;
        if (pairIndex >= WARM_UP_PAIRS) round.get(kind.name)?.push(pair);
      }
    }
    return round;
  } finally {
    await first.close();
    await second.close();
  }
}

/** A drift of the machine, and what a turn leaves behind, favour nobody. */
async function measurePair(
  sides: { readonly observed: Side; readonly blind: Side },
  kind: Kind,
  firstSequence: number,
): Promise<Pair> {
  const spent = { observed: NO_TIME, blind: NO_TIME };
  let sequence = firstSequence;
  for (const name of ORDER) {
    const side = sides[name];
    const steps = Array.from({ length: kind.requestsPerTurn }, (_, i) =>
      kind.prepare(side, sequence + i),
    );
    sequence += kind.requestsPerTurn;
    await side.storeLookedUpPrompt();
    spent[name] = sum(spent[name], await side.run(steps, kind.inFlightCount));
  }
  return spent;
}

const sum = (a: Turn, b: Turn): Turn => ({
  elapsedMs: a.elapsedMs + b.elapsedMs,
  runMs: a.runMs + b.runMs,
});

const median = (values: readonly number[]): number => percentile(values, 0.5);
const mean = (values: readonly number[]): number =>
  values.reduce((sum, value) => sum + value, 0) / values.length;

const MEASURES = [
  { what: 'time', of: ({ elapsedMs }: Turn) => elapsedMs },
  { what: 'processor time', of: ({ runMs }: Turn) => runMs },
] as const;

function reportOf(rounds: readonly Round[]): Report {
  const rows = KINDS.flatMap(({ name, requestsPerTurn }) =>
    MEASURES.map(({ what, of }) => {
      const pairs = rounds.map((round) => round.get(name) as readonly Pair[]);
      const micros = (side: keyof Pair) =>
        (1000 * median(pairs.flat().map((pair) => of(pair[side])))) /
        (TURNS_PER_SIDE * requestsPerTurn);
      const percents = pairs.map((list) =>
        median(list.map(({ observed, blind }) => 100 * (of(observed) / of(blind) - 1))),
      );
      const each = percents.map((percent) => percent.toFixed(1)).join(', ');
      return [name, what, micros('observed'), micros('blind'), mean(percents), each];
    }),
  );
  return {
    name: 'observability-cost',
    header: ['requests', 'measure', 'observed µs', 'not observed µs', 'per cent', 'by round'],
    rows,
    verdicts: rows
      .filter(([, what]) => what === 'time')
      .map(([name, , , , percent]) => ({
        what: `observing ${name}`,
        value: percent as number,
        unit: ' %',
        target: 2,
      })),
    details: rounds.map((round) => Object.fromEntries(round)),
  };
}
