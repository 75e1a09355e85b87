import * as assert from 'uvu/assert';
import { MetricRegistry } from '../../../src/observability/metrics/registry.ts';
import { PrometheusText } from '../../../src/observability/prometheus.ts';
import { createResource, resourceAttributes } from '../../../src/observability/resource.ts';
import { parsePrometheusText, samplesOf } from '../../support/prometheus-parser.ts';
import { suite } from '../../support/suite.ts';

/** Those of the reference's answer, then two of Node. */
const PROCESS_FAMILIES = [
  'process_virtual_memory_bytes gauge',
  'process_resident_memory_bytes gauge',
  'process_start_time_seconds gauge',
  'process_cpu_seconds_total counter',
  'process_open_fds gauge',
  'process_max_fds gauge',
  'nodejs_eventloop_lag_seconds gauge',
  'nodejs_heap_size_used_bytes gauge',
];

const HITS = { name: 'lmcache_mp.hits', scope: 's', kind: 'counter', unit: 'tokens' } as const;

function house(
  constantLabels: Readonly<Record<string, string>> = {},
  hasResourceVariables: boolean = false,
) {
  const registry = new MetricRegistry();
  const hits = registry.counter({ ...HITS, labels: [], help: 'Hits.' });
  return {
    registry,
    hits,
    text: new PrometheusText({
      ...{ instanceId: 'here', registry, constantLabels, hasResourceVariables },
    }),
  };
}

const typesOf = (text: string): string[] =>
  Array.from(parsePrometheusText(text).values(), ({ name, type }) => `${name} ${type}`);

/** Runs with these variables of the environment, and puts the old ones back. */
async function withEnvironment(
  variables: Readonly<Record<string, string>>,
  run: () => Promise<void>,
): Promise<void> {
  const before = { ...process.env };
  Object.assign(process.env, variables);
  try {
    await run();
  } finally {
    for (const name of Object.keys(variables)) {
      if (before[name] === undefined) delete process.env[name];
      else process.env[name] = before[name];
    }
  }
}

suite('metrics text', (test) => {
  test('the process comes first, then target_info, then what is counted', async () => {
    const { hits, text } = house();
    hits.add(3);
    const answer = await text.text();
    assert.equal(typesOf(answer), [
      ...PROCESS_FAMILIES,
      'target_info gauge',
      'lmcache_mp_hits_tokens_total counter',
    ]);
    assert.is(samplesOf(answer).get('lmcache_mp_hits_tokens_total'), 3);
    assert.not.match(answer, /otel_scope|# UNIT|^# EOF/m);
  });

  test('an instrument without points has no family', async () => {
    assert.not.match(await house().text.text(), /lmcache_mp/);
  });

  test('a second scrape shows the new numbers', async () => {
    const { hits, text } = house();
    hits.add(1);
    await text.text();
    hits.add(1);
    assert.is(samplesOf(await text.text()).get('lmcache_mp_hits_tokens_total'), 2);
  });

  test('with metrics off only the process is shown', async () => {
    const text = await new PrometheusText({ instanceId: 'here', registry: null }).text();
    assert.equal(typesOf(text), PROCESS_FAMILIES);
  });

  test('a constant label is on what is counted, and not on the process', async () => {
    const { hits, text } = house({ lmcache_instance_id: 'here' });
    hits.add(3);
    const samples = samplesOf(await text.text());
    assert.is(samples.get('lmcache_mp_hits_tokens_total{lmcache_instance_id="here"}'), 3);
    assert.ok(samples.has('process_open_fds'));
  });

  test('the process is this one', async () => {
    const samples = samplesOf(await house().text.text());
    const of = (name: string): number => samples.get(name) as number;
    const ageSeconds = Date.now() / 1000 - of('process_start_time_seconds');
    assert.ok(Math.abs(ageSeconds - process.uptime()) < 5, `${ageSeconds} s`);
    assert.ok(of('process_resident_memory_bytes') > 20e6);
    assert.ok(of('process_virtual_memory_bytes') > of('process_resident_memory_bytes'));
    assert.ok(of('process_cpu_seconds_total') > 0);
    assert.ok(of('process_open_fds') >= 3 && of('process_open_fds') <= of('process_max_fds'));
    assert.ok(of('nodejs_heap_size_used_bytes') > 1e6);
    const lagSeconds = of('nodejs_eventloop_lag_seconds');
    assert.ok(lagSeconds >= 0 && lagSeconds < 1, `${lagSeconds} s`);
  });
});

suite('target_info', (test) => {
  const labelsOf = async (hasVariables: boolean): Promise<Record<string, string>> => {
    const { text } = house({}, hasVariables);
    const family = parsePrometheusText(await text.text()).get('target_info');
    assert.is(family?.samples.length, 1);
    assert.is(family?.samples[0]?.value, 1);
    return Object.fromEntries(family?.samples[0]?.labels ?? []);
  };

  test('has the labels of the reference, and says the truth about the language', async () => {
    const { telemetry_sdk_version: version, ...others } = await labelsOf(false);
    assert.equal(others, {
      service_instance_id: 'here',
      service_name: 'unknown_service',
      telemetry_sdk_language: 'nodejs',
      telemetry_sdk_name: 'opentelemetry',
    });
    assert.match(version as string, /^\d+\.\d+\.\d+$/);
  });

  test('says without the SDK what the SDK would say', async () => {
    const { attributes } = await createResource('here');
    assert.equal(await resourceAttributes('here', false), attributes);
  });

  test('honours the environment, and the instance id wins', async () => {
    const variables = {
      OTEL_SERVICE_NAME: 'cache',
      OTEL_RESOURCE_ATTRIBUTES: 'service.instance.id=there,deployment.zone=a',
    };
    await withEnvironment(variables, async () => {
      const labels = await labelsOf(true);
      assert.is(labels['service_name'], 'cache');
      assert.is(labels['service_instance_id'], 'here');
      assert.is(labels['deployment_zone'], 'a');
    });
  });
});
