/**
 * `npm run test:soak -- [--minutes N]`                                       default: 10 minutes
 *
 * Every property and model test again and again, each round with a seed of its own, until the time
 * is over or one fails. Then it says with which seed to repeat that.
 */
import { spawnSync } from 'node:child_process';
import { randomInt } from 'node:crypto';
import fs from 'node:fs';
import path from 'node:path';
import { parseArgs } from 'node:util';
import { ROOT } from './reference.ts';

const SEED_MAX = 2 ** 31 - 1;

const { values } = parseArgs({ options: { minutes: { type: 'string', default: '10' } } });
const minutes = Number(values.minutes);
if (!(minutes > 0)) {
  console.error(`--minutes ${values.minutes}: a number above 0`);
  process.exit(2);
}

const files = fs
  .globSync('test/{core,unit,contract}/**/*.test.ts', { cwd: ROOT })
  .filter((file) => fs.readFileSync(path.join(ROOT, file), 'utf8').includes('/property.ts'))
  .sort();
const endMs = performance.now() + minutes * 60_000;
let roundCount = 0;
let passedCount = 0;
while (performance.now() < endMs) {
  const seed = randomInt(SEED_MAX);
  const run = spawnSync(process.execPath, ['test/run.ts', ...files], {
    cwd: ROOT,
    env: { ...process.env, KVD_TEST_SEED: String(seed) },
    encoding: 'utf8',
  });
  roundCount += 1;
  passedCount += Number(/(\d+) passed, \d+ failed\s*$/.exec(run.stdout)?.[1] ?? 0);
  if (run.status !== 0) {
    process.stdout.write(run.stdout.replaceAll(/^ok .*\n/gm, ''));
    process.stderr.write(run.stderr);
    console.log(`repeat it: KVD_TEST_SEED=${seed} node test/run.ts FILE`);
    console.log(`${passedCount} passed, 1 failed`);
    process.exit(1);
  }
  console.log(`round ${roundCount}, seed ${seed}: passed`);
}
console.log(`${passedCount} passed, 0 failed`);
