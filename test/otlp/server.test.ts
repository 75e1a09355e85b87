/** `kvd server --otlp-endpoint`: from the sources, as the package starts it, and as one file. */
import fs from 'node:fs';
import path from 'node:path';
import * as assert from 'uvu/assert';
import type { OtlpProtocol } from '../../src/observability/otlp.ts';
import { FakeWorker, promptOf } from '../support/fake-worker.ts';
import { metricsOf, OtlpReceiver, resourceOf, spansOf } from '../support/otlp-receiver.ts';
import { parsePrometheusText } from '../support/prometheus-parser.ts';
import { type Flags, ServerProcess } from '../support/server-process.ts';
import { suite } from '../support/suite.ts';
import { timed, until } from '../support/waiting.ts';

const ROOT = path.resolve(import.meta.dirname, '../..');
/** Null: the sources. */
const FORMS: readonly (string | null)[] = [null, 'bin/kvd', 'dist/kvd'];
const WAIT_MS = 20_000;
const WRITES = 'lmcache.l1/lmcache_mp.l1_write';

const flagsFor = (receiver: OtlpReceiver, protocol: OtlpProtocol): Flags => ({
  '--otlp-endpoint': receiver.endpoints[protocol],
  '--otlp-protocol': protocol,
  '--instance-id': 'pushing',
});

async function withReceiver(run: (receiver: OtlpReceiver) => Promise<void>): Promise<void> {
  const receiver = await OtlpReceiver.start();
  try {
    await run(receiver);
  } finally {
    await receiver.stop();
  }
}

/** Starts the server in one of its forms, stores and retrieves a prompt, and stops it. */
async function withServer(
  form: string | null,
  flags: Flags,
  run: (server: ServerProcess) => Promise<void>,
): Promise<void> {
  const before = process.env['KVD_E2E_EXECUTABLE'];
  if (form !== null) process.env['KVD_E2E_EXECUTABLE'] = path.join(ROOT, form);
  try {
    const server = await ServerProcess.start(flags);
    try {
      const worker = new FakeWorker(server.url);
      await worker.register();
      await worker.store(promptOf(1, 4));
      await worker.retrieve(promptOf(1, 4));
      worker.close();
      await run(server);
    } finally {
      if (!server.hasEnded) await server.kill();
      server.removeSegments();
    }
  } finally {
    if (before === undefined) delete process.env['KVD_E2E_EXECUTABLE'];
    else process.env['KVD_E2E_EXECUTABLE'] = before;
  }
}

for (const form of FORMS) {
  const name = form ?? 'the sources';
  suite(`kvd server that pushes, ${name}`, (test) => {
    test('there is a build to test', () => {
      assert.ok(form === null || fs.existsSync(path.join(ROOT, form)), 'run `npm run build`');
    });

    for (const protocol of ['grpc', 'http/protobuf'] as const) {
      test(`SIGTERM sends the last metrics by ${protocol}`, () =>
        withReceiver(async (receiver) => {
          await withServer(form, flagsFor(receiver, protocol), async (server) => {
            const { ms } = await timed(() => server.stop());
            assert.ok(ms < 4000, `${ms} ms`);
            assert.equal(server.linesWith(/WARN|ERROR/), []);
          });
          const metrics = metricsOf(receiver.of('metrics').at(-1));
          const [writes] = metrics.get(WRITES)?.sum?.dataPoints ?? [];
          assert.is(writes?.asInt, '4', [...metrics.keys()].join());
          assert.is(resourceOf(receiver.requests[0]!)['service.instance.id'], 'pushing');
        }));

      test(`SIGTERM sends the last spans by ${protocol}`, () =>
        withReceiver(async (receiver) => {
          const flags = { ...flagsFor(receiver, protocol), '--enable-tracing': true } as const;
          await withServer(form, flags, (server) => server.stop());
          const spans = spansOf(receiver.of('traces'));
          assert.ok(spans.length > 0, 'spans');
          for (const span of spans) {
            assert.ok(BigInt(span.endTimeUnixNano) >= BigInt(span.startTimeUnixNano), span.name);
          }
          const children = spans.filter(({ parentSpanId }) => parentSpanId !== undefined);
          assert.ok(children.length > 0, 'children');
        }));
    }
  });
}

suite('kvd server that pushes', (test) => {
  test(
    'metrics come every 10 s, and /metrics goes on',
    () =>
      withReceiver(async (receiver) => {
        const flags = { '--otlp-endpoint': receiver.endpoints.grpc };
        await withServer(null, flags, async (server) => {
          await receiver.received('metrics', 2, 2 * WAIT_MS);
          const [first, second] = receiver.of('metrics').map((request) => {
            const point = metricsOf(request).get(WRITES)?.sum?.dataPoints[0];
            return Number(BigInt(point?.timeUnixNano ?? 0) / 1_000_000n);
          }) as [number, number];
          assert.ok(Math.abs(second - first - 10_000) < 1000, `${second - first} ms`);
          const response = await fetch(`${server.httpUrl}/metrics`);
          const families = parsePrometheusText(await response.text());
          assert.ok(families.has('target_info'));
          assert.is(families.get('lmcache_mp_l1_write_chunks_total')?.samples[0]?.value, 4);
          await server.stop();
        });
      }),
    60_000,
  );

  test('a collector that never answers costs the end 5 s, and the exit code is 0', async () => {
    const receiver = await OtlpReceiver.start({ isHanging: true });
    try {
      const flags = {
        '--otlp-endpoint': receiver.endpoints.grpc,
        '--enable-tracing': true,
      } as const;
      await withServer(null, flags, async (server) => {
        const { ms } = await timed(() => server.stop());
        assert.ok(ms > 4500 && ms < 7000, `${ms} ms`);
        assert.is(server.linesWith(/did not take the last metrics and spans within 5 s/).length, 1);
      });
    } finally {
      await receiver.stop();
    }
  });

  test('a collector that is not there costs one line and a count', async () => {
    const receiver = await OtlpReceiver.start();
    const endpoint = receiver.endpoints.grpc;
    await receiver.stop();
    await withServer(null, { '--otlp-endpoint': endpoint }, async (server) => {
      const sample = 'kvd_otlp_export_failures_total{signal="metrics"}';
      await until(async () => (await server.metric(sample)) >= 1, WAIT_MS, sample);
      await server.stop();
      assert.is(server.linesWith(/cannot send metrics to 127\.0\.0\.1:/).length, 1);
    });
  }, 40_000);
});
