import * as assert from 'uvu/assert';
import { countReaders } from '../../../src/engine/lookup.ts';
import { PrefetchTask } from '../../../src/storage/prefetch-controller.ts';
import { LIVE_ATTEMPT } from '../../support/attempts.ts';
import {
  CHUNK,
  from,
  keyOf,
  look,
  query,
  REQUEST_ID,
  setUp,
  spanOf,
  storePrompt,
} from '../../support/lookup-house.ts';
import { suite } from '../../support/suite.ts';

suite('lookup', (test) => {
  test('the result is the number of leading chunks, delivered once', () => {
    const house = setUp();
    storePrompt(house, 3);
    look(house, { tokenCount: 5 * CHUNK + 3 });
    assert.is(query(house), 3);
    assert.is(query(house), 0);
    assert.is(house.l1.statistics().readLockedCount, 3, 'still held for the retrieve');
    house.lookup.handlers.END_SESSION!({ requestId: REQUEST_ID }, from(), LIVE_ATTEMPT);
    assert.is(house.l1.statistics().readLockedCount, 0);
  });

  test('vLLM asking again after hits finds nothing: its load has failed', () => {
    const house = setUp({ isVllm: true });
    storePrompt(house, 3);
    look(house, { tokenCount: 3 * CHUNK });
    assert.is(query(house), 3);
    look(house, { tokenCount: 3 * CHUNK });
    assert.is(query(house), 0);
    assert.is(house.l1.statistics().readLockedCount, 0);
    house.lookup.handlers.END_SESSION!({ requestId: REQUEST_ID }, from(), LIVE_ATTEMPT);
    look(house, { tokenCount: 3 * CHUNK });
    assert.is(query(house), 3, 'a new request may have the same id');
  });

  test('vLLM asking again before it knew of hits, or after a miss, finds what is there', () => {
    const house = setUp({ isVllm: true });
    look(house, { tokenCount: 3 * CHUNK });
    assert.is(query(house), 0);
    storePrompt(house, 3);
    for (let round = 0; round < 2; round += 1) look(house, { tokenCount: 3 * CHUNK });
    assert.is(query(house), 3);
    assert.is(house.l1.statistics().readLockedCount, 3);
  });

  test('another engine may ask again: it finds and holds them once', () => {
    const house = setUp();
    storePrompt(house, 3);
    for (let round = 0; round < 2; round += 1) {
      look(house, { tokenCount: 3 * CHUNK });
      assert.is(query(house), 3);
      assert.is(house.l1.statistics().readLockedCount, 3);
    }
  });

  test('a chunk counts when every rank has it, and only whole chunks are held', () => {
    const house = setUp();
    storePrompt(house, 3, 2);
    const hashes = house.core.hasher.hashChunks(spanOf(4 * CHUNK, house));
    const rank0 = { modelName: 'm', worldSize: 2, workerId: 0, objectGroupId: 0, cacheSalt: '' };
    const namespaceIds = [house.storage.internNamespace(rank0)];
    house.store({ hashes, firstChunk: 3, chunkCount: 1, namespaceIds });
    look(house, { tokenCount: 4 * CHUNK, worldSize: 2 });
    assert.is(query(house), 3);
    assert.is(house.l1.statistics().readLockedCount, 6);
  });

  test('10.4 an unknown model ends as a job with no hits', () => {
    const house = setUp();
    look(house, { tokenCount: 4 * CHUNK, modelName: 'unknown' });
    assert.is(query(house), 0);
    assert.is(house.sessions.sessionCount, 0);
  });

  for (const [startToken, endToken] of [
    [32, 16],
    [-16, 64],
    [0, 640],
  ] as const) {
    test(`17.3 the range [${startToken}, ${endToken}) of 64 tokens finds and holds nothing`, () => {
      const house = setUp();
      storePrompt(house, 4);
      look(house, { tokenCount: 64, startToken, endToken });
      assert.is(query(house), 0);
      assert.is(house.l1.statistics().readLockedCount, 0);
    });
  }

  test('17.4 short prompts find nothing, and the same id works afterwards', () => {
    const house = setUp();
    storePrompt(house, 2);
    for (const tokenCount of [0, CHUNK - 1]) {
      look(house, { tokenCount });
      assert.is(query(house), 0);
    }
    look(house, { tokenCount: 2 * CHUNK });
    assert.is(query(house), 2);
  });

  test('a salt sees its own objects only', () => {
    const house = setUp();
    storePrompt(house, 2);
    look(house, { tokenCount: 2 * CHUNK, cacheSalt: 'alice' });
    assert.is(query(house), 0);
  });

  test('1.4 FREE without the salt of its lookup releases that lookup', () => {
    const house = setUp();
    storePrompt(house, 2);
    look(house, { tokenCount: 2 * CHUNK });
    const key = keyOf(house, { tokenCount: 2 * CHUNK, cacheSalt: 'forgotten' });
    house.lookup.handlers.FREE_LOOKUP_LOCKS!({ key, tpSize: 1 }, from(), LIVE_ATTEMPT);
    assert.is(house.l1.statistics().readLockedCount, 0);
  });

  test('FREE of an unaligned range keeps the chunks that it covers in part', () => {
    const house = setUp();
    storePrompt(house, 4);
    look(house, { tokenCount: 4 * CHUNK });
    const key = keyOf(house, { tokenCount: 4 * CHUNK, startToken: 1, endToken: 3 * CHUNK + 5 });
    house.lookup.handlers.FREE_LOOKUP_LOCKS!({ key, tpSize: 1 }, from(), LIVE_ATTEMPT);
    assert.is(house.l1.statistics().readLockedCount, 2, 'chunks 0 and 3');
  });

  test('readers of an MLA model hold each object once per tensor-parallel rank', () => {
    const house = setUp({ isVllmMla: true });
    storePrompt(house, 1);
    look(house, { tokenCount: CHUNK }, 4);
    assert.equal(house.sessions.findLookup(REQUEST_ID, 1)?.remainingReaders, [4]);
  });

  test('WAIT of a finished lookup answers at once, of an unknown one with 0', () => {
    const house = setUp();
    storePrompt(house, 1);
    look(house, { tokenCount: CHUNK });
    const wait = house.lookup.handlers.WAIT_PREFETCH_STATUS!;
    assert.is(wait({ requestId: REQUEST_ID, timeoutSeconds: 5 }, from(), LIVE_ATTEMPT), 1);
    assert.is(wait({ requestId: 'nobody', timeoutSeconds: 5 }, from(), LIVE_ATTEMPT), 0);
    assert.throws(
      () => wait({ requestId: 'nobody', timeoutSeconds: Number.NaN }, from(), LIVE_ATTEMPT),
      /got NaN/,
    );
  });
});

