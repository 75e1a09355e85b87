import fs from 'node:fs';
import os from 'node:os';
import path from 'node:path';
import * as assert from 'uvu/assert';
import { EventBus, type EventCatalogue } from '../../../src/observability/events.ts';
import {
  formatLookupLine,
  parseLookupLine,
} from '../../../src/observability/logging/lookup-hash-line.ts';
import { LookupHashLog } from '../../../src/observability/logging/lookup-hash-log.ts';
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
    assert.is(formatLookupLine(lookupOf(), 1_711_929_600_123), line);
  });

  test('is ASCII, whatever the names are', () => {
    const line = formatLookupLine(lookupOf({ modelName: 'modèle-模\u{1f600}"' }), 1000);
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

  function open(part: { rotationSizeBytes?: number; fileCountMax?: number } = {}) {
    const clock = new VirtualClock();
    const bus = new EventBus();
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
    hashLog.listen(bus);
    const files = () => fs.readdirSync(path.join(folder, 'deep', 'log')).sort();
    const look = (requestId: string) => bus.publish('mp.lookup', lookupOf({ requestId }));
    return { clock, log, hashLog, files, look };
  }

  test('makes its folder, and a file with the first lookup only', async () => {
    const { hashLog, files, look } = open();
    assert.equal(files(), []);
    look('a');
    look('b');
    await hashLog.close();
    const [name, ...others] = files();
    assert.equal(others, []);
    assert.match(name!, /^lookup_hashes_\d{8}_\d{6}_000000\.jsonl$/);
    const lines = fs.readFileSync(path.join(folder, 'deep', 'log', name!), 'utf8').split('\n');
    assert.is(lines.length, 3);
    assert.match(lines[1]!, /"request_id": "b"/);
  });

  test('begins a file when the open one is large or old', async () => {
    const { clock, hashLog, files, look } = open({ rotationSizeBytes: 400 });
    look('a');
    look('b');
    assert.is(files().length, 1, 'a file may exceed its size by one line');
    look('c');
    assert.is(files().length, 2);
    clock.advance(60_000);
    look('d');
    await hashLog.close();
    const numbers = files().map((name) => name.slice(-12, -6));
    assert.equal(numbers, ['000000', '000001', '000002']);
  });

  test('keeps so many files, those of earlier runs included', async () => {
    const first = open({ rotationSizeBytes: 1 });
    for (const id of ['a', 'b', 'c']) first.look(id);
    await first.hashLog.close();
    const second = open({ rotationSizeBytes: 1, fileCountMax: 2 });
    second.look('d');
    await second.hashLog.close();
    await until(() => second.files().length === 2, 5000);
    assert.ok(second.files().some((name) => name.endsWith('_000003.jsonl')));
  });

  test('a folder that cannot be made stops the start', () => {
    fs.writeFileSync(path.join(folder, 'deep'), '');
    assert.throws(() => open(), /--lookup-hash-log-dir: cannot use/);
  });

  test('a file that cannot be written costs lines, is reported, and is tried again', async () => {
    const { clock, log, hashLog, files, look } = open();
    fs.rmSync(path.join(folder, 'deep'), { recursive: true });
    look('a');
    look('b');
    assert.is(hashLog.lostCount, 2);
    assert.ok(log.has(/lookup-hash log: ENOENT/));
    fs.mkdirSync(path.join(folder, 'deep', 'log'), { recursive: true });
    clock.advance(10_000);
    look('c');
    await hashLog.close();
    assert.is(files().length, 1);
  });
});
