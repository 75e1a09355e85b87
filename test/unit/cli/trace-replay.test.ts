import fs from 'node:fs';
import path from 'node:path';
import * as assert from 'uvu/assert';
import type { CommandError } from '../../../src/cli/arguments.ts';
import { formatTerminal } from '../../../src/cli/report.ts';
import { parseReplayArguments, splitWords } from '../../../src/cli/trace-replay-arguments.ts';
import { readCall } from '../../../src/cli/trace-replay-calls.ts';
import { replayTrace } from '../../../src/cli/trace-replay-driver.ts';
import {
  formatReplayCsv,
  formatReplayJson,
  formatReplayLine,
  type ReplayedRecord,
  ReplayStatistics,
  replayReport,
} from '../../../src/cli/trace-replay-report.ts';
import type { TraceRecord } from '../../../src/observability/trace-file/frames.ts';
import { STORAGE_PREFIX } from '../../../src/observability/trace-file/storage-calls.ts';
import { rejects } from '../../support/rejects.ts';
import { suite } from '../../support/suite.ts';
import { VirtualClock } from '../../support/virtual-clock.ts';

const VECTORS = path.join(import.meta.dirname, '../../vectors/metrics');
const vector = (name: string) => fs.readFileSync(path.join(VECTORS, name), 'utf8');
const STORAGE = ['--l1-size-gb', '0.1', '--eviction-policy', 'LRU'];

const typed = (tag: string, payload: unknown) => ({ __t__: tag, v: payload });
const KEY = typed('ObjectKey', {
  ...{ chunk_hash: new Uint8Array(32), model_name: 'm', kv_rank: 16_777_472 },
});
const LAYOUT = typed('MemoryLayoutDesc', { shapes: [[2, 4]], dtypes: ['torch.float16'] });

function recordOf(name: string, args: Record<string, unknown>, monoSeconds = 0): TraceRecord {
  return { monoSeconds, wallSeconds: 0, qualname: STORAGE_PREFIX + name, rawArguments: args };
}

suite('kvd trace replay: arguments', (test) => {
  test('the file may stand anywhere, and flags of the storage room may be shortened', () => {
    const argv = ['--l1-size', '1', '--no-l1-use-lazy', 'a.lct', '--eviction-pol=LRU', '--json'];
    assert.equal(splitWords(argv), {
      own: ['a.lct', '--json'],
      server: ['--l1-size', '1', '--no-l1-use-lazy', '--eviction-pol=LRU'],
    });
    assert.equal(splitWords(['--memory-strict', 'a.lct', '--speed', 'max']).own, [
      ...['a.lct', '--speed', 'max'],
    ]);
  });

  test('a replay is not recorded', () => {
    const argv = ['--trace-level', 'storage', 'a.lct', '--trace-output=b.lct'];
    assert.equal(splitWords(argv), { own: ['a.lct'], server: [] });
  });

  test('what is not said has the defaults', async () => {
    const parsed = await parseReplayArguments(['a.lct', ...STORAGE]);
    const { config, report, warnings, ...rest } = parsed!;
    assert.equal(rest, {
      ...{ file: 'a.lct', speed: 1, isVerbose: false, recordsPath: null, outputFolder: '.' },
      ...{ hasCsv: true, hasJson: false },
    });
    assert.is(config.evictionPolicy, 'LRU');
  });

  test('everything that is wrong is said at once', async () => {
    const error = await rejects(parseReplayArguments(['a.lct', '--speed', '-1', '--nope']), /./);
    assert.is((error as CommandError).exitCode, 2);
    assert.equal(error.message.split('\n'), [
      "kvd trace replay: error: --speed: expected a number from 0.001 to 1000000, got '-1'",
      'kvd trace replay: error: --nope: unknown flag',
      'kvd trace replay: error: --l1-size-gb: required, for example --l1-size-gb 20',
      'kvd trace replay: error: --eviction-policy: required, for example --eviction-policy LRU',
    ]);
  });
});

suite('kvd trace replay: calls', (test) => {
  test('arguments that may be missing have the defaults of the reference', () => {
    const record = recordOf('submit_prefetch_task', { keys: [KEY], layout_desc: LAYOUT });
    const call = readCall(record);
    assert.ok('operation' in call && call.operation === 'submit_prefetch_task');
    const { keys, extraCount, isPrefix, skipsL2 } = call;
    assert.equal([keys.length, extraCount, isPrefix, skipsL2], [1, 0, true, false]);
  });

  test('a call that nobody knows, or cannot decode, is skipped with the reason', () => {
    const keys = [KEY, typed('GroupedObjectKeys', {})];
    for (const [record, reason] of [
      [{ ...recordOf('', {}), qualname: 'some.other.call' }, 'no such call'],
      [recordOf('toString', {}), 'no such call'],
      [recordOf('finish_write', { keys }), 'keys: unknown type GroupedObjectKeys'],
      [
        recordOf('finish_write', { keys: [typed('ObjectKey', null)] }),
        'keys: ObjectKey: expected a map, got nil',
      ],
    ] as const) {
      assert.equal(readCall(record), { skipped: reason });
    }
  });

  test('a call with arguments that it does not have fails', () => {
    const reserve = { keys: [KEY], layout_desc: LAYOUT, mode: 'new' };
    for (const [record, reason] of [
      [recordOf('reserve_write', { keys: [KEY] }), /expected the argument layout_desc/],
      [recordOf('reserve_write', { ...reserve, bogus: 1 }), /has no argument bogus/],
      [recordOf('reserve_write', { ...reserve, keys: 5 }), /expected keys to be a list/],
      [recordOf('reserve_write', { ...reserve, keys: ['x'] }), /keys to be object keys/],
      [recordOf('reserve_write', { ...reserve, layout_desc: {} }), /to be a memory layout/],
      [recordOf('finish_read_prefetched', { keys: [], extra_count: -1 }), /extra_count from 0/],
      [recordOf('finish_read_prefetched', { keys: [], extra_count: 1e9 }), /extra_count from 0/],
    ] as const) {
      assert.throws(() => readCall(record), reason);
    }
  });
});

