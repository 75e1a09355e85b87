import fs from 'node:fs';
import os from 'node:os';
import path from 'node:path';
import { encode } from '@msgpack/msgpack';
import * as assert from 'uvu/assert';
import {
  DEPTH_MAX,
  faultOfFrame,
  VALUE_COUNT_MAX,
} from '../../../src/observability/trace-file/frame-check.ts';
import {
  encodeHeader,
  encodeRecord,
  encodeTrailer,
  FRAME_SIZE_MAX_BYTES,
  TraceFileError,
} from '../../../src/observability/trace-file/frames.ts';
import { TraceReader } from '../../../src/observability/trace-file/trace-reader.ts';
import fc from '../../support/property.ts';
import { rejects } from '../../support/rejects.ts';
import { suite } from '../../support/suite.ts';

const HEADER = encodeHeader({
  formatVersion: 1,
  level: 'storage',
  schemaVersion: 1,
  monoStartSeconds: 0,
  wallStartSeconds: 0,
  configText: '',
  configDigest: '',
});
const recordOf = (qualname: string) =>
  encodeRecord({ monoSeconds: 0, wallSeconds: 0, qualname }, new Map([['a', 1]]));
const TRAILER = encodeTrailer({ monoSeconds: 9, recordCount: 2, droppedCount: 5 });

function frameOf(body: Uint8Array): Buffer {
  const head = Buffer.alloc(4);
  head.writeUInt32BE(body.length);
  return Buffer.concat([head, body]);
}

