/**
 * Reads PromQL as far as dashboards and alerts use it, with Prometheus's own grammar, and says
 * what is wrong with an expression without running it: a metric or a label that does not exist, a
 * rate of something that is no counter, two sides that can never match.
 *
 * `labels` are the names that the series of a result may have; null = a plain number.
 *
 *   sum by (operation, le) (rate(kvd_request_seconds_bucket{job="kvd"}[5m]))
 *   │       └ on the inner result?  │    └ counter? exists?       └ on this metric?
 *   └ labels: operation, le         └ labels: those of the metric, job, instance
 */
import type { SyntaxNode } from '@lezer/common';
import { parser } from '@prometheus-io/lezer-promql';

export interface Metric {
  readonly isCounter: boolean;
  readonly labels: ReadonlySet<string>;
}

export type Labels = ReadonlySet<string> | null;

export interface Analysis {
  readonly labels: Labels;
  readonly faults: readonly string[];
}

/** A Prometheus puts these on whatever it scrapes. */
export const TARGET_LABELS = ['job', 'instance'];

const OVER_COUNTERS = ['rate', 'increase'];
const KEEP_LABELS = [...OVER_COUNTERS, 'changes'];
const SET_OPERATORS = ['And', 'Or', 'Unless'];
const COMPARISONS = ['Eql', 'Neq', 'Gtr', 'Gte', 'Lss', 'Lte'];
/** Nodes around one expression that leave its labels as they are. */
const WRAPPERS = ['PromQL', 'ParenExpr', 'MatrixSelector', 'OffsetExpr', 'UnaryExpr'];
const PICKING = ['topk', 'bottomk'];

export function analyze(text: string, metrics: ReadonlyMap<string, Metric>): Analysis {
  const analyzer = new Analyzer(text, metrics);
  return { labels: analyzer.labels, faults: analyzer.faults };
}

/** `a` and `b` have the same names. */
const isSame = (a: ReadonlySet<string>, b: ReadonlySet<string>): boolean =>
  a.symmetricDifference(b).size === 0;

class Analyzer {
  readonly faults: string[] = [];
  readonly labels: Labels = null;
  readonly #text: string;
  readonly #metrics: ReadonlyMap<string, Metric>;

  constructor(text: string, metrics: ReadonlyMap<string, Metric>) {
    this.#text = text;
    this.#metrics = metrics;
    const tree = parser.parse(text);
    tree.iterate({
      enter: (node) => {
        if (!node.type.isError) return;
        const before = text.slice(0, node.from);
        this.faults.push(`syntax, after ${JSON.stringify(before.slice(-30))}`);
      },
    });
    // Half a tree would only say half-true things about names.
    if (this.faults.length === 0) this.labels = this.#labelsOf(tree.topNode);
  }

