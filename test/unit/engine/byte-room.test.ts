import * as assert from 'uvu/assert';
import { ByteRoom } from '../../../src/engine/transfer/byte-room.ts';
import { rejects } from '../../support/rejects.ts';
import { suite } from '../../support/suite.ts';

/** Users of a room that end when they are told to. */
function open(bytesMax: number) {
  const room = new ByteRoom(bytesMax);
  const started: string[] = [];
  const ends = new Map<string, () => void>();
  const use = (name: string, sizeBytes: number) =>
    room.within(sizeBytes, async () => {
      started.push(name);
      await new Promise<void>((resolve) => ends.set(name, resolve));
    });
  return { room, started, use, end: (name: string) => ends.get(name)?.() };
}

const turn = () => new Promise<void>((resolve) => setImmediate(resolve));

suite('byte room', (test) => {
  test('lets in what fits, and the others in their order', async () => {
    const { room, started, use, end } = open(10);
    // 6, 4 | 3, 8, 1 wait
    const uses = [use('a', 6), use('b', 4), use('c', 3), use('d', 8), use('e', 1)];
    assert.equal(started, ['a', 'b']);
    assert.equal([room.usedBytes, room.waitingCount], [10, 3]);
    end('b');
    await turn();
    // 6, 3 | 8, 1 wait: the small one does not overtake
    assert.equal(started, ['a', 'b', 'c']);
    end('a');
    await turn();
    assert.equal(started, ['a', 'b', 'c']);
    end('c');
    await turn();
    assert.equal(started, ['a', 'b', 'c', 'd', 'e']);
    end('d');
    end('e');
    await Promise.all(uses);
    assert.equal([room.usedBytes, room.waitingCount], [0, 0]);
  });

  test('gives what is larger than all of it the whole of it', async () => {
    const { room, started, use, end } = open(10);
    const uses = [use('a', 1), use('huge', 1000), use('b', 1)];
    assert.equal(started, ['a']);
    end('a');
    await turn();
    assert.equal(started, ['a', 'huge']);
    end('huge');
    await turn();
    assert.equal(started, ['a', 'huge', 'b']);
    end('b');
    await Promise.all(uses);
    assert.is(room.usedBytes, 0);
  });

  test('gets its bytes back from a use that fails', async () => {
    const room = new ByteRoom(10);
    await rejects(
      room.within(10, () => Promise.reject(new Error('failed'))),
      /failed/,
    );
    await rejects(
      room.within(10, () => {
        throw new Error('failed at once');
      }),
      /failed at once/,
    );
    assert.is(room.usedBytes, 0);
  });
});
