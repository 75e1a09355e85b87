/**
 * fast-check with a fixed seed: a run that fails does so again, and a change that breaks nothing
 * passes. `KVD_TEST_SEED=random` looks elsewhere; a number repeats what that has found.
 */
import fc from 'fast-check';

const FIXED_SEED = 20_261_130;

const text = process.env['KVD_TEST_SEED'] ?? '';
if (!/^(random|-?\d+)?$/.test(text)) throw new Error(`KVD_TEST_SEED=${text}: a number or "random"`);
if (text !== 'random') fc.configureGlobal({ seed: text === '' ? FIXED_SEED : Number(text) });

export default fc;
