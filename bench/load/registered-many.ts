/**
 * Do workers and sessions that have nothing to do with a LOOKUP make it slower?
 *
 * One server, two configurations in turn (A B A B …), so that drift of the machine cancels:
 *
 *   A   1 instance, no session
 *   B   200 instances of 20 models, on both transfer paths, and 10,000 open sessions that hold
 *       chunks
 *
 * "No measurable difference" means: the medians of B's rounds differ from those of A's by no more
 * than A's rounds differ among themselves.
 */
import { randomBytes } from 'node:crypto';
import { KvdClient } from '../../src/client/client.ts';
import { Caller } from '../../src/client/load/bench-worker.ts';
import { BlockPattern } from '../../src/client/load/block-pattern.ts';
import { fitCacheShape } from '../../src/client/load/cache-shape.ts';
import { LmcacheDrivenWorker } from '../../src/client/load/lmcache-driven-worker.ts';
import { newInstanceId } from '../../src/client/load/transfer-mode.ts';
import { inParallel } from '../../test/support/waiting.ts';
import { LookupProbe } from './lookup-probe.ts';
import { micros, type Report, summarize } from './report.ts';
import { openServer } from './server.ts';
import { SmallObjectWorker } from './small-object-worker.ts';

const INSTANCE_COUNT = 200;
const MODEL_COUNT = 20;
const SESSION_COUNT = 10_000;
/** Prompts that the sessions hold; none is held by more than 100 of them. */
const HELD_PROMPT_COUNT = 100;
const CHUNKS_PER_SESSION = 4;
const REQUESTS_IN_FLIGHT = 32;
const PROBED_SEQUENCE = 1_000_000;
const PROBED_TOKEN_COUNTS = [1024, 8192] as const;
const PAUSE_MS = 1;
const WARM_UP_MS = 2_000;
const TIMEOUT_MS = 20_000;
const FLAGS = { '--chunk-size': 256, '--l1-size-gb': 0.5, '--eviction-policy': 'LRU' };

type Configuration = 'A' | 'B';
interface Round {
  readonly configuration: Configuration;
  readonly tokenCount: number;
  readonly samples: Float64Array;
}

interface Unregistering {
  unregister(): Promise<void>;
}

export async function measureRegisteredMany(options: {
  readonly url: string | null;
  readonly rounds: number;
  readonly seconds: number;
}): Promise<Report> {
  const server = await openServer(FLAGS, options.url);
  const probe = new LookupProbe();
  const modelName = `registered-many-${randomBytes(6).toString('hex')}`;
  const rounds: Round[] = [];
  try {
    const first = await SmallObjectWorker.register(server.url, modelName);
    const chunkCount = Math.max(...PROBED_TOKEN_COUNTS) / first.chunkSizeTokens;
    await first.store(PROBED_SEQUENCE, chunkCount);
    for (let i = 0; i < HELD_PROMPT_COUNT; i += 1) await first.store(i, CHUNKS_PER_SESSION);
    const lookUp = (tokenCount: number, durationMs: number) =>
      probe.measure(
        {
          url: server.url,
          modelName,
          tokenCount,
          sequences: [PROBED_SEQUENCE],
          expectedChunkCount: tokenCount / first.chunkSizeTokens,
          pauseMs: PAUSE_MS,
        },
        durationMs,
      );
    const measureRound = async (configuration: Configuration) => {
      for (const tokenCount of PROBED_TOKEN_COUNTS) {
        const samples = await lookUp(tokenCount, options.seconds * 1000);
        rounds.push({ configuration, tokenCount, samples });
      }
    };
    for (const tokenCount of PROBED_TOKEN_COUNTS) await lookUp(tokenCount, WARM_UP_MS);
    for (let round = 0; round < options.rounds; round += 1) {
      await measureRound('A');
      const crowd = await Crowd.open(server.url, first);
      await measureRound('B');
      await crowd.close();
    }
    await first.unregister();
    return reportOf(rounds);
  } finally {
    await probe.stop();
    await server.stop();
  }
}

/** All that configuration B has more than A. */
class Crowd {
  readonly #first: SmallObjectWorker;
  readonly #workers: Unregistering[] = [];
  readonly #sessions: string[] = [];

  private constructor(first: SmallObjectWorker) {
    this.#first = first;
  }

