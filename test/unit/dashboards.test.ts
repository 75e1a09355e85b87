/**
 * deploy/grafana and deploy/prometheus: every expression is PromQL about metrics and labels that
 * kvd has, and the files are what Grafana and Prometheus take. With a promtool (on PATH, or as
 * `.ci/setup prometheus` unpacks it) the alerts are run, too: prometheus/kvd.rules.test.yml.
 */
import { spawnSync } from 'node:child_process';
import fs from 'node:fs';
import os from 'node:os';
import path from 'node:path';
import * as assert from 'uvu/assert';
import { parse as parseYaml } from 'yaml';
import { analyze, type Labels, type Metric } from '../support/promql.ts';
import { servedMetrics } from '../support/served-metrics.ts';
import { ROOT } from '../support/source-files.ts';
import { suite } from '../support/suite.ts';

const DASHBOARD = 'deploy/grafana/kvd.json';
const RULES = 'deploy/prometheus/kvd.rules.yml';
const RULE_TESTS = 'deploy/prometheus/kvd.rules.test.yml';
const GUIDE = 'deploy/README.md';
const read = (file: string): string => fs.readFileSync(path.join(ROOT, file), 'utf8');

interface Rectangle {
  readonly x: number;
  readonly y: number;
  readonly w: number;
  readonly h: number;
}

interface Target {
  readonly refId: string;
  readonly expr: string;
  readonly legendFormat: string;
  readonly datasource: unknown;
}

interface Panel {
  readonly id: number;
  readonly type: string;
  readonly title: string;
  readonly description?: string;
  readonly gridPos: Rectangle;
  readonly datasource?: unknown;
  readonly fieldConfig?: {
    readonly defaults: { readonly unit?: string };
    readonly overrides: readonly { readonly matcher: { readonly options: string } }[];
  };
  readonly targets?: readonly Target[];
}

interface Variable {
  readonly name: string;
  readonly type: string;
  readonly definition?: string;
  readonly query: string | { readonly query: string };
}

interface Rule {
  readonly alert?: string;
  readonly record?: string;
  readonly expr: string;
  readonly for?: string;
  readonly labels?: Readonly<Record<string, string>>;
  readonly annotations?: Readonly<Record<string, string>>;
}

const dashboard = JSON.parse(read(DASHBOARD)) as {
  readonly panels: readonly Panel[];
  readonly templating: { readonly list: readonly Variable[] };
};
const panels = dashboard.panels.filter(({ type }) => type !== 'row');
const variables = dashboard.templating.list;
const rules = (parseYaml(read(RULES)) as { groups: { rules: Rule[] }[] }).groups.flatMap(
  (group) => group.rules,
);

const DATASOURCE = { type: 'prometheus', uid: '${' + 'datasource}' };
/** Names of Grafana; it takes a wrong one in silence and shows bare numbers. */
const UNITS = ['none', 'short', 'percentunit', 'bytes', 'Bps', 'GBs', 's', 'cps', 'reqps'];
const GRID_WIDTH = 24;
const INTERVALS = /\$__(?:rate_interval|range)\b/g;

function expectNone(faults: readonly string[]): void {
  if (faults.length > 0) assert.unreachable(`\n  ${faults.join('\n  ')}`);
}

const withIntervals = (expression: string): string => expression.replaceAll(INTERVALS, '5m');