suite('reading a trace', (test) => {
  const folder = fs.mkdtempSync(path.join(os.tmpdir(), 'kvd-trace-reader-'));
  const file = path.join(folder, 'a.lct');
  test.after(() => fs.rmSync(folder, { recursive: true }));

  async function readFile() {
    const warnings: string[] = [];
    const reader = await TraceReader.open({ path: file, warn: (text) => warnings.push(text) });
    const qualnames: string[] = [];
    try {
      for await (const { qualname } of reader.records()) qualnames.push(qualname);
    } finally {
      await reader.close();
    }
    const { trailer, skippedCount, isCut } = reader;
    return { qualnames, warnings, trailer, skippedCount, isCut };
  }

  function read(...frames: readonly Uint8Array[]) {
    fs.writeFileSync(file, Buffer.concat(frames));
    return readFile();
  }

  test('a whole one ends with its trailer', async () => {
    const { qualnames, warnings, trailer, isCut } = await read(
      ...[HEADER, recordOf('a'), recordOf('b'), TRAILER],
    );
    assert.equal(qualnames, ['a', 'b']);
    assert.equal(trailer, { monoSeconds: 9, recordCount: 2, droppedCount: 5 });
    assert.equal([warnings, isCut], [[], false]);
  });

  test('one that is cut anywhere gives every record before the cut', async () => {
    const frames = [recordOf('a'), recordOf('b'), TRAILER];
    const whole = Buffer.concat([HEADER, ...frames]);
    const ends = [HEADER.length];
    for (const frame of frames) ends.push((ends.at(-1) as number) + frame.length);
    for (let length = HEADER.length; length <= whole.length; length += 1) {
      const { qualnames, warnings, isCut, trailer } = await read(whole.subarray(0, length));
      const wholeCount = ends.filter((end) => end <= length).length - 1;
      assert.equal(qualnames, ['a', 'b'].slice(0, wholeCount));
      assert.is(isCut, !ends.includes(length), `${length} bytes`);
      assert.is(warnings.length, isCut ? 1 : 0);
      assert.is(trailer !== null, wholeCount === 3);
    }
  });

  test('one that is cut within its header is none', async () => {
    for (let length = 0; length < HEADER.length; length += 1) {
      await rejects(read(HEADER.subarray(0, length)), /a\.lct: not a trace file: /);
    }
  });

  test('what is no record is skipped, with its place and the reason', async () => {
    const faulty: readonly (readonly [Uint8Array, RegExp])[] = [
      [frameOf(new Uint8Array(0)), /expected a value at byte 0, got the end/],
      [frameOf(Uint8Array.of(0xc1)), /got byte c1/],
      [frameOf(Uint8Array.of(1, 2)), /expected one value, got 1 bytes behind it/],
      [frameOf(Uint8Array.of(0xdd, 0xff, 0xff, 0xff, 0xff)), /expected 4294967295 elements/],
      [frameOf(Uint8Array.of(0xdb, 0xff, 0xff, 0xff, 0xff, 65)), /expected 4294967300 bytes/],
      [frameOf(Uint8Array.of(0xdf, 0xff)), /expected a length at byte 0, got 2 bytes/],
      [frameOf(new Uint8Array(100_000).fill(0x91)), /expected at most 32 levels/],
      [frameOf(encode({ __proto__x: 1, type: 'event' })), /expected t_mono of at least 0/],
      [HEADER, /expected t_mono of at least 0, got nothing/],
    ];
    for (const [frame, expected] of faulty) {
      const outcome = await read(HEADER, recordOf('a'), frame, recordOf('b'));
      assert.equal(outcome.qualnames, ['a', 'b']);
      assert.is(outcome.skippedCount, 1);
      const place = HEADER.length + recordOf('a').length;
      assert.match(
        outcome.warnings[0] as string,
        new RegExp(`offset ${place}: .*${expected.source}`),
      );
    }
  });

  test('a key that would change what objects are is no key', async () => {
    // {"type": "record", …, "args": {"__proto__": {}}}
    const body = Buffer.from(encode({ type: 'record', args: { __PROTO__: {} } }));
    const frame = frameOf(Buffer.from(body.toString('latin1').replace('PROTO', 'proto'), 'latin1'));
    const { qualnames, skippedCount } = await read(HEADER, frame, recordOf('b'));
    assert.equal([qualnames, skippedCount], [['b'], 1]);
    assert.is(({} as Record<string, unknown>)['type'], undefined);
  });

  test('a frame above the bound is stepped over without being read', async () => {
    const head = Buffer.alloc(4);
    head.writeUInt32BE(FRAME_SIZE_MAX_BYTES + 1);
    fs.writeFileSync(file, Buffer.concat([HEADER, head]));
    // A hole: nothing of it is on the disk.
    fs.truncateSync(file, HEADER.length + 4 + FRAME_SIZE_MAX_BYTES + 1);
    fs.appendFileSync(file, recordOf('behind'));
    const { qualnames, warnings } = await readFile();
    assert.equal(qualnames, ['behind']);
    assert.match(warnings[0] as string, /expected at most 67108864 bytes, got 67108865/);
  });

  test('a damaged file does not flood anybody with warnings', async () => {
    const frames = Array.from({ length: 500 }, () => frameOf(Uint8Array.of(0xc0)));
    const { warnings, skippedCount } = await read(HEADER, ...frames);
    assert.is(skippedCount, 500);
    assert.is(warnings.length, 11);
    assert.match(warnings.at(-1) as string, /only counted/);
  });

  test('records are read across the bounds of what is read at once', async () => {
    const long = 'q'.repeat(300_000);
    const frames = Array.from({ length: 9 }, (_, i) => recordOf(long.slice(i)));
    const { qualnames } = await read(HEADER, ...frames);
    assert.equal(
      qualnames.map(({ length }) => length),
      [0, 1, 2, 3, 4, 5, 6, 7, 8].map((i) => 300_000 - i),
    );
  });

  test('headers of other files, versions and schemas are refused by what they have', async () => {
    const good = {
      ...{ type: 'header', magic: Buffer.from('LMCT'), format_version: 1, level: 'storage' },
      ...{ trace_schema_version: 1, t_mono_start: 0.5, t_wall_start: 0.5 },
    };
    const faults: readonly (readonly [object, RegExp])[] = [
      [{ ...good, type: 'record' }, /expected a header first, got type "record"/],
      [{ ...good, magic: Buffer.from('LMCX') }, /expected magic "LMCT", got bytes 4c4d4358/],
      [{ ...good, magic: 'LMCT' }, /expected magic "LMCT", got "LMCT"/],
      [{ ...good, format_version: 2 }, /expected format_version 1, got 2/],
      [{ ...good, trace_schema_version: 'x' }, /expected trace_schema_version 1, got "x"/],
    ];
    for (const [header, expected] of faults) {
      const error = await rejects(read(frameOf(encode(header))), expected);
      assert.instance(error, TraceFileError);
      assert.ok(error.message.startsWith(file));
    }
    const { qualnames } = await read(frameOf(encode({ ...good, level_meta: { a: 1 } })));
    assert.equal(qualnames, []);
  });

  test('folders and devices are no traces', async () => {
    const open = (at: string) => TraceReader.open({ path: at, warn: () => {} });
    await rejects(open(folder), /expected a file, got something else/);
    await rejects(open('/dev/zero'), /expected a file, got something else/);
    await rejects(open(path.join(folder, 'none')), /none: there is no such file/);
  });

  test('a trace with any bytes changed is read to some end', () =>
    fc.assert(
      fc.asyncProperty(
        fc.array(fc.tuple(fc.nat(400), fc.nat(255)), { minLength: 1, maxLength: 8 }),
        async (changes) => {
          const bytes = Buffer.concat([HEADER, recordOf('a'), recordOf('b'), TRAILER]);
          for (const [at, byte] of changes) bytes[at % bytes.length] = byte;
          const outcome = await read(bytes).catch((error: unknown) => error);
          assert.ok(!(outcome instanceof Error) || outcome instanceof TraceFileError);
        },
      ),
      { numRuns: 300 },
    ));
});

