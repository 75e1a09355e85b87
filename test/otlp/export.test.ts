/** What a collector gets, decoded by the protocol's own message types. */
import * as assert from 'uvu/assert';
import { OTLP_PROTOCOLS, type OtlpProtocol } from '../../src/observability/otlp.ts';
import { makeMetrics, openExport } from '../support/otlp-house.ts';
import {
  attributesOf,
  metricsOf,
  OtlpReceiver,
  resourceOf,
  spansOf,
} from '../support/otlp-receiver.ts';
import { suite } from '../support/suite.ts';
import { timed, until } from '../support/waiting.ts';

const WAIT_MS = 10_000;
const CUMULATIVE = 'AGGREGATION_TEMPORALITY_CUMULATIVE';
/** 2026-01-01, and binary fractions: they are exact in nanoseconds. */
const START_SECONDS = 1_767_225_600.25;

/** Runs with these variables of the environment, which the exporters read when they are made. */
async function withEnvironment<T>(
  variables: Readonly<Record<string, string>>,
  run: () => Promise<T>,
): Promise<T> {
  Object.assign(process.env, variables);
  try {
    return await run();
  } finally {
    for (const name of Object.keys(variables)) delete process.env[name];
  }
}

async function withReceiver(
  run: (receiver: OtlpReceiver) => Promise<void>,
  options: { readonly isHanging?: boolean } = {},
): Promise<void> {
  const receiver = await OtlpReceiver.start(options);
  try {
    await run(receiver);
  } finally {
    await receiver.stop();
  }
}

function checkMetrics(receiver: OtlpReceiver, protocol: OtlpProtocol): void {
  const [request] = receiver.of('metrics');
  assert.is(request?.transport, protocol === 'grpc' ? 'grpc' : 'http');
  const metrics = metricsOf(request);
  assert.equal(
    [...metrics.keys()],
    [
      'lmcache.l1/lmcache_mp.l1_read',
      'lmcache_mp.perf/lmcache_mp.l2_load_throughput',
      'lmcache.l1_manager/lmcache_mp.l1_usage_ratio',
    ],
  );
  const reads = metrics.get('lmcache.l1/lmcache_mp.l1_read');
  assert.is(reads?.unit, 'chunks');
  assert.is(reads?.description, 'Chunks read.');
  assert.is(reads?.sum?.isMonotonic, true);
  assert.is(reads?.sum?.aggregationTemporality, CUMULATIVE);
  assert.equal(
    reads?.sum?.dataPoints.map(({ attributes, asInt }) => [attributesOf(attributes), asInt]),
    [
      [{}, '5'],
      [{ cache_salt: 'tenant-a' }, '2'],
    ],
  );
  const rate = metrics.get('lmcache_mp.perf/lmcache_mp.l2_load_throughput')?.histogram;
  assert.is(rate?.aggregationTemporality, CUMULATIVE);
  const { count, sum, min, max, bucketCounts, explicitBounds } = rate?.dataPoints[0] ?? {};
  assert.equal({ count, sum, min, max }, { count: '2', sum: 4.75, min: 0.75, max: 4 });
  assert.equal(explicitBounds, [0.5, 1, 2]);
  assert.equal(bucketCounts, ['0', '1', '0', '1']);
  const usage = metrics.get('lmcache.l1_manager/lmcache_mp.l1_usage_ratio')?.gauge;
  assert.is(usage?.dataPoints[0]?.asDouble, 0.25);
}

