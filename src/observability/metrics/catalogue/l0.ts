/** Blocks of the engines' own memory, as far as engines report them. */
import { LIFE_BUCKETS, rowsOf } from './rows.ts';

const { histogram } = rowsOf('lmcache.l0');
const LABELS = ['instance_id', 'model_name'];

export const L0 = {
  blockLifetime: histogram(
    'lmcache_mp.l0_block_lifetime',
    's',
    LABELS,
    LIFE_BUCKETS,
    'From the time a block got its content until the engine gave it other content; sampled blocks.',
  ),
  blockIdleBeforeEvict: histogram(
    'lmcache_mp.l0_block_idle_before_evict',
    's',
    LABELS,
    LIFE_BUCKETS,
    'From the last use of a block until the engine gave it other content; sampled blocks.',
  ),
  blockReuseGap: histogram(
    'lmcache_mp.l0_block_reuse_gap',
    's',
    LABELS,
    LIFE_BUCKETS,
    'Between two uses of a block that nobody held in between; the last four uses of sampled ' +
      'blocks, known when the content goes.',
  ),
};