suite('a frame before it is decoded', (test) => {
  test('whatever the encoder makes is whole, and nothing shorter or longer is', () =>
    fc.assert(
      fc.property(fc.jsonValue({ maxDepth: 5 }), fc.uint8Array({ maxLength: 70_000 }), (a, b) => {
        const frame = encode({ a, b, c: [1.5, -1, 2 ** 40, 70_000, 300, 'x'.repeat(b.length)] });
        assert.is(faultOfFrame(frame), null);
        assert.is.not(faultOfFrame(frame.subarray(0, -1)), null);
        assert.is.not(faultOfFrame(Buffer.concat([frame, Buffer.alloc(1)])), null);
      }),
      { numRuns: 100 },
    ));

  test('nesting is refused from one level above the bound on', () => {
    const nested = (depth: number) => Uint8Array.of(...new Array(depth).fill(0x91), 0xc0);
    assert.is(faultOfFrame(nested(DEPTH_MAX)), null);
    assert.match(faultOfFrame(nested(DEPTH_MAX + 1)) ?? '', /levels/);
  });

  test('more values than a record can have are refused, though all of them are there', () => {
    const frame = Buffer.alloc(5 + VALUE_COUNT_MAX + 1, 0xc0);
    frame[0] = 0xdd;
    frame.writeUInt32BE(VALUE_COUNT_MAX, 1);
    assert.is(faultOfFrame(frame.subarray(0, -1)), null);
    frame.writeUInt32BE(VALUE_COUNT_MAX + 1, 1);
    assert.match(faultOfFrame(frame) ?? '', /values, got more/);
  });

  test('extensions of every size are walked over', () => {
    for (const [head, size] of [
      ['d4', 1],
      ['d8', 16],
      ['c70a', 10],
      ['c8000a', 10],
      ['c90000000a', 10],
    ] as const) {
      const frame = Buffer.concat([Buffer.from(head, 'hex'), Buffer.alloc(1 + size)]);
      assert.is(faultOfFrame(frame), null, head);
      assert.is.not(faultOfFrame(frame.subarray(0, -1)), null, head);
    }
  });
});
