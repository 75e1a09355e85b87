/**
 * The measuring client: looks prompts up, one at a time, with a pause between, in a process of its
 * own. A sample is the time from LOOKUP to the known result, two round trips.
 *
 * The same code measures kvd and the echo server, whose replies have no response in them, so the
 * difference of the two is kvd's. The session of each lookup is ended, outside of the sample.
 */
import { setTimeout as pause } from 'node:timers/promises';
import { KvdClient } from '../../src/client/client.ts';
import { promptOf } from '../../src/client/load/bench-requests.ts';
import { Child, serve } from './child.ts';

const TIMEOUT_MS = 20_000;

export interface LookupPlan {
  readonly url: string;
  readonly modelName: string;
  readonly tokenCount: number;
  /** Prompts that are looked up in turn. */
  readonly sequences: readonly number[];
  /** Null for the echo server. */
  readonly expectedChunkCount: number | null;
  readonly pauseMs: number;
}

type ProbeRequest = LookupPlan | 'end';

export class LookupProbe {
  readonly #child = new Child<ProbeRequest>(import.meta.filename);

  /** Returns when the first lookup has been answered. */
  async begin(plan: LookupPlan): Promise<void> {
    await this.#child.ask(plan);
  }

  /** Milliseconds of every lookup since. */
  end(): Promise<Float64Array> {
    return this.#child.ask('end');
  }

  async measure(plan: LookupPlan, durationMs: number): Promise<Float64Array> {
    await this.begin(plan);
    await pause(durationMs);
    return await this.end();
  }

  stop(): Promise<void> {
    return this.#child.stop();
  }
}

// ---------------------------------------------------------------- in the process of its own

class Probe {
  readonly #clients = new Map<string, KvdClient>();
  #isEnding = false;
  #run: Promise<Float64Array> | null = null;

  async handle(request: ProbeRequest): Promise<Float64Array | null> {
    if (request === 'end') {
      this.#isEnding = true;
      return await (this.#run as Promise<Float64Array>);
    }
    this.#isEnding = false;
    const { promise, resolve, reject } = Promise.withResolvers<void>();
    this.#run = this.#repeat(request, resolve);
    this.#run.catch(reject);
    await promise;
    return null;
  }

  async #repeat(plan: LookupPlan, onFirst: () => void): Promise<Float64Array> {
    const client = this.#clientOf(plan.url);
    const prompts = plan.sequences.map((sequence) =>
      promptOf(sequence, plan.tokenCount, plan.modelName),
    );
    const samples: number[] = [];
    while (!this.#isEnding) {
      const prompt = prompts[samples.length % prompts.length];
      const key = prompt?.lookupKey(`probe-${samples.length}`);
      if (!key) throw new Error('a plan has at least one prompt');
      const { requestId } = key;
      const startMs = performance.now();
      await client.call('LOOKUP', { key, tpSize: 1 }, TIMEOUT_MS);
      const { value: hits } = await client.call('QUERY_PREFETCH_STATUS', { requestId }, TIMEOUT_MS);
      samples.push(performance.now() - startMs);
      if (hits !== plan.expectedChunkCount) {
        throw new Error(`LOOKUP: expected ${plan.expectedChunkCount} chunks, got ${hits}`);
      }
      await client.call('END_SESSION', { requestId }, TIMEOUT_MS);
      onFirst();
      await pause(plan.pauseMs);
    }
    return Float64Array.from(samples);
  }

  #clientOf(url: string): KvdClient {
    const known = this.#clients.get(url);
    if (known) return known;
    const client = KvdClient.connect(url);
    this.#clients.set(url, client);
    return client;
  }
}

if (import.meta.main) {
  const probe = new Probe();
  serve<ProbeRequest>((request) => probe.handle(request));
}
