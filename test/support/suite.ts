/**
 * `suite('lock table', (test) => { test('…', () => {…}) })`
 *
 * Wraps uvu: registers and runs at once (a suite whose run was forgotten counts as passed in bare
 * uvu), refuses an empty suite, and gives every test a deadline, so that an open socket cannot hang
 * the run (libraries.md 3.4).
 */

import { suite as uvuSuite } from 'uvu';
import * as assert from 'uvu/assert';

const DEADLINE_MS = 30_000;

type Body = () => unknown | Promise<unknown>;
export interface TestFunction {
  (title: string, body: Body, deadlineMs?: number): void;
  before(body: Body): void;
  after(body: Body): void;
  beforeEach(body: Body): void;
  afterEach(body: Body): void;
}

async function withDeadline(title: string, body: Body, deadlineMs: number): Promise<void> {
  let timer: NodeJS.Timeout | undefined;
  const late = new Promise<never>((_, reject) => {
    timer = setTimeout(
      () => reject(new Error(`"${title}" did not end within ${deadlineMs} ms`)),
      deadlineMs,
    );
  });
  try {
    await Promise.race([Promise.resolve().then(body), late]);
  } finally {
    clearTimeout(timer);
  }
}

export function suite(name: string, define: (test: TestFunction) => void): void {
  const inner = uvuSuite(name);
  let count = 0;
  const test = ((title: string, body: Body, deadlineMs = DEADLINE_MS) => {
    count += 1;
    inner(title, () => withDeadline(title, body, deadlineMs));
  }) as TestFunction;
  test.before = (body) => inner.before(async () => void (await body()));
  test.after = (body) => inner.after(async () => void (await body()));
  test.beforeEach = (body) => inner.before.each(async () => void (await body()));
  test.afterEach = (body) => inner.after.each(async () => void (await body()));
  define(test);
  assert.ok(count > 0, `suite "${name}" has no tests`);
  inner.run();
}
