import fs from 'node:fs';
import os from 'node:os';
import path from 'node:path';
import * as assert from 'uvu/assert';
import { CommandError } from '../../../src/cli/arguments.ts';
import { run } from '../../../src/cli/trace.ts';
import {
  formatTraceSummary,
  summarizeTrace,
  traceSummaryJson,
} from '../../../src/cli/trace-info.ts';
import {
  encodeHeader,
  encodeRecord,
  encodeTrailer,
} from '../../../src/observability/trace-file/frames.ts';
import { rejects } from '../../support/rejects.ts';
import { suite } from '../../support/suite.ts';

const VECTOR = path.join(import.meta.dirname, '../../vectors/metrics/trace_storage_0.5.0.lct');
const DIGEST = 'adccb0e09b47d4ae9b055b2ac91ec060e7fdb4202be349c558dea4433979c850';
const PREFIX = 'lmcache.v1.distributed.storage_manager.StorageManager.';
const neverWarn = (message: string) => assert.unreachable(message);

function headerOf(configDigest: string): Buffer {
  return encodeHeader({
    ...{ formatVersion: 1, level: 'storage', schemaVersion: 1, configText: '', configDigest },
    ...{ monoStartSeconds: 1, wallStartSeconds: 2 },
  });
}

suite('kvd trace info', (test) => {
  const folder = fs.mkdtempSync(path.join(os.tmpdir(), 'kvd-trace-info-'));
  test.after(() => fs.rmSync(folder, { recursive: true }));

  function write(...frames: readonly Buffer[]): string {
    const file = path.join(folder, 'a.lct');
    fs.writeFileSync(file, Buffer.concat(frames));
    return file;
  }

  test('says of the reference’s trace what the reference says', async () => {
    const text = formatTraceSummary(await summarizeTrace(VECTOR, neverWarn));
    assert.equal(text.split('\n'), [
      `Trace file: ${VECTOR}`,
      '  level:                storage',
      '  format_version:       1',
      '  trace_schema_version: 1',
      '  duration:             11.062s',
      `  sm_config_digest:     ${DIGEST}`,
      '  total_records:        24',
      '  ops:',
      `    ${PREFIX}finish_read_prefetched: 3`,
      `    ${PREFIX}finish_write: 4`,
      `    ${PREFIX}read_prefetched_results.__enter__: 3`,
      `    ${PREFIX}read_prefetched_results.__exit__: 3`,
      `    ${PREFIX}reserve_write: 4`,
      `    ${PREFIX}submit_prefetch_task: 7`,
      '',
    ]);
  });

  test('a trace without records and configuration has neither', async () => {
    const file = write(headerOf(''));
    const text = formatTraceSummary(await summarizeTrace(file, neverWarn));
    assert.match(text, /^ {2}sm_config_digest: {5}\(none\)$/m);
    assert.match(text, /^ {2}total_records: {8}0\n {2}ops: \(none\)\n$/m);
  });

  test('what a trace lacks has lines of its own', async () => {
    const names = ['b', 'a', 'b\u001b[2J'];
    const records = names.map((qualname) =>
      encodeRecord({ monoSeconds: 1, wallSeconds: 0, qualname }, new Map()),
    );
    const trailer = encodeTrailer({ monoSeconds: 1, recordCount: 3, droppedCount: 7 });
    const file = write(headerOf(''), ...records, Buffer.alloc(4), trailer);
    const summary = await summarizeTrace(file, () => {});
    assert.match(
      formatTraceSummary(summary),
      / {2}total_records: {8}3\n {2}skipped_records: {6}1\n {2}dropped_records: {6}7\n {2}ops:\n/,
    );
    // Nothing of a file is obeyed by the terminal.
    assert.match(formatTraceSummary(summary), /\n {4}a: 1\n {4}b: 1\n {4}b\?\[2J: 1\n$/);
    const { title, metrics } = JSON.parse(traceSummaryJson(summary));
    assert.is(title, 'Trace Info');
    assert.equal(metrics, {
      ...{ file, level: 'storage', format_version: 1, trace_schema_version: 1, duration_s: 1 },
      ...{ wall_start_s: 2, sm_config_digest: '', total_records: 3, skipped_records: 1 },
      ...{ dropped_records: 7, is_complete: true, ops: { a: 1, b: 1, 'b\u001b[2J': 1 } },
    });
  });

  test('a recording that was cut off is not complete', async () => {
    const record = encodeRecord({ monoSeconds: 1, wallSeconds: 0, qualname: 'a' }, new Map());
    const file = write(headerOf(''), record.subarray(0, -1));
    const warnings: string[] = [];
    const summary = await summarizeTrace(file, (text) => warnings.push(text));
    assert.is(warnings.length, 1);
    const { metrics } = JSON.parse(traceSummaryJson(summary));
    assert.equal([metrics.is_complete, metrics.dropped_records], [false, null]);
  });

  test('problems are one line and an exit code', async () => {
    const missing = path.join(folder, 'none.lct');
    const cases: readonly (readonly [readonly string[], RegExp, number])[] = [
      [['info', missing], /^kvd trace info: error: .*none\.lct: there is no such file$/, 1],
      [['nope'], /^kvd trace: error: unknown command 'nope'\n\nusage: /, 2],
      [['toString'], /^kvd trace: error: unknown command/, 2],
      [[], /^usage: kvd trace <command> FILE/, 2],
    ];
    for (const [argv, expected, exitCode] of cases) {
      const error = await rejects(run(argv), expected);
      assert.instance(error, CommandError);
      assert.is((error as CommandError).exitCode, exitCode);
    }
  });

  test('--output and -q keep the terminal clean', async () => {
    const output = path.join(folder, 'summary.json');
    assert.is(await run(['info', VECTOR, '--format', 'json', '--output', output]), 0);
    assert.is(JSON.parse(fs.readFileSync(output, 'utf8')).metrics.total_records, 24);
    assert.is(await run(['info', VECTOR, '-q']), 0);
  });
});
