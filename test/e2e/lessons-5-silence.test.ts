/**
 * What happens within one reap time (spec field-lessons 4.1, 5.1, 5.4). The shortest one that the
 * server accepts is 30 s, so all three scenarios share one server and one wait.
 *
 *   killed    one PING, then SIGKILL          reaped, unmapped
 *   idle      one PING, then silence          reaped; PING false, true; registers again
 *   busy      no PING, a store every 5 s      stays
 */
import * as assert from 'uvu/assert';
import { hitsOf, promptOf } from '../support/fake-worker.ts';
import { expectCalm, scenario } from '../support/scenario.ts';
import { suite } from '../support/suite.ts';
import { passTime, timed, until } from '../support/waiting.ts';

const REAP_SECONDS = 30;
/** The reaper looks every quarter of the reap time. */
const GONE_WITHIN_MS = REAP_SECONDS * 1250 + 2000;
const STORE_INTERVAL_MS = 5000;
const ANSWER_MS = 100;
const FIRST_ID = 2n ** 62n;

suite('lessons 4 and 5: silence', (test) => {
  test(
    '4.1, 5.1, 5.4 silent workers are reaped and can come back; busy ones stay without a PING',
    scenario(async (s) => {
      const server = await s.serve({
        '--worker-reap-timeout-seconds': REAP_SECONDS,
        '--worker-registration-grace-seconds': REAP_SECONDS,
      });
      const client = s.connect(server);
      const prompt = promptOf(1, 4);
      const killed = await s.workerProcess({ url: server.url, instanceId: FIRST_ID, pings: true });
      await killed.kill();
      const killedSegments = `lmcache_kv_${killed.pid}_`;
      assert.is(server.mappedSegments(killedSegments).length, 2);
      const idle = await s.worker(server, { instanceId: FIRST_ID + 1n });
      assert.is(await idle.ping(), true);
      await idle.store(prompt);
      const busy = await s.worker(server, { instanceId: FIRST_ID + 2n });

      const isKnown = async (id: bigint) =>
        String(id) in (await server.status()).cache_context_meta;
      let lastStoreMs = 0;
      const silence = until(async () => {
        if (performance.now() - lastStoreMs > STORE_INTERVAL_MS) {
          lastStoreMs = performance.now();
          assert.is((await busy.store(promptOf(2, 1))).ok, true);
        }
        await passTime(100);
        return !((await isKnown(FIRST_ID)) || (await isKnown(FIRST_ID + 1n)));
      }, GONE_WITHIN_MS);
      assert.ok((await silence) > (REAP_SECONDS - 1) * 1000, 'reaped too early');
      const isUnmapped = () => server.mappedSegments(killedSegments).length === 0;
      await until(isUnmapped, 1000, 'unmapped');
      assert.is(await isKnown(busy.instanceId), true);

      const { result, ms } = await timed(() => idle.store(prompt));
      assert.is(result.ok, false);
      assert.ok(ms < ANSWER_MS, `STORE took ${ms} ms`);
      assert.is(await idle.ping(), false);
      assert.is(await idle.ping(), true);
      await idle.register();
      assert.is(await hitsOf(client, prompt), 4);
      await expectCalm(server);
    }),
    60_000,
  );
});
