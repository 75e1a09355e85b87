/**
 * `npm run test:interop -- [--releases 0.5.0,0.5.6] [--only files]`
 *
 * L2 stores under both servers: what an adapter of the reference writes, ours finds and reads back
 * byte for byte, and the other way round; both replace and delete each other's objects.
 *
 * A part is a module of `interop/` with `run(python, release, check)`. The environments are made by
 * `.ci/setup generation`. The last line is `N passed, N failed`.
 */
import { parseArgs } from 'node:util';
import type { Check } from './interop/both-ways.ts';
import { findPython } from './reference.ts';

type Run = (python: string, release: string, check: Check) => Promise<void>;

const PARTS: Readonly<Record<string, () => Promise<{ run: Run }>>> = {
  files: () => import('./interop/files.ts'),
  raw_block: () => import('./interop/raw-block.ts'),
  redis: () => import('./interop/redis.ts'),
  s3: () => import('./interop/s3.ts'),
};

const { values } = parseArgs({
  options: {
    releases: { type: 'string', default: '0.5.0,0.5.6' },
    only: { type: 'string', default: Object.keys(PARTS).join(',') },
  },
});

let passedCount = 0;
let failedCount = 0;

function check(title: string, isRight: boolean, seen: unknown): void {
  if (isRight) passedCount += 1;
  else failedCount += 1;
  const suffix = isRight ? '' : `: ${JSON.stringify(seen, (_, each) => each?.message ?? each)}`;
  console.log(`${isRight ? 'PASS ' : 'FAIL '} ${title}${suffix}`);
}

for (const release of values.releases.split(',')) {
  const python = findPython('generation', release);
  for (const name of values.only.split(',')) {
    const part = PARTS[name];
    if (!part) throw new Error(`no part ${name}; there are ${Object.keys(PARTS).join(', ')}`);
    const { run } = await part();
    try {
      await run(python, release, check);
    } catch (error) {
      check(`${release} ${name} runs to its end`, false, error);
    }
  }
}
console.log(`${passedCount} passed, ${failedCount} failed`);
process.exitCode = failedCount === 0 && passedCount > 0 ? 0 : 1;
