/**
 * Does a PING wait for a scrape? A server with over 2,000 series is scraped again and again by a
 * process of its own, while this one sends PINGs back to back. Scrapes of a second server show what
 * the work of the two other processes does to PINGs on a machine with few cores; the difference is
 * what a scrape does to the server.
 *
 * A thousand tenants make the series: each has its own in the counters of looked-up tokens.
 */
import { setTimeout as pause } from 'node:timers/promises';
import { KvdClient } from '../../src/client/client.ts';
import { promptOf } from '../../src/client/load/bench-requests.ts';
import { samplesOf } from '../../test/support/prometheus-parser.ts';
import { inParallel } from '../../test/support/waiting.ts';
import { Child, serve } from './child.ts';
import { type Report, summarize } from './report.ts';
import { openServer, type Server } from './server.ts';

const TENANT_COUNT = 1000;
const SERIES_COUNT_MIN = 2000;
const TIMEOUT_MS = 20_000;
const SCRAPE_PAUSE_MS = 50;
const STALL_MS_MAX = 5;
const SCRAPE_MS_MAX = 20;

interface Scrapes {
  readonly milliseconds: readonly number[];
  readonly seriesCount: number;
}

type ScrapeRequest = { readonly url: string } | 'end';

const PHASES = ['nobody', 'another server', 'this server'] as const;
type Phase = (typeof PHASES)[number];

interface Measured {
  readonly pings: readonly number[];
  readonly scrapes: Scrapes | null;
}

export async function measureScrapeBesidePings(options: { seconds: number }): Promise<Report> {
  const flags = { '--chunk-size': 256, '--l1-size-gb': 0.5 };
  const [server, other] = [await openServer(flags, null), await openServer(flags, null)];
  const client = KvdClient.connect(server.url);
  const scraper = new Child<ScrapeRequest>(import.meta.filename);
  const scraped: Record<Phase, Server | null> = {
    ...{ nobody: null, 'another server': other, 'this server': server },
  };
  try {
    for (const { url } of [server, other]) await makeSeries(url);
    await pings(client, options.seconds);
    const measured = new Map<Phase, Measured>();
    for (const phase of PHASES) {
      measured.set(phase, await measure(client, scraper, scraped[phase], options.seconds));
    }
    return reportOf(measured);
  } finally {
    await scraper.stop();
    client.close();
    await server.stop();
    await other.stop();
  }
}

async function measure(
  client: KvdClient,
  scraper: Child<ScrapeRequest>,
  scraped: Server | null,
  seconds: number,
): Promise<Measured> {
  if (!scraped) return { pings: await pings(client, seconds), scrapes: null };
  await scraper.ask({ url: `${scraped.httpUrl}/metrics` });
  const samples = await pings(client, seconds);
  const scrapes = await scraper.ask<Scrapes>('end');
  if (scrapes.seriesCount < SERIES_COUNT_MIN) {
    throw new Error(`expected ${SERIES_COUNT_MIN} series, got ${scrapes.seriesCount}`);
  }
  return { pings: samples, scrapes };
}

async function makeSeries(url: string): Promise<void> {
  const client = KvdClient.connect(url);
  await inParallel(TENANT_COUNT, 16, (i) => lookUpAs(client, i));
  client.close();
}

/** A lookup that finds nothing is counted like any other. */
async function lookUpAs(client: KvdClient, tenant: number): Promise<void> {
  const cacheSalt = `tenant-${tenant}`;
  const key = { ...promptOf(tenant, 256, 'nobody').lookupKey('scrape'), cacheSalt };
  await client.call('LOOKUP', { key, tpSize: 1 }, TIMEOUT_MS);
  const { requestId } = key;
  await client.call('QUERY_PREFETCH_STATUS', { requestId }, TIMEOUT_MS);
  await client.call('END_SESSION', { requestId }, TIMEOUT_MS);
}

/** Milliseconds of every PING. */
async function pings(client: KvdClient, seconds: number): Promise<number[]> {
  const samples: number[] = [];
  const endMs = performance.now() + seconds * 1000;
  while (performance.now() < endMs) {
    const startMs = performance.now();
    await client.call('PING', { instanceId: null }, TIMEOUT_MS);
    samples.push(performance.now() - startMs);
  }
  return samples;
}

function reportOf(measured: ReadonlyMap<Phase, Measured>): Report {
  const rows = [...measured].map(([phase, { pings: samples, scrapes }]) => {
    const { p50Ms, p99Ms, maxMs, count } = summarize(samples);
    const slowCount = samples.filter((ms) => ms > STALL_MS_MAX).length;
    const scrapeMs = scrapes && summarize(scrapes.milliseconds).p50Ms;
    return [phase, count, p50Ms, p99Ms, maxMs, slowCount, scrapeMs];
  });
  const slowest = (phase: Phase) => Math.max(...(measured.get(phase)?.pings ?? []));
  const { scrapes } = measured.get('this server') as Measured;
  const { seriesCount, milliseconds } = scrapes as Scrapes;
  return {
    name: 'scrape-beside-pings',
    header: [
      ...['scraped', 'PINGs', 'p50 ms', 'p99 ms', 'slowest ms', `over ${STALL_MS_MAX} ms`],
      'scrape p50 ms',
    ],
    rows,
    verdicts: [
      {
        what: 'the slowest PING, more than beside scrapes of another server',
        value: slowest('this server') - slowest('another server'),
        unit: ' ms',
        target: STALL_MS_MAX,
      },
      {
        what: `a scrape of ${seriesCount} series beside PINGs, p50`,
        value: summarize(milliseconds).p50Ms,
        unit: ' ms',
        target: SCRAPE_MS_MAX,
      },
    ],
    details: Object.fromEntries(
      [...measured].map(([phase, { pings: samples }]) => [phase, summarize(samples)]),
    ),
  };
}

// ---------------------------------------------------------------- in the process of its own

class Scraper {
  #isEnding = false;
  #run: Promise<Scrapes> | null = null;

  async handle(request: ScrapeRequest): Promise<Scrapes | null> {
    if (request === 'end') {
      this.#isEnding = true;
      return await (this.#run as Promise<Scrapes>);
    }
    this.#isEnding = false;
    this.#run = this.#repeat(request.url);
    return null;
  }

  async #repeat(url: string): Promise<Scrapes> {
    const milliseconds: number[] = [];
    let text = '';
    while (!this.#isEnding) {
      const startMs = performance.now();
      text = await (await fetch(url)).text();
      milliseconds.push(performance.now() - startMs);
      await pause(SCRAPE_PAUSE_MS);
    }
    return { milliseconds, seriesCount: samplesOf(text).size };
  }
}

if (import.meta.main) {
  const scraper = new Scraper();
  serve<ScrapeRequest>((request) => scraper.handle(request));
}