suite('lookup that waits', (test) => {
  /** A lookup whose load is still running. */
  function slowLookup() {
    const house = setUp();
    const task = new PrefetchTask();
    house.storage.submitPrefetch = () => task;
    look(house, { tokenCount: CHUNK });
    const finish = () => task.complete({ slots: new Uint32Array(0), chunkCount: 1 });
    return { house, finish };
  }

  test('WAIT answers when the result comes', async () => {
    const { house, finish } = slowLookup();
    assert.is(query(house), null);
    const request = { requestId: REQUEST_ID, timeoutSeconds: 5 };
    const waiting = house.lookup.handlers.WAIT_PREFETCH_STATUS!(request, from(), LIVE_ATTEMPT);
    finish();
    assert.is(await waiting, 1);
    assert.is(query(house), 0);
  });

  test('WAIT that timed out leaves the result for the next query', async () => {
    const { house, finish } = slowLookup();
    const request = { requestId: REQUEST_ID, timeoutSeconds: 5 };
    const waiting = house.lookup.handlers.WAIT_PREFETCH_STATUS!(request, from(), LIVE_ATTEMPT);
    house.clock.advance(5000);
    assert.is(await waiting, null);
    finish();
    assert.is(query(house), 1);
  });

  test('a refused lookup hides what an earlier one of its id has found', () => {
    const house = setUp();
    storePrompt(house, 2);
    look(house, { tokenCount: 2 * CHUNK });
    house.storage.submitPrefetch = () => {
      throw new Error('refused on purpose');
    };
    assert.throws(() => look(house, { tokenCount: 2 * CHUNK }), /refused on purpose/);
    assert.is(query(house), 0);
    assert.is(house.l1.statistics().readLockedCount, 0);
  });

  test('FREE of a rank releases what a lookup of that rank holds', () => {
    const house = setUp();
    storePrompt(house, 2, 2);
    look(house, { tokenCount: 2 * CHUNK, worldSize: 2, workerId: 1 });
    assert.is(house.l1.statistics().readLockedCount, 2);
    const free = (workerId: number) => {
      const key = keyOf(house, { tokenCount: 2 * CHUNK, worldSize: 2, workerId });
      house.lookup.handlers.FREE_LOOKUP_LOCKS!({ key, tpSize: 1 }, from(), LIVE_ATTEMPT);
    };
    free(0);
    assert.is(house.l1.statistics().readLockedCount, 2, 'another rank');
    free(1);
    assert.is(house.l1.statistics().readLockedCount, 0);
  });
});

suite('readers per object', (test) => {
  const key = (worldSize: number, readerCount: number | null = null) => ({
    ...keyOf(setUp(), { tokenCount: 0 }),
    worldSize,
    readerCount,
  });

  test('what the client states wins, within the bound', () => {
    assert.is(countReaders(key(1, 3), 8, true), 3);
    assert.is(countReaders(key(1, 500), 1, false), 128);
  });

  test('without it: tensor-parallel readers beyond the world size, or of an MLA model', () => {
    assert.is(countReaders(key(2), 2, false), 1);
    assert.is(countReaders(key(1), 4, false), 4);
    assert.is(countReaders(key(2), 2, true), 2, 'MLA with two pipeline stages');
    assert.is(countReaders(key(1), 1000, false), 128);
  });
});