  static async open(url: string, first: SmallObjectWorker): Promise<Crowd> {
    const crowd = new Crowd(first);
    const { modelName, chunkSizeTokens } = first;
    for (let i = 1; i < INSTANCE_COUNT; i += 1) {
      const name = i % MODEL_COUNT === 0 ? modelName : `${modelName}-${i % MODEL_COUNT}`;
      // Every other turn round the models on the other path.
      const isEngineDriven = Math.floor(i / MODEL_COUNT) % 2 === 0;
      const worker = isEngineDriven
        ? await SmallObjectWorker.register(url, name)
        : await registerLmcacheDriven(url, { modelName: `${name}-blocks`, chunkSizeTokens });
      crowd.#workers.push(worker);
    }
    await inParallel(SESSION_COUNT, REQUESTS_IN_FLIGHT, async (i) => {
      const sequence = i % HELD_PROMPT_COUNT;
      crowd.#sessions.push(await first.openSession(sequence, CHUNKS_PER_SESSION, `open-${i}`));
    });
    return crowd;
  }

  async close(): Promise<void> {
    await inParallel(this.#sessions.length, REQUESTS_IN_FLIGHT, (i) =>
      this.#first.endSession(this.#sessions[i] as string),
    );
    for (const worker of this.#workers) await worker.unregister();
  }
}

async function registerLmcacheDriven(
  url: string,
  { modelName, chunkSizeTokens }: { modelName: string; chunkSizeTokens: number },
): Promise<Unregistering> {
  const client = KvdClient.connect(url);
  const group = {
    kvSize: 2,
    headCount: 1,
    headSize: 16,
    dtype: 'bfloat16',
    itemSizeBytes: 2,
    layerCount: 1,
  } as const;
  const shape = fitCacheShape(
    { blockCount: null, slotsPerBlock: 16, groups: [group] },
    { chunkSizeTokens, tokenCountMax: chunkSizeTokens },
  );
  const worker = new LmcacheDrivenWorker({
    caller: new Caller(client, TIMEOUT_MS),
    instanceId: newInstanceId(),
    modelName,
    shape,
    pattern: NO_PATTERN,
  });
  await worker.register();
  const unregister = async () => {
    await worker.unregister();
    worker.close();
    client.close();
  };
  return { unregister };
}

/** These workers store nothing. */
const NO_PATTERN = new BlockPattern(0);

function reportOf(rounds: readonly Round[]): Report {
  const verdicts: Report['verdicts'][number][] = [];
  const rows = PROBED_TOKEN_COUNTS.flatMap((tokenCount) => {
    const roundsOf = (configuration: Configuration) =>
      rounds.filter((r) => r.configuration === configuration && r.tokenCount === tokenCount);
    const mediansOf = (configuration: Configuration) =>
      roundsOf(configuration).map(({ samples }) => micros(summarize(samples).p50Ms));
    const mean = (values: readonly number[]) =>
      values.reduce((sum, value) => sum + value, 0) / values.length;
    const [a, b] = [mediansOf('A'), mediansOf('B')];
    verdicts.push({
      what: `LOOKUP ${tokenCount / 1024}k hit p50, B − A (target: spread of A's rounds)`,
      value: mean(b) - mean(a),
      unit: ' µs',
      target: Math.max(...a) - Math.min(...a),
    });
    return (['A', 'B'] as const).map((configuration) => {
      const all = roundsOf(configuration).flatMap(({ samples }) => [...samples]);
      const { p50Ms, p99Ms, maxMs, count } = summarize(all);
      const what =
        configuration === 'A' ? '1 instance, 0 sessions' : '200 instances, 10,000 sessions';
      const medians = mediansOf(configuration);
      const range = `${Math.min(...medians)} to ${Math.max(...medians)}`;
      return [
        `${tokenCount / 1024}k`,
        what,
        micros(p50Ms),
        range,
        micros(p99Ms),
        micros(maxMs),
        count,
      ];
    });
  });
  return {
    name: 'registered-many',
    header: ['LOOKUP hit', 'server has', 'p50 µs', 'p50 of rounds', 'p99 µs', 'max µs', 'n'],
    rows,
    verdicts,
    details: rounds.map(({ samples, ...rest }) => ({ ...rest, ...summarize(samples) })),
  };
}