for (const protocol of OTLP_PROTOCOLS) {
  suite(`OTLP by ${protocol}`, (test) => {
    test('metrics arrive with names, scopes, units, kinds and resource', () =>
      withReceiver(async (receiver) => {
        const endpoint = receiver.endpoints[protocol];
        const { registry } = makeMetrics();
        const { otlp, log } = await openExport({ endpoint, protocol, registry });
        await otlp.close();
        await receiver.received('metrics', 1, WAIT_MS);
        checkMetrics(receiver, protocol);
        const { 'telemetry.sdk.version': version, ...resource } = resourceOf(
          receiver.of('metrics')[0]!,
        );
        assert.type(version, 'string');
        assert.equal(resource, {
          'service.instance.id': 'here',
          'service.name': 'unknown_service',
          'telemetry.sdk.language': 'nodejs',
          'telemetry.sdk.name': 'opentelemetry',
        });
        assert.equal(log.lines, []);
        assert.equal([...otlp.failureCounts], []);
      }));

    test('metrics come again and again, and count on', () =>
      withReceiver(async (receiver) => {
        const { registry, reads } = makeMetrics();
        const { otlp } = await openExport({
          ...{ endpoint: receiver.endpoints[protocol], protocol, registry },
          metricsIntervalMs: 100,
        });
        try {
          await receiver.received('metrics', 1, WAIT_MS);
          reads.add(7, '');
          const value = (index: number) => {
            const name = 'lmcache.l1/lmcache_mp.l1_read';
            return metricsOf(receiver.of('metrics').at(index)).get(name)?.sum?.dataPoints[0];
          };
          await until(() => value(-1)?.asInt === '12', WAIT_MS, 'the new number');
          assert.is(value(0)?.startTimeUnixNano, value(-1)?.startTimeUnixNano);
        } finally {
          await otlp.close();
        }
      }));

    test('spans arrive with scope, parent, times, typed attributes and error', () =>
      withReceiver(async (receiver) => {
        const endpoint = receiver.endpoints[protocol];
        const { otlp } = await openExport({ endpoint, protocol, hasSpans: true });
        const scope = 'lmcache_mp.request';
        const root = otlp.spans!.startSpan({
          ...{ scope, name: 'request', parent: null, startSeconds: START_SECONDS },
          attributes: { session_id: 'r-1', total_bytes: 4096, success: true, rate: 0.5 },
        });
        const startSeconds = START_SECONDS + 0.125;
        otlp
          .spans!.startSpan({ scope, name: 'store', parent: root, startSeconds, attributes: {} })
          .end(START_SECONDS + 0.5, 'expired');
        root.end(START_SECONDS + 1);
        await otlp.close();
        await receiver.received('traces', 1, WAIT_MS);
        const spans = spansOf(receiver.of('traces'));
        const [store, request] = spans;
        assert.is(spans.length, 2);
        assert.equal([store?.name, request?.name], ['store', 'request']);
        assert.equal([store?.scope, request?.scope], [scope, scope]);
        assert.is(store?.traceId, request?.traceId);
        assert.is(store?.parentSpanId, request?.spanId);
        assert.is(request?.parentSpanId, undefined);
        assert.is(request?.startTimeUnixNano, '1767225600250000000');
        assert.is(request?.endTimeUnixNano, '1767225601250000000');
        assert.equal(attributesOf(request?.attributes), {
          ...{ session_id: 'r-1', total_bytes: '4096', success: true, rate: 0.5 },
        });
        assert.equal(store?.status, { code: 'STATUS_CODE_ERROR', message: 'expired' });
        assert.is(resourceOf(receiver.of('traces')[0]!)['service.instance.id'], 'here');
      }));

    test('headers and compression come from the environment, and no log shows them', () =>
      withReceiver(async (receiver) => {
        const variables = {
          OTEL_EXPORTER_OTLP_HEADERS: 'x-tenant=a,authorization=Bearer%20secret',
          OTEL_EXPORTER_OTLP_COMPRESSION: 'gzip',
        };
        const { registry } = makeMetrics();
        const endpoint = receiver.endpoints[protocol];
        const { otlp, log } = await withEnvironment(variables, () =>
          openExport({ endpoint, protocol, registry, hasSpans: true }),
        );
        const span = { scope: 's', name: 'n', startSeconds: START_SECONDS, attributes: {} };
        otlp.spans?.startSpan({ ...span, parent: null }).end(START_SECONDS);
        await otlp.close();
        await receiver.received('metrics', 1, WAIT_MS);
        await receiver.received('traces', 1, WAIT_MS);
        assert.is(metricsOf(receiver.of('metrics')[0]).size, 3);
        assert.is(spansOf(receiver.of('traces')).length, 1);
        for (const { headers } of receiver.requests) {
          assert.is(headers['x-tenant'], 'a');
          assert.is(headers['authorization'], 'Bearer secret');
          if (protocol !== 'grpc') assert.is(headers['content-encoding'], 'gzip');
        }
        assert.not.ok(log.has(/secret/));
      }));

    test('a collector that takes requests and never answers holds close for 5 s', () =>
      withReceiver(
        async (receiver) => {
          const endpoint = receiver.endpoints[protocol];
          const { registry } = makeMetrics();
          const { otlp, log } = await openExport({ endpoint, protocol, registry, hasSpans: true });
          const span = { scope: 's', name: 'n', startSeconds: START_SECONDS, attributes: {} };
          otlp.spans?.startSpan({ ...span, parent: null }).end(START_SECONDS);
          const { ms } = await timed(() => otlp.close());
          assert.ok(ms > 4500 && ms < 6500, `${ms} ms`);
          assert.ok(log.has(/did not take the last metrics and spans within 5 s/));
          // Both were sent, none waited for the other.
          await receiver.received('metrics', 1, WAIT_MS);
          await receiver.received('traces', 1, WAIT_MS);
        },
        { isHanging: true },
      ));
  });
}

suite('OTLP through an outage', (test) => {
  test('metrics come again with the collector, and nothing that was counted is lost', async () => {
    const { registry, reads } = makeMetrics();
    const first = await OtlpReceiver.start();
    const options = { endpoint: first.endpoints.grpc, registry, metricsIntervalMs: 100 };
    const { otlp, log } = await openExport(options);
    const port = Number(new URL(first.endpoints.grpc).port);
    try {
      await first.received('metrics', 1, WAIT_MS);
      await first.stop();
      reads.add(10, '');
      await until(() => (otlp.failureCounts.get('metrics') ?? 0) > 0, WAIT_MS, 'a failure');
      assert.ok(log.has(new RegExp(`cannot send metrics to 127\\.0\\.0\\.1:${port}: `)));
      const second = await OtlpReceiver.start({ grpcPort: port });
      try {
        await second.received('metrics', 1, 2 * WAIT_MS);
        const metric = metricsOf(second.requests[0]).get('lmcache.l1/lmcache_mp.l1_read');
        assert.is(metric?.sum?.dataPoints[0]?.asInt, '15');
      } finally {
        await otlp.close();
        await second.stop();
      }
    } finally {
      await otlp.close();
    }
  });
});