  #labelsOf(node: SyntaxNode): Labels {
    if (WRAPPERS.includes(node.name)) return this.#labelsOf(this.#expressionsIn(node)[0] ?? node);
    switch (node.name) {
      case 'NumberDurationLiteral':
        return null;
      case 'VectorSelector':
        return this.#selector(node);
      case 'FunctionCall':
        return this.#call(node);
      case 'AggregateExpr':
        return this.#aggregation(node);
      case 'BinaryExpr':
        return this.#operation(node);
      default:
        throw new Error(`this reader does not know ${node.name}: ${this.#textOf(node)}`);
    }
  }

  #selector(node: SyntaxNode): Labels {
    const name = this.#textOf(node.getChild('Identifier') ?? node);
    const metric = this.#metrics.get(name);
    if (!metric) {
      this.faults.push(`there is no metric ${name}`);
      return new Set(TARGET_LABELS);
    }
    const labels = new Set([...metric.labels, ...TARGET_LABELS]);
    for (const label of this.#matchedLabels(node)) this.#expect(labels, label, name);
    return labels;
  }

  #call(node: SyntaxNode): Labels {
    const name = this.#textOf(node.getChild('FunctionIdentifier') as SyntaxNode);
    const body = node.getChild('FunctionCallBody') as SyntaxNode;
    const inner = this.#expressionsIn(body);
    const ofInner = inner.map((argument) => this.#labelsOf(argument));
    if (name === 'time') return null;
    if (name === 'vector') return new Set();
    const labels = ofInner.at(-1) ?? new Set<string>();
    if (name === 'absent') return new Set(this.#matchedLabels(inner[0] as SyntaxNode));
    if (name === 'histogram_quantile') {
      this.#expect(labels, 'le', 'what histogram_quantile is given');
      return labels.difference(new Set(['le']));
    }
    if (!KEEP_LABELS.includes(name)) throw new Error(`this reader does not know ${name}()`);
    const metric = this.#textOf(inner[0] as SyntaxNode).replace(/[^\w:].*$/s, '');
    if (OVER_COUNTERS.includes(name) && this.#metrics.get(metric)?.isCounter === false) {
      this.faults.push(`${name}() of ${metric}, which is no counter`);
    }
    return labels;
  }

  #aggregation(node: SyntaxNode): Labels {
    const operator = this.#textOf(node.getChild('AggregateOp') as SyntaxNode);
    const body = node.getChild('FunctionCallBody') as SyntaxNode;
    const inner = this.#expressionsIn(body).map((argument) => this.#labelsOf(argument));
    const labels = inner.at(-1) ?? new Set<string>();
    const modifier = node.getChild('AggregateModifier');
    if (!modifier) return PICKING.includes(operator) ? labels : new Set();
    const names = this.#grouping(modifier.getChild('GroupingLabels'));
    for (const name of names) this.#expect(labels, name, `what ${operator} is given`);
    const isBy = modifier.getChild('By') !== null;
    return isBy ? new Set(names) : labels.difference(new Set(names));
  }

  #operation(node: SyntaxNode): Labels {
    const [leftNode, rightNode] = this.#expressionsIn(node) as [SyntaxNode, SyntaxNode];
    const [left, right] = [this.#labelsOf(leftNode), this.#labelsOf(rightNode)];
    if (left === null || right === null) return left ?? right;
    const operator = leftNode.nextSibling?.name ?? '';
    const clause = node.getChild('MatchingModifierClause');
    if (!clause) {
      if (operator === 'Or') return left.union(right);
      if (!isSame(left, right)) {
        this.faults.push(`{${[...left]}} ${operator} {${[...right]}} can never match`);
      }
      return left;
    }
    if (!clause.getChild('On')) throw new Error('this reader does not know ignoring()');
    const [on = [], more = []] = clause
      .getChildren('GroupingLabels')
      .map((grouping) => this.#grouping(grouping));
    for (const label of on) {
      this.#expect(left, label, 'the left side of on()');
      this.#expect(right, label, 'the right side of on()');
    }
    for (const label of more) this.#expect(right, label, 'the right side of group_left()');
    if (operator === 'Or') return left.union(right);
    if (SET_OPERATORS.includes(operator) || COMPARISONS.includes(operator)) return left;
    return clause.getChild('GroupLeft') ? left.union(new Set(more)) : new Set(on);
  }

  #expect(labels: ReadonlySet<string>, label: string, owner: string): void {
    if (!labels.has(label)) this.faults.push(`${owner} has no label ${label}`);
  }

  #matchedLabels(node: SyntaxNode): string[] {
    const matchers = node.getChild('LabelMatchers')?.getChildren('UnquotedLabelMatcher') ?? [];
    return matchers.map((matcher) => this.#textOf(matcher.getChild('LabelName') as SyntaxNode));
  }

  #grouping(node: SyntaxNode | null): string[] {
    return (node?.getChildren('LabelName') ?? []).map((label) => this.#textOf(label));
  }

  #expressionsIn(node: SyntaxNode): SyntaxNode[] {
    return node.getChildren('Expr');
  }

  #textOf({ from, to }: SyntaxNode): string {
    return this.#text.slice(from, to);
  }
}