/** `{{name}}` of a legend, `{{ $labels.name }}` of an annotation. */
const namesIn = (template: string): string[] =>
  [...template.matchAll(/\{\{\s*(?:\$labels\.)?(\w+)/g)].map(([, name]) => name as string);

function missingNames(templates: readonly string[], labels: Labels): string[] {
  return templates.flatMap(namesIn).filter((name) => !labels?.has(name));
}

/** Those of kvd, and those that the rules record. */
async function knownMetrics(): Promise<Map<string, Metric>> {
  const metrics = await servedMetrics();
  for (const { record, expr } of rules) {
    if (record === undefined) continue;
    const labels = analyze(expr, metrics).labels ?? new Set();
    metrics.set(record, { isCounter: false, labels });
  }
  return metrics;
}

const isOverlapping = (a: Rectangle, b: Rectangle): boolean =>
  a.x < b.x + b.w && b.x < a.x + a.w && a.y < b.y + b.h && b.y < a.y + a.h;

suite('the dashboard', (test) => {
  test('has panels with their own ids, titles, descriptions, units and a legend', () => {
    const ids = dashboard.panels.map(({ id }) => id);
    assert.is(new Set(ids).size, ids.length);
    assert.ok(panels.length > 0);
    for (const { title, description, fieldConfig, targets = [] } of panels) {
      assert.ok(title, 'a title');
      assert.ok(description, `${title}: description`);
      assert.ok(UNITS.includes(fieldConfig?.defaults.unit ?? ''), `${title}: unit`);
      assert.ok(targets.length > 0, `${title}: no expression`);
      assert.is(new Set(targets.map(({ refId }) => refId)).size, targets.length, title);
      for (const { legendFormat } of targets) assert.ok(legendFormat, `${title}: legend`);
    }
  });

  test('asks the data source that was chosen, everywhere', () => {
    for (const { title, datasource, targets = [] } of panels) {
      assert.equal(datasource, DATASOURCE, title);
      for (const target of targets) assert.equal(target.datasource, DATASOURCE, title);
    }
    const [first, ...others] = variables;
    assert.is(`${first?.name} ${first?.type} ${first?.query}`, 'datasource datasource prometheus');
    assert.equal(
      others.map(({ name }) => name),
      ['job', 'instance', 'model', 'salt'],
    );
  });

  test('has panels that lie beside each other', () => {
    const faults: string[] = [];
    for (const [index, { title, gridPos }] of dashboard.panels.entries()) {
      const { x, w, h } = gridPos;
      if (x < 0 || w < 1 || h < 1 || x + w > GRID_WIDTH) faults.push(`${title} is outside`);
      for (const other of dashboard.panels.slice(index + 1)) {
        if (isOverlapping(gridPos, other.gridPos)) faults.push(`${title} covers ${other.title}`);
      }
    }
    expectNone(faults);
  });

  test('asks only for what kvd has', async () => {
    const metrics = await knownMetrics();
    const faults: string[] = [];
    for (const { title, targets = [] } of panels) {
      for (const { expr, legendFormat } of targets) {
        const analysis = analyze(withIntervals(expr), metrics);
        faults.push(...analysis.faults.map((fault) => `${title}: ${fault}`));
        const missing = missingNames([legendFormat], analysis.labels);
        faults.push(...missing.map((name) => `${title}: the legend names ${name}`));
      }
    }
    for (const { name, definition, query } of variables.slice(1)) {
      assert.is(typeof query === 'string' ? query : query.query, definition, name);
      const [, expr = '', label = ''] =
        /^label_values\((.+), (\w+)\)$/s.exec(definition ?? '') ?? [];
      const analysis = analyze(expr, metrics);
      faults.push(...analysis.faults.map((fault) => `$${name}: ${fault}`));
      if (!analysis.labels?.has(label)) faults.push(`$${name}: no label ${label}`);
    }
    expectNone(faults);
  });

  test('uses no variable that it does not have, and no rule that may not be there', () => {
    const known = new Set(variables.map(({ name }) => name));
    const text = withIntervals(read(DASHBOARD)).replaceAll('$__all', '');
    const used = new Set([...text.matchAll(/\$\{?(\w+)/g)].map(([, name]) => name as string));
    expectNone([...used].filter((name) => !known.has(name)));
    const expressions = panels.flatMap(({ targets = [] }) => targets.map(({ expr }) => expr));
    const recorded = rules.flatMap(({ record }) => record ?? []);
    expectNone(recorded.filter((name) => expressions.some((expr) => expr.includes(name))));
  });

  test('moves to the right axis what a legend has', () => {
    for (const { title, fieldConfig, targets = [] } of panels) {
      for (const { matcher } of fieldConfig?.overrides ?? []) {
        const [, pattern] = /^\/(.+)\/$/.exec(matcher.options) ?? [];
        const isUsed = targets.some(({ legendFormat }) =>
          new RegExp(pattern ?? '$^').test(legendFormat),
        );
        assert.ok(isUsed, `${title}: ${matcher.options}`);
      }
    }
  });
});

suite('the rules', (test) => {
  test('ask only for what kvd has, and name only labels that a result has', async () => {
    const metrics = await knownMetrics();
    const faults: string[] = [];
    for (const { alert, record, expr, annotations = {} } of rules) {
      const analysis = analyze(expr, metrics);
      const missing = missingNames(
        Object.values(annotations).map((text) => text.replaceAll(/\{\{\s*\$value[^}]*\}\}/g, '')),
        analysis.labels,
      ).map((name) => `an annotation names ${name}`);
      faults.push(
        ...[...analysis.faults, ...missing].map((fault) => `${alert ?? record}: ${fault}`),
      );
    }
    expectNone(faults);
  });

  test('have names of their own; alerts say how long, how bad, what and what to do', () => {
    const names = rules.map(({ alert, record }) => alert ?? record);
    assert.is(new Set(names).size, names.length);
    const alerts = rules.filter(({ alert }) => alert !== undefined);
    assert.ok(alerts.length > 0);
    for (const { alert, labels, annotations, for: duration = '' } of alerts) {
      assert.match(duration, /^\d+m$/, alert);
      assert.match(labels?.['severity'] ?? '', /^(critical|warning)$/, alert);
      assert.equal(Object.keys(annotations ?? {}).sort(), ['description', 'runbook', 'summary']);
    }
  });

  test('are explained in the guide and tried in the tests of the rules, each alert', () => {
    const [guide, tests] = [read(GUIDE), read(RULE_TESTS)];
    for (const { alert } of rules) {
      if (alert === undefined) continue;
      assert.ok(guide.includes(`\`${alert}\``), `${GUIDE} lacks ${alert}`);
      assert.ok(tests.includes(`"${alert}"`), `${RULE_TESTS} lacks ${alert}`);
    }
  });
});

// ---------------------------------------------------------------- promtool

function findPromtool(): string | null {
  const cache = process.env['KVD_CACHE_DIR'] ?? path.join(os.homedir(), '.cache/kvd-ci');
  const unpacked = path.join(cache, 'prometheus/usr/bin/promtool');
  if (fs.existsSync(unpacked)) return unpacked;
  return spawnSync('promtool', ['--version']).error ? null : 'promtool';
}

suite('promtool', (test) => {
  const promtool = findPromtool();
  const run = (...words: readonly string[]): void => {
    if (promtool === null) {
      console.log('left out: there is no promtool here');
      return;
    }
    const { status, stdout, stderr } = spawnSync(promtool, words, { cwd: ROOT, encoding: 'utf8' });
    assert.is(status, 0, `promtool ${words.join(' ')}\n${stdout}${stderr}`);
  };

  test('takes the rules', () => run('check', 'rules', RULES));

  test('sees every alert fire, and not fire', () => run('test', 'rules', RULE_TESTS));

  test('takes the expressions of the dashboard, types included', () => {
    const folder = fs.mkdtempSync(path.join(os.tmpdir(), 'kvd-dashboard-'));
    try {
      const file = path.join(folder, 'expressions.yml');
      const expressions = panels.flatMap(({ targets = [] }) => targets.map(({ expr }) => expr));
      const asRules = expressions.map((expr, i) => ({
        record: `dashboard:expression_${i}`,
        expr: withIntervals(expr),
      }));
      fs.writeFileSync(file, JSON.stringify({ groups: [{ name: 'dashboard', rules: asRules }] }));
      run('check', 'rules', file);
    } finally {
      fs.rmSync(folder, { recursive: true, force: true });
    }
  });
});

// ---------------------------------------------------------------- the reader of PromQL

suite('the reader of PromQL', (test) => {
  const metrics = new Map<string, Metric>([
    ['requests_total', { isCounter: true, labels: new Set(['operation']) }],
    ['seconds_bucket', { isCounter: true, labels: new Set(['operation', 'le']) }],
    ['workers', { isCounter: false, labels: new Set() }],
    ['info', { isCounter: false, labels: new Set(['id']) }],
  ]);
  const faultsOf = (text: string) => analyze(text, metrics).faults;
  const labelsOf = (text: string) => [...(analyze(text, metrics).labels ?? ['a number'])].sort();

  test('knows which labels a result has', () => {
    assert.equal(labelsOf('rate(requests_total{job="a"}[5m])'), ['instance', 'job', 'operation']);
    assert.equal(labelsOf('sum by (job) (workers) / (sum by (job) (workers) > 0)'), ['job']);
    assert.equal(labelsOf('sum(workers) or vector(0)'), []);
    assert.equal(labelsOf('topk(3, sum by (operation) (requests_total))'), ['operation']);
    assert.equal(labelsOf('histogram_quantile(0.5, sum by (le) (seconds_bucket))'), []);
    assert.equal(labelsOf('workers * on (job) group_left (id) info'), ['id', 'instance', 'job']);
    assert.equal(labelsOf('absent(workers{job="a"})'), ['job']);
    assert.equal(labelsOf('time() - 5'), ['a number']);
  });

  test('finds what is wrong, and nothing where nothing is', () => {
    const wrong: Readonly<Record<string, RegExp>> = {
      'sum(workers': /syntax/,
      'sum by (job (workers)': /syntax/,
      'worker + workers': /no metric worker$/,
      'workers{operation="a"}': /workers has no label operation/,
      'sum by (le) (requests_total)': /sum is given has no label le/,
      'rate(workers[5m])': /workers, which is no counter/,
      'histogram_quantile(0.5, sum by (operation) (seconds_bucket))': /no label le/,
      'requests_total / workers': /never match/,
      'requests_total unless workers': /never match/,
      'workers * on (operation) info': /left side of on\(\) has no label operation/,
      'workers * on (job) group_left (name) info': /group_left\(\) has no label name/,
    };
    for (const [text, fault] of Object.entries(wrong)) {
      assert.match(faultsOf(text).join('; '), fault, text);
    }
    assert.equal(faultsOf('sum by (job) (increase(requests_total[1m])) > 0 or workers'), []);
  });
});
