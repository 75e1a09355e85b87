/** LOOKUP and FREE of clients since 0.5.5, and of object groups (spec engine 3.6, 2.4) */
import * as assert from 'uvu/assert';
import { KvdError } from '../../../src/errors.ts';
import { LIVE_ATTEMPT } from '../../support/attempts.ts';
import { NEW_CLIENT } from '../../support/client-traits.ts';
import { RULES } from '../../support/l1-house.ts';
import {
  CHUNK,
  from,
  keyOf,
  type LookupHouse,
  look,
  query,
  REQUEST_ID,
  setUp,
  storePrompt,
} from '../../support/lookup-house.ts';
import { rejects } from '../../support/rejects.ts';
import { suite } from '../../support/suite.ts';

const NEWER = from(1, NEW_CLIENT);

const lockedCount = (house: LookupHouse) => house.l1.statistics().readLockedCount;

function free(house: LookupHouse, endToken: number, context = NEWER): void {
  const key = keyOf(house, { tokenCount: 4 * CHUNK, endToken });
  house.lookup.handlers.FREE_LOOKUP_LOCKS!({ key, tpSize: 1 }, context, LIVE_ATTEMPT);
}

suite('lookup of long prompts', (test) => {
  test('one that fails after its hashing is no hit of an earlier one of its id', async () => {
    const house = setUp();
    storePrompt(house, 2);
    look(house, { tokenCount: 2 * CHUNK });
    const { hasher } = house.core;
    hasher.hashPrompt = async (span, endToken) => hasher.hashChunks(span, endToken);
    const key = keyOf(house, { tokenCount: 2 * CHUNK });
    const late = house.lookup.handlers.LOOKUP!({ key, tpSize: 1 }, from(), LIVE_ATTEMPT);
    house.instances.findLayout = () => {
      throw new KvdError('ERR_OVERLOADED', 'no more');
    };
    await rejects(late as Promise<void>, /no more/);
    assert.is(query(house), 0);
    assert.is(lockedCount(house), 0);
  });
});

suite('lookup of newer clients', (test) => {
  test('they mean the tokens up to the end of the key, older ones all of them', () => {
    const house = setUp();
    storePrompt(house, 4);
    look(house, { tokenCount: 4 * CHUNK, endToken: 3 * CHUNK - 1 }, 1, NEWER);
    assert.is(query(house), 2);
    assert.is(lockedCount(house), 2);
    look(house, { tokenCount: 4 * CHUNK, endToken: 3 * CHUNK - 1 });
    assert.is(query(house), 4);
  });

  test('they say how many workers read each object', () => {
    const house = setUp();
    storePrompt(house, 2);
    look(house, { tokenCount: 2 * CHUNK, readerCount: 3 }, 1, NEWER);
    const share = house.sessions.findLookup(REQUEST_ID, 1);
    assert.equal(share?.remainingReaders, [3, 3]);
  });

  test('a number that is not stated is derived, where the reference refuses the lookup', () => {
    const house = setUp({ isVllm: true, isVllmMla: true });
    storePrompt(house, 2);
    look(house, { tokenCount: 2 * CHUNK, readerCount: 0 }, 4, NEWER);
    assert.equal(house.sessions.findLookup(REQUEST_ID, 1)?.remainingReaders, [4, 4]);
    assert.is(query(house), 2);
  });

  test('vLLM that is told of failed loads may look a preempted request up again', () => {
    const house = setUp({ isVllm: true });
    storePrompt(house, 3);
    look(house, { tokenCount: 3 * CHUNK }, 1, NEWER);
    assert.is(query(house), 3);
    look(house, { tokenCount: 3 * CHUNK }, 1, NEWER);
    assert.is(query(house), 3);
    assert.is(lockedCount(house), 3, 'the second lookup stands in for the first');
  });

  test('their FREE takes the result first, if nobody has, and then releases its range', () => {
    const house = setUp();
    storePrompt(house, 4);
    look(house, { tokenCount: 4 * CHUNK }, 1, NEWER);
    free(house, 2 * CHUNK);
    assert.is(lockedCount(house), 2);
    assert.is(query(house), 0, 'the result is gone');
    assert.is(house.lookup.status()['active_prefetch_jobs'], 0);
    look(house, { tokenCount: 4 * CHUNK });
    free(house, 2 * CHUNK, from());
    assert.is(query(house), 4, 'that of an older client leaves it');
  });

  test('an empty FREE takes nothing, and neither does one without a lookup', () => {
    const house = setUp();
    storePrompt(house, 4);
    free(house, 4 * CHUNK);
    look(house, { tokenCount: 4 * CHUNK }, 1, NEWER);
    free(house, 0);
    assert.is(query(house), 4);
    assert.is(lockedCount(house), 4);
  });
});

suite('lookup of object groups', (test) => {
  /** Two ranks; group 0 needs the whole prefix, group 3 its last two chunks. */
  function hybrid(): LookupHouse {
    const [rule] = RULES;
    const groupRules = [rule!, { ...rule!, windowChunks: 2 }];
    const house = setUp({ objectGroupIds: [0, 3], groupRules });
    storePrompt(house, 4, 2);
    return house;
  }

  test('a hit needs what each window needs, of every rank', () => {
    const house = hybrid();
    look(house, { tokenCount: 4 * CHUNK, worldSize: 2 });
    assert.is(query(house), 0);
    storePrompt(house, 2, 2, { objectGroupId: 3, firstChunk: 1 });
    look(house, { tokenCount: 4 * CHUNK, worldSize: 2 });
    assert.is(query(house), 3);
    assert.is(lockedCount(house), 2 * (3 + 2), 'whole prefix and window, two ranks');
    assert.is(house.sessions.sizeBytes > 0, true);
    house.lookup.handlers.END_SESSION!({ requestId: REQUEST_ID }, from(), LIVE_ATTEMPT);
    assert.is(lockedCount(house), 0);
  });

  test('FREE of a range and of a rank finds the objects of all groups', () => {
    const house = hybrid();
    storePrompt(house, 2, 2, { objectGroupId: 3, firstChunk: 2 });
    look(house, { tokenCount: 4 * CHUNK, worldSize: 2 });
    assert.is(lockedCount(house), 2 * (4 + 2));
    house.sessions.freeHolds(REQUEST_ID, 1, { startChunk: 0, endChunk: 3, rank: null });
    assert.is(lockedCount(house), 2 * 2);
    house.sessions.freeHolds(REQUEST_ID, 1, { startChunk: 3, endChunk: 4, rank: 1 });
    assert.is(lockedCount(house), 2);
  });
});
