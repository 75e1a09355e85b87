import { spawn, spawnSync } from 'node:child_process';
import { once } from 'node:events';
import fs from 'node:fs';
import os from 'node:os';
import path from 'node:path';
import * as assert from 'uvu/assert';
import { type Clock, systemClock } from '../../../src/clock.ts';
import { readArguments, type TraceRecord } from '../../../src/observability/trace-file/frames.ts';
import type { StorageCall } from '../../../src/observability/trace-file/storage-calls.ts';
import { TraceReader } from '../../../src/observability/trace-file/trace-reader.ts';
import {
  defaultTracePath,
  QUEUE_SIZE_MAX_BYTES,
  TraceRecorder,
} from '../../../src/observability/trace-file/trace-recorder.ts';
import { RecordingLogger } from '../../support/recording-logger.ts';
import { refuses } from '../../support/rejects.ts';
import { suite } from '../../support/suite.ts';
import { VirtualClock } from '../../support/virtual-clock.ts';

const SOURCE = path.resolve(
  import.meta.dirname,
  '../../../src/observability/trace-file/trace-recorder.ts',
);
const CLOCK = path.resolve(SOURCE, '../../../clock.ts');
const NAMESPACE = { modelName: 'm', kvRank: 16_777_472, objectGroupId: 0, cacheSalt: 'tenant' };

const keysOf = (count: number) =>
  Array.from({ length: count }, (_, i) => ({
    chunkHash: new Uint8Array(32).fill(i),
    namespace: NAMESPACE,
  }));
const finishOf = (count: number): StorageCall => ({
  operation: 'finish_write',
  keys: keysOf(count),
});

/** A program that records without an end, and says when the file has its first record. */
function recordingProgram(file: string): string {
  return `
    const { TraceRecorder } = await import(${JSON.stringify(SOURCE)});
    const { systemClock } = await import(${JSON.stringify(CLOCK)});
    const say = (text) => process.stdout.write(text + '\\n');
    const log = { info() {}, warn: say, limited() {}, error: say };
    const recorder = await TraceRecorder.open({
      path: ${JSON.stringify(file)}, sizeMaxBytes: 2 ** 30, config: null, clock: systemClock, log,
    });
    const keys = Array.from({ length: 64 }, (_, i) => ({
      chunkHash: new Uint8Array(32).fill(i),
      namespace: { modelName: 'm', kvRank: 1, objectGroupId: 0, cacheSalt: '' },
    }));
    for (let i = 0; i < 20_000; i += 1) {
      recorder.record({ operation: 'finish_write', keys });
      if (i % 50 === 0) await new Promise((resolve) => setTimeout(resolve, 2));
      if (i === 500) say('recorded');
    }
    await recorder.close();
    say('dropped ' + recorder.droppedCount);
  `;
}

