import fs from 'node:fs';
import os from 'node:os';
import path from 'node:path';
import * as assert from 'uvu/assert';
import { EventBus } from '../../../src/observability/event-bus.ts';
import type { EventCatalogue } from '../../../src/observability/events.ts';
import {
  formatLookupLine,
  parseLookupLine,
} from '../../../src/observability/logging/lookup-hash-line.ts';
import {
  LookupHashLog,
  type LookupHashLogOptions,
} from '../../../src/observability/logging/lookup-hash-log.ts';
import fc from '../../support/property.ts';
import { RecordingLogger } from '../../support/recording-logger.ts';
import { suite } from '../../support/suite.ts';
import { VirtualClock } from '../../support/virtual-clock.ts';
import { until } from '../../support/waiting.ts';

type Lookup = EventCatalogue['mp.lookup'];

function lookupOf(part: Partial<Lookup> = {}): Lookup {
  return {
    requestId: 'req-abc',
    modelName: 'DeepSeek-V3',
    worldSize: 1,
    cacheSalt: '',
    chunkSizeTokens: 256,
    tokenCount: 1024,
    hashes: { bytes: new Uint8Array(32).fill(0xab), count: 1, hashSizeBytes: 32 },
    layouts: [{ shapes: [[2, 4, 256, 8]], dtypes: ['float16'] }],
    ...part,
  };
}

