/** What the strict reader refuses: a test that passes by it must not pass by its leniency. */
import * as assert from 'uvu/assert';
import { parsePrometheusText } from '../../support/prometheus-parser.ts';
import { suite } from '../../support/suite.ts';

const GAUGE = '# HELP g Help.\n# TYPE g gauge\n';
const HISTOGRAM = '# HELP h Help.\n# TYPE h histogram\n';

/** The end of a histogram of one value. */
const REST = 'h_bucket{le="+Inf"} 1\nh_count 1\nh_sum 1\n';

const REFUSED: readonly (readonly [why: string, text: string, complaint: RegExp])[] = [
  ['an unfinished line', `${GAUGE}g 1`, /no end/],
  ['a family twice', `${GAUGE}g{x="1"} 1\n${GAUGE}g{x="2"} 1\n`, /family twice/],
  ['a series twice', `${GAUGE}g{x="1"} 1\ng{x="1"} 2\n`, /series twice/],
  ['samples before their family', `g 1\n${GAUGE}g 1\n`, /astray/],
  ['samples of another family', `${GAUGE}f 1\n`, /astray/],
  ['a type without help', '# TYPE g gauge\ng 1\n', /TYPE without HELP/],
  ['an unknown type', '# HELP g Help.\n# TYPE g summary\ng 1\n', /type/],
  ['a family without samples', GAUGE, /no samples/],
  ['a unit', `${GAUGE}# UNIT g s\ng 1\n`, /not a sample|astray|name/],
  ['a timestamp', `${GAUGE}g 1 1700000000\n`, /not a sample/],
  ['no number', `${GAUGE}g NaN\n`, /not a number/],
  ['a bare quote', `${GAUGE}g{x="a"b"} 1\n`, /labels/],
  ['an unknown escape', `${GAUGE}g{x="\\t"} 1\n`, /escape/],
  ['a comma at the end', `${GAUGE}g{x="1",} 1\n`, /commas/],
  ['a label twice', `${GAUGE}g{x="1",x="2"} 1\n`, /twice/],
  ['unsorted labels', `${GAUGE}g{y="1",x="2"} 1\n`, /not sorted/],
  ['different labels', `${GAUGE}g 1\ng{x="1"} 1\n`, /different sets/],
  ['a counter without _total', '# HELP c H\n# TYPE c counter\nc 1\n', /_total/],
  [
    'a bare bound',
    `${HISTOGRAM}h_bucket{le="5"} 1\nh_bucket{le="+Inf"} 1\nh_count 1\nh_sum 1\n`,
    /bounds/,
  ],
  ['bounds that fall', `${HISTOGRAM}h_bucket{le="5.0"} 1\nh_bucket{le="2.0"} 1\n${REST}`, /bounds/],
  ['no last bucket', `${HISTOGRAM}h_bucket{le="5.0"} 1\nh_count 1\nh_sum 1\n`, /\+Inf/],
  [
    'counts that fall',
    `${HISTOGRAM}h_bucket{le="5.0"} 2\nh_bucket{le="+Inf"} 1\nh_count 1\nh_sum 1\n`,
    /falling/,
  ],
  ['another count', `${HISTOGRAM}h_bucket{le="+Inf"} 1\nh_count 2\nh_sum 1\n`, /_count/],
  ['another order', `${HISTOGRAM}h_bucket{le="+Inf"} 1\nh_sum 1\nh_count 1\n`, /order/],
];

suite('reader of Prometheus text', (test) => {
  for (const [why, text, complaint] of REFUSED) {
    test(`refuses ${why}`, () => {
      assert.throws(() => parsePrometheusText(text), complaint);
    });
  }

  test('reads what is right', () => {
    const text = `${GAUGE}g{x="a\\"b\\\\\\n"} 1\n${HISTOGRAM}${REST}`;
    const families = parsePrometheusText(text);
    assert.equal([...families.keys()], ['g', 'h']);
    assert.is(families.get('g')?.samples[0]?.labels.get('x'), 'a"b\\\n');
  });
});