suite('recording a trace', (test) => {
  const folder = fs.mkdtempSync(path.join(os.tmpdir(), 'kvd-trace-recorder-'));
  test.after(() => fs.rmSync(folder, { recursive: true }));
  let fileCount = 0;
  const newFile = () => {
    fileCount += 1;
    return path.join(folder, `${fileCount}.lct`);
  };

  async function open(clock: Clock = new VirtualClock()) {
    const log = new RecordingLogger();
    const config = { text: '{"a": 1}', digest: 'd'.repeat(64) };
    const options = { path: newFile(), sizeMaxBytes: 2 ** 30, config, clock, log };
    return { log, recorder: await TraceRecorder.open(options) };
  }

  async function read(file: string) {
    const reader = await TraceReader.open({ path: file, warn: () => {} });
    const records: TraceRecord[] = [];
    for await (const record of reader.records()) records.push(record);
    await reader.close();
    return { reader, records };
  }

  test('a call has the reference’s arguments in their order, and its time', async () => {
    const clock = new VirtualClock();
    const { recorder } = await open(clock);
    const layout = { shapes: [[2, 4]], dtypes: ['torch.float16'] };
    clock.advance(1500);
    recorder.record({
      ...{ operation: 'submit_prefetch_task', keys: keysOf(2), layout, extraCount: 3 },
    });
    recorder.record({ operation: 'reserve_write', keys: keysOf(1), layout });
    recorder.record({ operation: 'finish_read_prefetched', keys: keysOf(1), extraCount: 0 });
    await recorder.close();
    const { reader, records } = await read(recorder.path);
    const [lookup, reservation, release] = records.map(readArguments);
    assert.equal(
      [lookup, reservation, release].map((args) => [...args!.keys()]),
      [
        ['keys', 'layout_desc', 'extra_count', 'external_request_id', 'policy', 'skip_l2'],
        ['keys', 'layout_desc', 'mode'],
        ['keys', 'extra_count'],
      ],
    );
    assert.is(lookup!.get('extra_count'), 3);
    assert.equal(lookup!.get('policy'), { tag: 'TrimPolicy', value: 'PREFIX' });
    assert.equal(lookup!.get('layout_desc'), { tag: 'MemoryLayoutDesc', value: layout });
    assert.is(records[0]?.monoSeconds, 1.5);
    assert.is(records[0]?.wallSeconds, 1_700_000_001.5);
    const { configText, configDigest, wallStartSeconds } = reader.header;
    assert.equal([configText, configDigest], ['{"a": 1}', 'd'.repeat(64)]);
    assert.is(wallStartSeconds, 1_700_000_000);
  });

  test('what is recorded reaches the file without an end of the recording', async () => {
    const { recorder } = await open(systemClock);
    recorder.record(finishOf(1));
    const headerBytes = fs.statSync(recorder.path).size;
    const deadlineMs = systemClock.nowMs() + 10_000;
    while (fs.statSync(recorder.path).size === headerBytes) {
      assert.ok(systemClock.nowMs() < deadlineMs, 'nothing was written');
      await new Promise((resolve) => setImmediate(resolve));
    }
    assert.is((await read(recorder.path)).records.length, 1);
    await recorder.close();
  });

  test('calls that come faster than the disk are dropped, and counted', async () => {
    const { recorder, log } = await open();
    const large = finishOf(20_000);
    const frameBytes = 20_000 * 100;
    const count = Math.ceil((1.5 * QUEUE_SIZE_MAX_BYTES) / frameBytes);
    // Nothing is written before this turn of the event loop is over.
    for (let i = 0; i < count; i += 1) recorder.record(large);
    assert.ok(recorder.droppedCount > 0);
    assert.ok(log.has(/the disk is too slow for the trace/));
    await new Promise((resolve) => setImmediate(resolve));
    await recorder.close();
    const { reader, records } = await read(recorder.path);
    assert.is(records.length + recorder.droppedCount, count);
    assert.is(reader.trailer?.droppedCount, recorder.droppedCount);
    assert.ok(fs.statSync(recorder.path).size <= QUEUE_SIZE_MAX_BYTES + 4096);
    assert.ok(log.has(/lacks \d+ calls/));
  });

  test('behind a full queue it goes on when the disk has caught up', async () => {
    const { recorder } = await open();
    const large = finishOf(20_000);
    while (recorder.droppedCount === 0) recorder.record(large);
    const caughtUp = () => fs.statSync(recorder.path).size > 0.9 * QUEUE_SIZE_MAX_BYTES;
    while (!caughtUp()) await new Promise((resolve) => setImmediate(resolve));
    await new Promise((resolve) => setImmediate(resolve));
    const recordedBefore = recorder.recordCount;
    recorder.record(finishOf(1));
    assert.is(recorder.recordCount, recordedBefore + 1);
    await recorder.close();
    const { records } = await read(recorder.path);
    assert.is(records.length, recordedBefore + 1);
  });

  test('a call that cannot be encoded is dropped, and nothing else', async () => {
    const { recorder, log } = await open();
    const keys = [{ chunkHash: new Uint8Array(256), namespace: NAMESPACE }];
    recorder.record({ operation: 'finish_write', keys });
    recorder.record(finishOf(1));
    await recorder.close();
    assert.is(recorder.droppedCount, 1);
    assert.ok(log.has(/cannot be recorded: .*at most 255 bytes, got 256/));
    assert.is((await read(recorder.path)).records.length, 1);
  });

  test('a call above the bound of a frame is dropped', async () => {
    const { recorder, log } = await open();
    recorder.record({ operation: 'finish_write', keys: new Array(700_000).fill(keysOf(1)[0]) });
    await recorder.close();
    assert.is(recorder.droppedCount, 1);
    assert.ok(log.has(/too large to be recorded/));
  });

  test('a call after the end is counted and does no harm', async () => {
    const { recorder } = await open();
    await recorder.close();
    recorder.record(finishOf(1));
    assert.is(recorder.droppedCount, 1);
  });

  test('a folder that is not there is an error of the configuration', () =>
    refuses(
      TraceRecorder.open({
        ...{ path: path.join(folder, 'none', 'a.lct'), sizeMaxBytes: 1e6, config: null },
        ...{ clock: new VirtualClock(), log: new RecordingLogger() },
      }),
      'ERR_CONFIG',
      /--trace-output: ENOENT/,
    ));

  test('the default file names process and time, among the temporary files', () => {
    const file = defaultTracePath(Date.UTC(2026, 10, 30, 4, 5, 6, 789));
    assert.is(path.dirname(file), os.tmpdir());
    assert.is(path.basename(file), `lmcache-trace-${process.pid}-20261130-040506.lct`);
  });

  test('a disk that is full ends the recording with a warning, not the process', () => {
    const file = newFile();
    // 64 blocks of 1024 bytes; the signal that would say so is ignored, so that writes fail.
    const script = 'trap "" XFSZ; ulimit -f 64; exec "$0" --input-type=module -e "$1"';
    const { status, stdout } = spawnSync(
      'bash',
      ['-c', script, process.execPath, recordingProgram(file)],
      { encoding: 'utf8', timeout: 25_000 },
    );
    assert.is(status, 0, stdout);
    assert.match(stdout, /recording ends: .* cannot be written: EFBIG/);
    assert.match(stdout, /dropped 1\d{4}\n/);
    assert.ok(fs.statSync(file).size <= 64 * 1024);
  });

  test('a recording whose process is killed can be read up to there', async () => {
    const file = newFile();
    const child = spawn(process.execPath, ['--input-type=module', '-e', recordingProgram(file)], {
      stdio: ['ignore', 'pipe', 'inherit'],
    });
    try {
      await once(child.stdout, 'data');
    } finally {
      child.kill('SIGKILL');
    }
    await once(child, 'exit');
    const { reader, records } = await read(file);
    assert.ok(records.length > 0);
    assert.is(reader.trailer, null);
  });
});
