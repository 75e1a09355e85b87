import * as assert from 'uvu/assert';
import { LatencyBook, LatencySeries } from '../../../../src/client/load/latency-series.ts';
import { suite } from '../../../support/suite.ts';

suite('latencies', (test) => {
  test('are summed up from any order; percentiles are values that were measured', () => {
    const series = new LatencySeries();
    for (let ms = 200; ms >= 1; ms -= 1) series.add(ms);
    assert.equal(series.summary(), {
      count: 200,
      meanMs: 100.5,
      minMs: 1,
      maxMs: 200,
      p50Ms: 101,
      p99Ms: 199,
    });
  });

  test('one value is all there is to say; none is nothing', () => {
    const series = new LatencySeries();
    assert.is(series.summary(), null);
    series.add(3);
    const same = { meanMs: 3, minMs: 3, maxMs: 3, p50Ms: 3, p99Ms: 3 };
    assert.equal(series.summary(), { count: 1, ...same });
  });

  test('a book keeps steps apart', () => {
    const book = new LatencyBook();
    book.add('a', 1);
    book.add('b', 2);
    book.add('a', 3);
    assert.is(book.summary('a')?.count, 2);
    assert.is(book.summary('b')?.meanMs, 2);
    assert.is(book.summary('c'), null);
  });
});
