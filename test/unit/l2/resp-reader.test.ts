import * as assert from 'uvu/assert';
import {
  type Reply,
  RespReader,
  type Target,
  ValueSize,
} from '../../../src/l2/redis/resp-reader.ts';
import { suite } from '../../support/suite.ts';

/** Feeds `pieces`; the targets are for the values in their order. */
function read(pieces: readonly Buffer[], targets: readonly Target[] = []): Reply[] {
  const replies: Reply[] = [];
  const reader = new RespReader(
    () => targets[replies.length] ?? null,
    (reply) => replies.push(reply),
  );
  // One buffer again and again, as a socket does it.
  const scratch = Buffer.alloc(4096);
  for (const piece of pieces) {
    piece.copy(scratch);
    reader.feed(scratch.subarray(0, piece.length));
    scratch.fill(0xee);
  }
  return replies;
}

const STREAM = Buffer.from(
  '+OK\r\n:42\r\n$5\r\nab\r\nc\r\n$-1\r\n$0\r\n\r\n' +
    '*2\r\n$2\r\n17\r\n*2\r\n$1\r\nx\r\n$3\r\ny z\r\n*0\r\n*-1\r\n-ERR no\r\n:-7\r\n',
);

suite('resp reader', (test) => {
  test('replies of all kinds come whole, wherever the stream is cut', () => {
    const whole = read([STREAM]);
    assert.equal(whole.slice(0, -2), [
      'OK',
      42,
      Buffer.from('ab\r\nc'),
      null,
      Buffer.alloc(0),
      [Buffer.from('17'), [Buffer.from('x'), Buffer.from('y z')]],
      [],
      null,
    ]);
    assert.match(`${whole.at(-2)}`, /ERR no/);
    assert.is(whole.at(-1), -7);
    for (let cut = 1; cut < STREAM.length; cut += 1) {
      assert.equal(read([STREAM.subarray(0, cut), STREAM.subarray(cut)]), whole, `cut at ${cut}`);
    }
    assert.equal(read([...STREAM].map((byte) => Buffer.of(byte))), whole);
  });

  test('a value goes to its target if it has its length, and nowhere else', () => {
    const stream = Buffer.from('$4\r\nabcd\r\n$3\r\nefg\r\n$5\r\nhijkl\r\n$4\r\nmnop\r\n');
    for (let cut = 1; cut < stream.length; cut += 1) {
      const targets = [4, 4, 4, 4].map((size) => new Uint8Array(size));
      const replies = read([stream.subarray(0, cut), stream.subarray(cut)], targets);
      assert.equal(
        replies,
        [4, 3, 5, 4].map((bytes) => new ValueSize(bytes)),
      );
      const texts = targets.map((target) => Buffer.from(target).toString());
      assert.equal(texts, ['abcd', '\0\0\0\0', '\0\0\0\0', 'mnop']);
    }
  });

  test('what is no reply throws', () => {
    for (const text of [
      'HTTP/1.1 400 Bad\r\n',
      '+OK\n',
      '$x\r\n',
      '$-2\r\n',
      '$1e3\r\n',
      '$3\r\nabcd\r\n',
      '$3\r\nab\r\n\r\n\r\n',
      ':12a\r\n',
      '*99999999999\r\n',
      '$2000000\r\n',
      '*1\r\n'.repeat(20),
      `+${'x'.repeat(70_000)}`,
    ]) {
      const pieces: Buffer[] = [];
      const bytes = Buffer.from(text);
      for (let i = 0; i < bytes.length; i += 4096) pieces.push(bytes.subarray(i, i + 4096));
      assert.throws(() => read(pieces), /repl|value|list/, JSON.stringify(text.slice(0, 20)));
    }
  });
});
