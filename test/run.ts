/**
 * Runs test files and prints `N passed, N failed` as its last line.
 *
 *   node test/run.ts [--jobs N] [folder or file ...]        default: every *.test.ts under test/
 * but not those in test/l2 and test/otlp, which need servers
 *
 * Each file gets a process of its own: files share no globals, and one that crashes, hangs or
 * leaves a socket open costs its own result only. Counts come from the summary that uvu prints,
 * verdicts from the exit code, which uvu also sets for what happens after its summary. A file that
 * ran no test has failed, and so has a run that found none.
 */
import { spawn } from 'node:child_process';
import fs from 'node:fs';
import path from 'node:path';

const ROOT = path.resolve(import.meta.dirname, '..');
/** The machines that run this have two cores. */
const JOBS_DEFAULT = 2;
/** The slowest files start servers and take seconds; this bound is for those that hang. */
const FILE_DEADLINE_MS = 180_000;
const OUTPUT_BYTES_MAX = 4 << 20;

interface FileResult {
  readonly file: string;
  readonly passed: number;
  readonly failed: number;
  readonly durationMs: number;
  readonly output: string;
}

/** Real servers that `.ci/setup` installs: not on everybody's machine. */
const NEED_SERVERS: readonly string[] = ['l2', 'otlp'];

function foldersOf(root: string): string[] {
  return fs
    .readdirSync(path.join(ROOT, root), { withFileTypes: true })
    .filter(({ name }) => !NEED_SERVERS.includes(name))
    .filter((entry) => entry.isDirectory() || entry.name.endsWith('.test.ts'))
    .map(({ name }) => path.join(root, name));
}

function findTests(selection: readonly string[]): string[] {
  const roots = selection.length > 0 ? selection : foldersOf('test');
  const files = new Set<string>();
  for (const root of roots) {
    const absolute = path.resolve(ROOT, root);
    if (fs.statSync(absolute).isFile()) files.add(absolute);
    else {
      for (const name of fs.readdirSync(absolute, { recursive: true, encoding: 'utf8' })) {
        if (name.endsWith('.test.ts')) files.add(path.join(absolute, name));
      }
    }
  }
  return [...files].sort();
}

/** Sums what uvu printed: one summary for all suites of a file. */
export function countTests(output: string, exitCode: number | null): [number, number] {
  // biome-ignore lint/suspicious/noControlCharactersInRegex: colours start with an escape
  const plain = output.replaceAll(/\x1b\[[0-9;]*m/g, '');
  const sum = (label: string): number =>
    [...plain.matchAll(new RegExp(`^ {2}${label}: +(\\d+)$`, 'gm'))].reduce(
      (total, match) => total + Number(match[1]),
      0,
    );
  const passed = sum('Passed');
  const failed = sum('Total') - passed - sum('Skipped');
  const hasFailedOtherwise = failed === 0 && (exitCode !== 0 || passed === 0);
  return [passed, hasFailedOtherwise ? 1 : failed];
}

function runFile(file: string): Promise<FileResult> {
  const startMs = performance.now();
  return new Promise((resolve) => {
    // A process group of its own, so that whatever the file started can be ended with it.
    const child = spawn(process.execPath, [file], {
      cwd: ROOT,
      detached: true,
      stdio: ['ignore', 'pipe', 'pipe'],
    });
    let output = '';
    const append = (part: Buffer): void => {
      if (output.length < OUTPUT_BYTES_MAX) output += part.toString();
    };
    child.stdout.on('data', append);
    child.stderr.on('data', append);
    const timer = setTimeout(() => {
      output += `\ntest/run.ts: no end within ${FILE_DEADLINE_MS} ms\n`;
      endGroup(child.pid);
    }, FILE_DEADLINE_MS);
    // Descendants that hold the pipes would keep 'close' from coming.
    child.on('exit', () => endGroup(child.pid));
    child.on('close', (exitCode, signal) => {
      clearTimeout(timer);
      endGroup(child.pid);
      const [passed, failed] = countTests(output, exitCode);
      if (exitCode !== 0) output += `\ntest/run.ts: exit ${signal ?? exitCode}\n`;
      if (passed === 0 && exitCode === 0) output += '\ntest/run.ts: no test ran\n';
      resolve({ file, passed, failed, durationMs: performance.now() - startMs, output });
    });
  });
}

function endGroup(pid: number | undefined): void {
  if (pid === undefined) return;
  try {
    process.kill(-pid, 'SIGKILL');
  } catch {
    // Nothing of the group is left, as it should be.
  }
}

function report(result: FileResult): void {
  const name = path.relative(ROOT, result.file);
  const seconds = (result.durationMs / 1000).toFixed(1);
  const verdict = result.failed > 0 ? 'FAIL' : 'ok  ';
  console.log(`${verdict} ${name} (${result.passed} passed, ${seconds} s)`);
  if (result.failed > 0) console.log(result.output.replaceAll(/^/gm, '     '));
}

async function main(args: readonly string[]): Promise<void> {
  const selection = [...args];
  const jobsIndex = selection.indexOf('--jobs');
  const jobs = jobsIndex >= 0 ? Number(selection.splice(jobsIndex, 2)[1]) : JOBS_DEFAULT;
  const queue = findTests(selection);
  let passed = 0;
  let failed = 0;
  const worker = async (): Promise<void> => {
    for (let file = queue.shift(); file !== undefined; file = queue.shift()) {
      const result = await runFile(file);
      report(result);
      passed += result.passed;
      failed += result.failed;
    }
  };
  await Promise.all(Array.from({ length: Math.max(1, jobs) }, worker));
  if (passed + failed === 0) console.log('test/run.ts: no test file found');
  console.log(`${passed} passed, ${failed} failed`);
  process.exitCode = failed === 0 && passed > 0 ? 0 : 1;
}

if (import.meta.main) await main(process.argv.slice(2));
