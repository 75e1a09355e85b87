import * as assert from 'uvu/assert';
import { loadServerConfig } from '../../../src/config/load.ts';
import { suite } from '../../support/suite.ts';

const BASE = ['--l1-size-gb', '0.5', '--eviction-policy', 'LRU'];

function good(args: readonly string[]) {
  const { config, problems } = loadServerConfig([...BASE, ...args], {});
  assert.equal(problems, []);
  assert.ok(config);
  return config!;
}

/** `flag: reason` of every problem. */
function bad(args: readonly string[]): string[] {
  const { config, problems } = loadServerConfig([...BASE, ...args], {});
  assert.is(config, null, `accepted: ${args.join(' ')}`);
  return problems.map(({ flag, reason }) => `${flag}: ${reason}`);
}

const warningsOf = (args: readonly string[]) => loadServerConfig([...BASE, ...args], {}).warnings;

suite('configuration: telemetry', (test) => {
  test('a collector, what is sent to it and how', () => {
    assert.is(good([]).otlp, null);
    assert.is(good(['--otlp-endpoint', '']).otlp, null);
    assert.equal(good(['--otlp-endpoint', 'collector:4317', '--enable-tracing']).otlp, {
      endpoint: 'collector:4317',
      protocol: 'grpc',
      hasSpans: true,
      hasRequestTraceIds: false,
    });
    const http = ['--otlp-endpoint', 'https://[::1]:4318/x', '--otlp-protocol', 'http/protobuf'];
    assert.is(good(http).otlp?.protocol, 'http/protobuf');
    assert.is(good([...http, '--disable-observability']).otlp, null);
  });

  test('what is no address of a collector is refused, and tracing without one', () => {
    for (const url of ['ftp://x:1', 'http://', 'a b', 'http://x:port']) {
      assert.match(bad(['--otlp-endpoint', url])[0]!, /expected http:\/\/HOST:PORT/, url);
    }
    assert.match(bad(['--enable-tracing'])[0]!, /add --otlp-endpoint http:\/\/HOST:4317/);
  });

  test('settings that hang in the air are warned about', () => {
    assert.match(warningsOf(['--otlp-protocol', 'grpc'])[0]!, /without --otlp-endpoint/);
    assert.match(warningsOf(['--trace-ids-from-requests'])[0]!, /without --enable-tracing/);
    assert.match(warningsOf(['--trace-output', '/x'])[0]!, /without --trace-level/);
  });

  test('metrics: sampling, bounds, boundaries, names', () => {
    assert.equal(good([]).metrics, {
      sampleRate: 0.01,
      saltCountMax: 1000,
      hasLegacyBuckets: false,
      hasAliases: false,
      hasInstanceLabel: false,
    });
    assert.is(good(['--metrics-buckets', 'legacy']).metrics.hasLegacyBuckets, true);
    for (const rate of ['0', '1.1', '-1', 'x']) bad(['--metrics-sample-rate', rate]);
    assert.is(good(['--event-bus-queue-size', '0']).eventQueueSize, 0);
    bad(['--event-bus-queue-size', '-1']);
  });

  test('levels of single rooms, and the summary lines', () => {
    assert.is(
      good(['--log-levels', 'wire=DEBUG,l2=warning']).roomLogLevels,
      'wire=DEBUG,l2=warning',
    );
    assert.match(bad(['--log-levels', 'kitchen=DEBUG'])[0]!, /kitchen/);
    assert.is(good([]).summaryIntervalMs, null);
    const summary = ['--enable-extra-logging', '--extra-logging-interval', '0.5'];
    assert.is(good(summary).summaryIntervalMs, 500);
    bad([...summary, '--disable-observability']);
  });

  test('the storage trace', () => {
    assert.is(good([]).storageTrace, null);
    const trace = good(['--trace-level', 'storage', '--trace-output', '/t.lct']).storageTrace;
    assert.equal(trace, { path: '/t.lct', sizeMaxBytes: 2 ** 30 });
  });
});