suite('kvd trace replay: time', (test) => {
  const FINISH = { keys: [] };

  async function* recordsAt(...seconds: readonly number[]) {
    for (const monoSeconds of seconds) yield recordOf('finish_write', FINISH, monoSeconds);
  }

  /** Replays on a clock that goes on by `stepMs` in each turn of the event loop. */
  async function replay(
    records: AsyncIterable<TraceRecord>,
    options: { speed?: number; stepMs?: number; runMs?: number; abortAfter?: number } = {},
  ) {
    const { speed = 1, stepMs = 0.25, runMs = 0, abortAfter = Number.POSITIVE_INFINITY } = options;
    const clock = new VirtualClock(1000);
    const startsMs: number[] = [];
    const replayed: ReplayedRecord[] = [];
    const controller = new AbortController();
    const storage = {
      prepare: async () => ({
        run() {
          startsMs.push(clock.preciseMs() - 1000);
          clock.standStill(runMs);
        },
        after() {},
      }),
      close: async () => {},
    };
    let isOver = false;
    const end = replayTrace({
      ...{ records, storage, clock, speed, signal: controller.signal, warn() {} },
      onRecord: (record) => {
        replayed.push(record);
        if (replayed.length === abortAfter) controller.abort();
      },
    }).finally(() => {
      isOver = true;
    });
    while (!isOver) {
      clock.advance(stepMs);
      await new Promise((resolve) => setImmediate(resolve));
    }
    return { startsMs, replayed, durationSeconds: await end };
  }

  test('no call is made before its time, and none is put off', async () => {
    const { startsMs } = await replay(recordsAt(0.001, 0.0105, 0.0105, 0.02));
    for (const [i, dueMs] of [1, 10.5, 10.5, 20].entries()) {
      const startMs = startsMs[i] as number;
      assert.ok(startMs >= dueMs && startMs < dueMs + 3, `${startMs} for ${dueMs}`);
    }
  });

  test('a timer that comes too early is waited for again', async () => {
    const records = recordsAt(0.01);
    const clock = new VirtualClock();
    let fired = 0;
    const early = {
      ...{ nowMs: () => clock.nowMs(), preciseMs: () => clock.preciseMs(), wallMs: () => 0 },
      every: () => ({ cancel() {} }),
      after: (delayMs: number, run: () => void) => {
        fired += 1;
        clock.standStill(fired < 3 ? delayMs / 2 : delayMs);
        setImmediate(run);
        return { cancel() {} };
      },
    };
    let startMs = -1;
    const run = () => {
      startMs = clock.preciseMs();
    };
    await replayTrace({
      storage: { prepare: async () => ({ run, after() {} }), close: async () => {} },
      ...{ records, clock: early, speed: 1, signal: new AbortController().signal },
      ...{ onRecord() {}, warn() {} },
    });
    assert.is(fired, 3);
    assert.ok(startMs >= 10);
  });

  test('at twice the speed it takes half the time, at the greatest none', async () => {
    const twice = await replay(recordsAt(0, 0.04), { speed: 2 });
    assert.ok(twice.startsMs[1]! >= 20 && twice.startsMs[1]! < 23);
    const fastest = await replay(recordsAt(0, 0.04, 1e6), { speed: Number.POSITIVE_INFINITY });
    assert.ok(fastest.durationSeconds < 0.01);
  });

  test('a call’s latency is that of the call alone', async () => {
    const { replayed } = await replay(recordsAt(0.01, 0.02), { runMs: 3 });
    assert.equal(
      replayed.map(({ latencyMs, outcome }) => [Math.round(latencyMs * 1000) / 1000, outcome]),
      [
        [3, 'done'],
        [3, 'done'],
      ],
    );
  });

  test('broken off, it ends without waiting for the rest', async () => {
    const { replayed, durationSeconds } = await replay(recordsAt(0, 1e6), { abortAfter: 1 });
    assert.is(replayed.length, 1);
    assert.ok(durationSeconds < 1);
  });

  test('calls that fail and calls that are skipped do not end it', async () => {
    async function* records() {
      yield recordOf('finish_write', { keys: 5 });
      yield { ...recordOf('', {}), qualname: 'other' };
      yield recordOf('finish_write', FINISH);
    }
    const { replayed } = await replay(records());
    assert.equal(
      replayed.map(({ outcome }) => outcome),
      ['failed', 'skipped', 'done'],
    );
    assert.is(replayed[1]?.latencyMs, 0);
  });
});