suite('lookup-hash line', (test) => {
  test("is the reference's, character for character", () => {
    const line =
      '{"timestamp": 1711929600.123, "request_id": "req-abc", "model_name": "DeepSeek-V3", ' +
      '"chunk_size": 256, "seq_len": 1024, "dtypes": ["torch.float16"], ' +
      `"shapes": [[2, 4, 256, 8]], "chunk_hashes": ["0x${'ab'.repeat(32)}"]}\n`;
    assert.is(formatLookupLine(lookupOf(), 1_711_929_600.123), line);
  });

  test('is ASCII, whatever the names are', () => {
    const line = formatLookupLine(lookupOf({ modelName: 'modèle-模\u{1f600}"' }), 1);
    assert.match(line, /"timestamp": 1\.0, .*"modèle"?|mod\\u00e8le-\\u6a21\\ud83d\\ude00\\"/);
    // biome-ignore lint/suspicious/noControlCharactersInRegex: that is what is looked for
    assert.match(line, /^[\x00-\x7f]*$/);
    assert.is(parseLookupLine(line)!.modelName, 'modèle-模\u{1f600}"');
  });

  test('names a tenant by a digest of the salt, and ranks only when there are several', () => {
    const line = formatLookupLine(lookupOf({ cacheSalt: 'secret', worldSize: 2 }), 0);
    assert.not.match(line, /secret/);
    const read = parseLookupLine(line)!;
    assert.match(read.tenant, /^[0-9a-f]{12}$/);
    assert.is(read.chunkSizeBytes, 2 * (2 * 4 * 256 * 8) * 2);
    assert.is(parseLookupLine(formatLookupLine(lookupOf(), 0))!.tenant, '');
  });

  test('has the numbers of the builtin algorithm without leading zeros', () => {
    const bytes = Uint8Array.of(0, 0, 0, 0, 0, 0, 0x0f, 1, 0, 0, 0, 0, 0, 0, 0, 0);
    const line = formatLookupLine(lookupOf({ hashes: { bytes, count: 2, hashSizeBytes: 8 } }), 0);
    assert.equal(parseLookupLine(line)!.chunkHashes, ['0xf01', '0x0']);
  });

  test('a line that is cut off or no lookup is none', () => {
    const line = formatLookupLine(lookupOf(), 0).trimEnd();
    for (let size = 0; size < line.length; size += 1) {
      assert.is(parseLookupLine(line.slice(0, size)), null, `${size} characters`);
    }
    for (const text of ['1', 'null', '[]', '{}', '{"timestamp": "x"}']) {
      assert.is(parseLookupLine(text), null, text);
    }
    fc.assert(fc.property(fc.json(), (text) => void parseLookupLine(text)));
  });

  test('a line with an unknown type or shape has no size', () => {
    const sizeOf = (layouts: Lookup['layouts']) =>
      parseLookupLine(formatLookupLine(lookupOf({ layouts }), 0))!.chunkSizeBytes;
    assert.is(sizeOf([{ shapes: [[2, 2]], dtypes: ['posit8'] }]), 0);
    assert.is(sizeOf([]), 0);
    assert.is(sizeOf([{ shapes: [[2, 2], [3]], dtypes: ['bfloat16', 'uint8'] }]), 11);
  });
});

suite('lookup-hash log', (test) => {
  let folder = '';
  test.beforeEach(() => {
    folder = fs.mkdtempSync(path.join(os.tmpdir(), 'kvd-hash-log-'));
  });
  test.afterEach(() => fs.rmSync(folder, { recursive: true, force: true }));

  function open(part: Partial<LookupHashLogOptions> = {}) {
    const clock = new VirtualClock();
    const bus = new EventBus({ clock });
    const log = new RecordingLogger();
    const hashLog = LookupHashLog.open({
      folder: path.join(folder, 'deep', 'log'),
      rotationIntervalMs: 60_000,
      rotationSizeBytes: 1_000_000,
      fileCountMax: 100,
      clock,
      log,
      ...part,
    });
    bus.attach(hashLog);
    const files = () => fs.readdirSync(path.join(folder, 'deep', 'log')).sort();
    const look = (requestId: string) => {
      bus.publish('mp.lookup', lookupOf({ requestId }));
      bus.drain();
    };
    return { clock, log, hashLog, files, look, close: () => bus.close() };
  }

  test('makes its folder, and a file with the first lookup only', async () => {
    const { files, look, close } = open();
    assert.equal(files(), []);
    look('a');
    look('b');
    await close();
    const [name, ...others] = files();
    assert.equal(others, []);
    assert.match(name!, /^lookup_hashes_\d{8}_\d{6}_000000\.jsonl$/);
    const lines = fs.readFileSync(path.join(folder, 'deep', 'log', name!), 'utf8').split('\n');
    assert.is(lines.length, 3);
    assert.match(lines[1]!, /"request_id": "b"/);
  });

  test('begins a file when the open one is large or old', async () => {
    const { clock, files, look, close } = open({ rotationSizeBytes: 400 });
    look('a');
    look('b');
    assert.is(files().length, 1, 'a file may exceed its size by one line');
    look('c');
    assert.is(files().length, 2);
    clock.advance(60_000);
    look('d');
    await close();
    const numbers = files().map((name) => name.slice(-12, -6));
    assert.equal(numbers, ['000000', '000001', '000002']);
  });

  test('keeps so many files, those of earlier runs included', async () => {
    const first = open({ rotationSizeBytes: 1 });
    for (const id of ['a', 'b', 'c']) first.look(id);
    await first.close();
    const second = open({ rotationSizeBytes: 1, fileCountMax: 2 });
    second.look('d');
    await second.close();
    await until(() => second.files().length === 2, 5000);
    assert.ok(second.files().some((name) => name.endsWith('_000003.jsonl')));
  });

  test('a folder that cannot be made stops the start', () => {
    fs.writeFileSync(path.join(folder, 'deep'), '');
    assert.throws(() => open(), /--lookup-hash-log-dir: cannot use/);
  });

  test('a file that cannot be written costs lines, is reported, and is tried again', async () => {
    const { clock, log, hashLog, files, look, close } = open();
    fs.rmSync(path.join(folder, 'deep'), { recursive: true });
    look('a');
    look('b');
    assert.is(hashLog.lostCount, 2);
    assert.ok(log.has(/lookup-hash log: ENOENT/));
    fs.mkdirSync(path.join(folder, 'deep', 'log'), { recursive: true });
    clock.advance(10_000);
    look('c');
    await close();
    assert.is(files().length, 1);
  });

  test('time of line and file is when the lookup came, not when it is written', async () => {
    const { hashLog } = open();
    hashLog.subscriptions['mp.lookup'](lookupOf(), 1_711_929_600.123);
    await hashLog.shutdown();
    const file = path.join(folder, 'deep/log/lookup_hashes_20240401_000000_000000.jsonl');
    assert.match(fs.readFileSync(file, 'utf8'), /^{"timestamp": 1711929600\.123, /);
  });

  test('numbers go on from the highest, whatever was deleted', async () => {
    const first = open({ rotationSizeBytes: 1 });
    for (const id of ['a', 'b', 'c']) first.look(id);
    await first.close();
    for (const name of first.files().slice(0, 2)) fs.rmSync(path.join(folder, 'deep/log', name));
    const second = open();
    second.look('d');
    await second.close();
    const numbers = second.files().map((name) => name.slice(-12, -6));
    assert.equal(numbers, ['000002', '000003']);
  });

  test('a file that somebody else has made meanwhile is left alone', async () => {
    const { files, look, close } = open();
    const other = path.join(folder, 'deep/log/lookup_hashes_20231114_221320_000000.jsonl');
    fs.writeFileSync(other, 'of another server');
    look('a');
    await close();
    assert.is(fs.readFileSync(other, 'utf8'), 'of another server');
    assert.equal(
      files().map((name) => name.slice(-12, -6)),
      ['000000', '000001'],
    );
  });

  test('every line that a dying file has not taken is counted', async () => {
    const { clock, log, hashLog, files, look } = open();
    look('a');
    const written = () =>
      fs.readFileSync(path.join(folder, 'deep/log', files()[0] ?? ''), 'utf8').length > 0;
    await until(written, 5000);
    const [fd] = fs
      .readdirSync('/proc/self/fd')
      .filter((name) => isOpenLog(name))
      .map(Number);
    assert.type(fd, 'number');
    fs.closeSync(fd ?? -1);
    look('b');
    look('c');
    await until(() => log.has(/lookup-hash log: EBADF/), 5000);
    assert.is(hashLog.lostCount, 2);
    clock.advance(10_000);
    look('d');
    await hashLog.shutdown();
    assert.is(files().length, 2);
    assert.is(hashLog.lostCount, 2);
  });

  function isOpenLog(fd: string): boolean {
    try {
      return fs.readlinkSync(`/proc/self/fd/${fd}`).startsWith(folder);
    } catch {
      // The one that listed the folder is closed again.
      return false;
    }
  }
});

/** Files of the reference with --…-rotation-interval 4 -rotation-max-size 3000 -max-files 4. */
suite("lookup-hash log: the reference's files", (test) => {
  const golden = path.resolve(import.meta.dirname, '../../vectors/metrics/lookup_hashes');
  let folder = '';
  test.beforeEach(() => {
    folder = fs.mkdtempSync(path.join(os.tmpdir(), 'kvd-hash-log-'));
  });
  test.afterEach(() => fs.rmSync(folder, { recursive: true, force: true }));

  const contents = (of: string) =>
    Object.fromEntries(
      fs
        .readdirSync(of)
        .sort()
        .map((name) => [name, fs.readFileSync(path.join(of, name), 'utf8')]),
    );

  test('the same lookups make the same files, byte for byte', async () => {
    const lookups = Object.values(contents(golden))
      .flatMap((text) => text.trimEnd().split('\n'))
      .map(readGolden);
    assert.is(lookups.length, 10);
    for (const number of [0, 1, 2]) {
      const name = `lookup_hashes_20261129_200430_00000${number}.jsonl`;
      fs.writeFileSync(path.join(folder, name), '');
    }
    const clock = new VirtualClock();
    const log = LookupHashLog.open({
      folder,
      rotationIntervalMs: 4000,
      rotationSizeBytes: 3000,
      fileCountMax: 4,
      clock,
      log: new RecordingLogger(),
    });
    let latest = lookups[0]?.atSeconds ?? 0;
    for (const { lookup, atSeconds } of lookups) {
      clock.advance((atSeconds - latest) * 1000);
      latest = atSeconds;
      log.subscriptions['mp.lookup'](lookup, atSeconds);
    }
    await log.shutdown();
    await until(() => fs.readdirSync(folder).length === 4, 5000);
    assert.equal(contents(folder), contents(golden));
  });
});

function readGolden(line: string): { lookup: Lookup; atSeconds: number } {
  const fields = JSON.parse(line);
  const hex = fields.chunk_hashes.map((hash: string) => hash.slice(2)).join('');
  const hashes = {
    bytes: Uint8Array.from(Buffer.from(hex, 'hex')),
    count: fields.chunk_hashes.length,
    hashSizeBytes: 32,
  };
  const dtypes = fields.dtypes.map((name: string) => name.replace('torch.', ''));
  const lookup = lookupOf({
    requestId: fields.request_id,
    modelName: fields.model_name,
    chunkSizeTokens: fields.chunk_size,
    tokenCount: fields.seq_len,
    layouts: [{ shapes: fields.shapes, dtypes }],
    hashes,
  });
  return { lookup, atSeconds: fields.timestamp };
}
