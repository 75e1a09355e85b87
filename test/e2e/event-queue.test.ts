/**
 * The event queue held shut (`--event-bus-queue-size 0`) under load: histograms, spans and log
 * lines are lost and counted, counters are exact, and clients see no difference (field lesson
 * 13.5).
 */
import * as assert from 'uvu/assert';
import { endSession, lookup, promptOf } from '../support/fake-worker.ts';
import { samplesOf } from '../support/prometheus-parser.ts';
import { type Scenario, scenario } from '../support/scenario.ts';
import { suite } from '../support/suite.ts';
import { inParallel, until } from '../support/waiting.ts';

const PROMPT_COUNT = 300;
const CHUNKS = 3;
const TOKENS = CHUNKS * 16;
const SETTLE_MS = 5_000;

async function load(s: Scenario, queueSize: number): Promise<ReadonlyMap<string, number>> {
  const server = await s.serve({ '--event-bus-queue-size': queueSize, '--metrics-sample-rate': 1 });
  const worker = await s.worker(server);
  const client = s.connect(server);
  let readCount = 0;
  await inParallel(PROMPT_COUNT, 16, async (i) => {
    const prompt = promptOf(i, CHUNKS);
    const requestId = `r${i}`;
    assert.ok((await worker.store(prompt, { requestId })).ok);
    assert.is(await lookup(client, prompt, { requestId }), CHUNKS);
    if ((await worker.retrieve(prompt, { requestId })).ok) readCount += 1;
    await endSession(client, requestId);
  });
  assert.is(readCount, PROMPT_COUNT);
  const scrape = async () => samplesOf(await (await fetch(`${server.httpUrl}/metrics`)).text());
  await until(
    async () => (await scrape()).get('lmcache_mp_event_bus_queue_depth') === 0,
    SETTLE_MS,
  );
  return await scrape();
}

/** Of every load, whatever the queue does. */
function assertExact(samples: ReadonlyMap<string, number>): void {
  const model = 'cache_salt="",model_name="m"';
  const expected: Readonly<Record<string, number>> = {
    lmcache_mp_l1_write_chunks_total: PROMPT_COUNT * CHUNKS,
    lmcache_mp_l1_client_read_chunks_total: PROMPT_COUNT * CHUNKS,
    [`lmcache_mp_lookup_requested_tokens_total{${model}}`]: PROMPT_COUNT * TOKENS,
    [`lmcache_mp_lookup_hit_tokens_total{${model}}`]: PROMPT_COUNT * TOKENS,
    kvd_lookups_total: PROMPT_COUNT,
    kvd_stored_tokens_total: PROMPT_COUNT * TOKENS,
    kvd_retrieved_tokens_total: PROMPT_COUNT * TOKENS,
    kvd_sessions_ended_total: PROMPT_COUNT,
    'kvd_requests_total{operation="STORE"}': PROMPT_COUNT,
    'kvd_requests_total{operation="RETRIEVE"}': PROMPT_COUNT,
  };
  for (const [name, value] of Object.entries(expected)) assert.is(samples.get(name), value, name);
}

const sumOf = (samples: ReadonlyMap<string, number>, start: string): number =>
  [...samples].reduce((sum, [name, value]) => (name.startsWith(start) ? sum + value : sum), 0);

suite('the event queue under load', (test) => {
  test(
    'held shut: what is lost is counted, counters are exact',
    scenario(async (s) => {
      const samples = await load(s, 0);
      assertExact(samples);
      const droppedCount = samples.get('lmcache_mp_event_bus_dropped_events_total') ?? 0;
      assert.ok(droppedCount >= PROMPT_COUNT, `${droppedCount} events dropped`);
      const lostBy = (name: string) =>
        samples.get(`kvd_event_bus_lost_events_total{subscriber_name="${name}"}`) ?? 0;
      assert.ok(lostBy('L1LifecycleSubscriber') >= PROMPT_COUNT, 'samples of histograms');
      assert.is(lostBy('MPLoggingSubscriber'), 2 * PROMPT_COUNT + 1, 'log lines');
      assert.is(sumOf(samples, 'lmcache_mp_l1_chunk_reuse_gap_seconds_count'), 0);
    }),
  );

  test(
    'open: nothing is lost, and the same is counted',
    scenario(async (s) => {
      const samples = await load(s, 10_000);
      assertExact(samples);
      assert.is(samples.get('lmcache_mp_event_bus_dropped_events_total'), 0);
      assert.is(sumOf(samples, 'kvd_event_bus_lost_events_total'), 0);
      const retrieves = 'kvd_request_seconds_count{operation="RETRIEVE"}';
      assert.is(samples.get(retrieves), PROMPT_COUNT);
      assert.ok(sumOf(samples, 'lmcache_mp_l1_chunk_reuse_gap_seconds_count') >= PROMPT_COUNT);
    }),
  );
});