suite('kvd trace replay: figures', (test) => {
  const LINES = vector('trace_replay_records.jsonl').trimEnd().split('\n');
  const RECORDS = LINES.map((line): ReplayedRecord => {
    const { qualname, latency_ms: latencyMs, failed } = JSON.parse(line);
    return { qualname, latencyMs, outcome: failed ? 'failed' : 'done' };
  });

  function statisticsOf(records: readonly ReplayedRecord[]): ReplayStatistics {
    const statistics = new ReplayStatistics();
    for (const record of records) statistics.add(record);
    return statistics;
  }

  function summaryOf(records: readonly ReplayedRecord[], durationSeconds: number) {
    const statistics = statisticsOf(records);
    const { replayedCount, skippedCount, failedCount } = statistics;
    const operations = statistics.operations();
    return {
      ...{ level: 'storage', replayedCount, skippedCount, failedCount, durationSeconds },
      ...{ operations, digests: null },
    };
  }

  test('lines of records are those of the reference, byte for byte', () => {
    assert.equal(
      RECORDS.map(formatReplayLine),
      LINES.map((line) => `${line}\n`),
    );
    const skipped = { qualname: 'é', latencyMs: 0, outcome: 'skipped' } as const;
    const line = '{"qualname": "\\u00e9", "latency_ms": 0.0, "failed": true}\n';
    assert.is(formatReplayLine(skipped), line);
  });

  test('the table of its records is that of the reference, byte for byte', () => {
    const operations = statisticsOf(RECORDS).operations();
    assert.is(formatReplayCsv(operations), vector('trace_replay_ops.csv'));
  });

  test('the summary has the form of the reference, and its figures', () => {
    const expected = vector('trace_replay_summary.json');
    const { duration_s: durationSeconds, ops } = JSON.parse(expected);
    const summary = summaryOf(RECORDS, durationSeconds);
    // Python adds floats in another order; the last digits of a mean are not a promise.
    const operations = summary.operations.map((of) => {
      const meanMs = ops[of.qualname].mean_ms;
      assert.ok(Math.abs(of.meanMs - meanMs) < 1e-12);
      return { ...of, meanMs };
    });
    assert.is(formatReplayJson({ ...summary, operations }), expected);
  });

  test('failed calls are counted and not timed, skipped ones are nobody’s', () => {
    const statistics = statisticsOf([
      { qualname: 'a', latencyMs: 4, outcome: 'done' },
      { qualname: 'a', latencyMs: 100, outcome: 'failed' },
      { qualname: 'b', latencyMs: 1, outcome: 'failed' },
      { qualname: 'c', latencyMs: 0, outcome: 'skipped' },
    ]);
    const { replayedCount, failedCount, skippedCount } = statistics;
    assert.equal([replayedCount, failedCount, skippedCount], [1, 2, 1]);
    assert.equal(formatReplayCsv(statistics.operations()).split('\r\n').slice(1), [
      'a,1,1,4.000000,4.000000,4.000000,4.000000,4.000000,4.000000',
      'b,0,1,0.000000,0.000000,0.000000,0.000000,0.000000,0.000000',
      '',
    ]);
  });

  test('people get a table, with the digest when the trace has one', () => {
    const done = { outcome: 'done' } as const;
    const qualname = `${STORAGE_PREFIX}read_prefetched_results.__enter__`;
    const summary = summaryOf([{ qualname, latencyMs: 0.125, ...done }], 11.0621);
    const recorded = 'adccb0e09b';
    const text = formatTerminal(
      replayReport({ ...summary, digests: { recorded, run: '9fa409e4ff' } }),
    );
    assert.equal(text.split('\n'), [
      '===================== Trace Replay Result ======================',
      '--------------------------- Overall ----------------------------',
      'Trace level:                                             storage',
      'Records replayed:                                              1',
      'Records skipped:                                               0',
      'Records failed:                                                0',
      'Replay duration (s):                                       11.06',
      'Config digest:             MISMATCH (rec=adccb0e0, run=9fa409e4)',
      '--------------------- Per-Op Latency (ms) ----------------------',
      'read_prefetched_results.enter count:                           1',
      'read_prefetched_results.enter mean:                         0.13',
      'read_prefetched_results.enter p50:                          0.13',
      'read_prefetched_results.enter p99:                          0.13',
      '================================================================',
      '',
    ]);
    const match = replayReport({ ...summary, digests: { recorded, run: recorded } });
    assert.match(formatTerminal(match), /^Config digest: +match \(adccb0e0\)$/m);
    assert.not.match(formatTerminal(replayReport(summary)), /digest/);
  });
});
