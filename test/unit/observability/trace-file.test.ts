import fs from 'node:fs';
import os from 'node:os';
import path from 'node:path';
import * as assert from 'uvu/assert';
import {
  decodeFrame,
  decodeHeader,
  encodeHeader,
  encodeRecord,
  readArguments,
} from '../../../src/observability/trace-file/frames.ts';
import { FRAME_HEAD_BYTES } from '../../../src/observability/trace-file/packer.ts';
import type { StorageCall } from '../../../src/observability/trace-file/storage-calls.ts';
import { TraceReader } from '../../../src/observability/trace-file/trace-reader.ts';
import { TraceRecorder } from '../../../src/observability/trace-file/trace-recorder.ts';
import { RecordingLogger } from '../../support/recording-logger.ts';
import { rejects } from '../../support/rejects.ts';
import { suite } from '../../support/suite.ts';
import { VirtualClock } from '../../support/virtual-clock.ts';

const VECTORS = path.join(import.meta.dirname, '../../vectors/metrics');
const VECTOR = path.join(VECTORS, 'trace_storage_0.5.0.lct');
const QUALNAME = 'lmcache.v1.distributed.storage_manager.StorageManager.';

async function inFolder(run: (folder: string) => Promise<void>): Promise<void> {
  const folder = fs.mkdtempSync(path.join(os.tmpdir(), 'kvd-trace-'));
  try {
    await run(folder);
  } finally {
    fs.rmSync(folder, { recursive: true });
  }
}

/** Frames with their lengths. */
function framesOf(bytes: Buffer): Buffer[] {
  const frames: Buffer[] = [];
  for (let at = 0; at < bytes.length; ) {
    const end = at + FRAME_HEAD_BYTES + bytes.readUInt32BE(at);
    frames.push(bytes.subarray(at, end));
    at = end;
  }
  return frames;
}

async function readAll(file: string) {
  const warnings: string[] = [];
  const reader = await TraceReader.open({ path: file, warn: (text) => warnings.push(text) });
  const qualnames: string[] = [];
  for await (const record of reader.records())
    qualnames.push(record.qualname.slice(QUALNAME.length));
  await reader.close();
  return { reader, qualnames, warnings };
}

function call(operation: StorageCall['operation'], cacheSalt = ''): StorageCall {
  const namespace = { modelName: 'm', kvRank: 1, objectGroupId: 0, cacheSalt };
  return { operation, keys: [{ chunkHash: new Uint8Array(32).fill(7), namespace }] };
}

async function record(
  file: string,
  calls: readonly StorageCall[],
  sizeMaxBytes = 1_000_000,
): Promise<{ log: RecordingLogger; recorder: TraceRecorder }> {
  const log = new RecordingLogger();
  const options = { path: file, sizeMaxBytes, config: null, clock: new VirtualClock(), log };
  const recorder = await TraceRecorder.open(options);
  for (const one of calls) recorder.record(one);
  await recorder.close();
  return { log, recorder };
}

suite('storage trace: format', (test) => {
  test('the trace of the reference comes out byte for byte after decoding and encoding', () => {
    const bytes = fs.readFileSync(VECTOR);
    const [head, ...records] = framesOf(bytes);
    const header = decodeHeader((head as Buffer).subarray(FRAME_HEAD_BYTES));
    const encoded = records.map((frame) => {
      const decoded = decodeFrame(frame.subarray(FRAME_HEAD_BYTES));
      if (decoded instanceof Error || !('rawArguments' in decoded)) throw new Error('no record');
      return encodeRecord(decoded, readArguments(decoded));
    });
    assert.is(records.length, 24);
    assert.ok(Buffer.concat([encodeHeader(header), ...encoded]).equals(bytes));
  });

  test('what was recorded is read again, salts included, in a file for its owner only', () =>
    inFolder(async (folder) => {
      const file = path.join(folder, 'new.lct');
      const calls = [call('reserve_write', 'tenant'), call('finish_write', 'tenant')];
      await record(file, [
        { ...calls[0]!, layout: { shapes: [[2, 4]], dtypes: ['torch.half'] } },
        calls[1]!,
      ]);
      assert.is(fs.statSync(file).mode & 0o777, 0o600);
      const { reader, qualnames, warnings } = await readAll(file);
      assert.equal(qualnames, ['reserve_write', 'finish_write']);
      assert.equal(warnings, []);
      assert.equal([reader.trailer?.recordCount, reader.trailer?.droppedCount], [2, 0]);
      assert.ok(fs.readFileSync(file, 'latin1').includes('cache_salt'));
    }));

  test('without a salt a key has the fields of the reference, and no more', () =>
    inFolder(async (folder) => {
      const file = path.join(folder, 'plain.lct');
      await record(file, [call('finish_write')]);
      assert.not.ok(fs.readFileSync(file, 'latin1').includes('cache_salt'));
    }));
});

suite('storage trace: bounds', (test) => {
  test('a full file ends the recording; what it lacks is counted in its trailer', () =>
    inFolder(async (folder) => {
      const file = path.join(folder, 'full.lct');
      const calls = Array.from({ length: 100 }, () => call('finish_write'));
      const { recorder } = await record(file, calls, 4096);
      assert.ok(fs.statSync(file).size <= 4096);
      const { reader, qualnames } = await readAll(file);
      assert.ok(qualnames.length > 0 && qualnames.length < 100);
      assert.is(qualnames.length + recorder.droppedCount, 100);
      assert.is(reader.trailer?.droppedCount, recorder.droppedCount);
    }));

  test('an existing file is never overwritten', () =>
    inFolder(async (folder) => {
      const file = path.join(folder, 'mine.lct');
      fs.writeFileSync(file, 'mine');
      await rejects(record(file, []), /--trace-output: .*mine\.lct exists already/);
      assert.is(fs.readFileSync(file, 'utf8'), 'mine');
    }));

  test('a cut frame ends the trace with a warning', () =>
    inFolder(async (folder) => {
      const file = path.join(folder, 'cut.lct');
      fs.writeFileSync(file, fs.readFileSync(VECTOR).subarray(0, -5));
      const { qualnames, warnings } = await readAll(file);
      assert.is(qualnames.length, 23);
      assert.is(warnings.length, 1);
    }));

  test('frames of any length and content neither crash nor hang the reader', () =>
    inFolder(async (folder) => {
      const [head] = framesOf(fs.readFileSync(VECTOR));
      const deep = Buffer.alloc(100_000, 0x91);
      const withLength = (body: Buffer) => {
        const length = Buffer.alloc(4);
        length.writeUInt32BE(body.length);
        return Buffer.concat([length, body]);
      };
      const hostile: readonly (readonly [string, Buffer])[] = [
        ['deep nesting', withLength(deep)],
        ['a huge map', withLength(Buffer.from('dfffffffff', 'hex'))],
        ['no map', withLength(Buffer.from([0xc0]))],
        ['an empty frame', Buffer.alloc(4)],
        ['a huge length', Buffer.from('fffffff0', 'hex')],
      ];
      for (const [what, frame] of hostile) {
        const file = path.join(folder, `${what.replaceAll(' ', '-')}.lct`);
        fs.writeFileSync(file, Buffer.concat([head as Buffer, frame]));
        const { qualnames, warnings } = await readAll(file);
        assert.equal(qualnames, [], what);
        assert.ok(warnings.length > 0, what);
      }
    }));

  test('what is no trace is refused with what was expected', () =>
    inFolder(async (folder) => {
      const file = path.join(folder, 'x.lct');
      const open = () => TraceReader.open({ path: file, warn: () => {} });
      fs.writeFileSync(file, '');
      await rejects(open(), /x\.lct/);
      fs.writeFileSync(file, 'hello, this is not a trace at all');
      await rejects(open(), /x\.lct/);
      const header = decodeHeader(
        (framesOf(fs.readFileSync(VECTOR))[0] as Buffer).subarray(FRAME_HEAD_BYTES),
      );
      fs.writeFileSync(file, encodeHeader({ ...header, schemaVersion: 2 }));
      await rejects(open(), /expected trace_schema_version 1, got 2/);
    }));
});
