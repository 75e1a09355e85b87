/**
 * Reads every source file once and checks the form of the code: what docs/hacking.md promises and
 * no other tool looks at. Each message says where and what to do instead.
 */
import fs from 'node:fs';
import path from 'node:path';
import * as assert from 'uvu/assert';
import {
  insertAdapters,
  insertFlags,
  insertMetrics,
  renderErrors,
} from '../scripts/generate-docs.ts';
import { loadBackendTypes } from '../src/l2/registry.ts';
import {
  findFunctions,
  importsOf,
  listFiles,
  ROOT,
  readSources,
  type Source,
} from './support/source-files.ts';
import { suite } from './support/suite.ts';

const LINE_LENGTH_MAX = 100;
const FUNCTION_LINES_MAX = 70;
const FILE_LINES_MAX = 400;

const SOURCES = readSources();
const TYPESCRIPT = SOURCES.filter(({ file }) => file.endsWith('.ts'));
const HOUSE = TYPESCRIPT.filter(({ file }) => file.startsWith('src/'));

function expectNone(faults: readonly string[]): void {
  if (faults.length > 0) assert.unreachable(`\n  ${faults.join('\n  ')}`);
}

/** `file:line` of every line of `sources` that matches, unless `isAllowed` says so. */
function findLines(
  sources: readonly Source[],
  pattern: RegExp,
  isAllowed: (file: string) => boolean = () => false,
): string[] {
  const faults: string[] = [];
  for (const { file, code, lines } of sources) {
    if (isAllowed(file)) continue;
    for (const [index, line] of code.entries()) {
      if (pattern.test(line)) faults.push(`${file}:${index + 1}: ${lines[index]?.trim()}`);
    }
  }
  return faults;
}

// ---------------------------------------------------------------- imports

/** What each room may import beside itself and the ground floor (docs/architecture.md). */
const LOWER_ROOMS: Readonly<Record<string, readonly string[]>> = {
  core: [],
  device: [],
  l2: [],
  storage: ['core', 'l2', 'device'],
  engine: ['storage', 'core', 'l2', 'device'],
  wire: ['engine', 'storage', 'core', 'l2', 'device'],
  http: ['engine', 'storage', 'core', 'l2', 'device'],
  coordinator: ['engine', 'storage', 'core', 'l2', 'device'],
  plugins: ['engine', 'storage', 'core', 'l2', 'device'],
  // The codec and its types; the client stands outside the house.
  client: ['wire', 'engine', 'core'],
  // Only for the keys of adapters: what `--l2-adapter` may say.
  config: ['l2'],
  observability: [],
  // The parts of server.ts: they build the house and see all of it.
  house: ['wire', 'http', 'engine', 'storage', 'core', 'l2', 'device', 'config', 'observability'],
};
const GROUND_FLOOR = ['clock', 'assert', 'errors', 'units', 'native'];
const FOR_ALL_ROOMS = ['events', 'event-bus', 'log'].map((name) => `src/observability/${name}.ts`);
const CLI_ROOMS = [...Object.keys(LOWER_ROOMS), 'cli'];

const PACKAGE_OWNERS: Readonly<Record<string, RegExp>> = {
  koffi: /^src\/device\//,
  '@grpc': /^src\/wire\/grpc\//,
  zeromq: /^src\/(wire|client|engine\/p2p)\//,
  hono: /^src\/http\//,
  '@hono': /^src\/http\//,
  commander: /^src\/(cli|config)\//,
  'cli-progress': /^src\/cli\//,
  zod: /^src\/(config|http)\//,
  pino: /^src\/observability\//,
  '@opentelemetry': /^src\/observability\//,
  '@redis': /^src\/l2\/redis\//,
  '@aws-sdk': /^src\/l2\/(s3\/|adapters\/s3\.ts$)/,
  mitata: /^bench\//,
  uvu: /^test\//,
  'fast-check': /^test\//,
  '@noble': /^(test|bench)\//,
  '@msgpack': /^(test|bench|src\/observability\/trace-file)\//,
  assemblyscript: /^(test|scripts)\//,
  '@lezer': /^test\//,
  '@prometheus-io': /^test\//,
  yaml: /^test\//,
};

const roomOf = (file: string): string => /^src\/([^/]+)\//.exec(file)?.[1] ?? '';

function importFault(file: string, target: string): string | null {
  const room = roomOf(file);
  const targetRoom = roomOf(target);
  const fault = `${file} imports ${target}`;
  if (!target.startsWith('src/')) {
    return target === 'package.json' ? null : `${fault}, which is outside src/`;
  }
  if (targetRoom === '') {
    const name = path.basename(target, '.ts');
    if (GROUND_FLOOR.includes(name)) return null;
    return name === 'server' && room === 'cli' ? null : `${fault}, which is above it`;
  }
  // The five of the ground floor stand on nothing; server.ts builds the house and sees all of it.
  if (room === '') {
    const isRoot = file === 'src/server.ts' && targetRoom !== 'cli' && targetRoom !== 'client';
    return isRoot ? null : `${fault}: not for the ground floor`;
  }
  if (room === targetRoom || FOR_ALL_ROOMS.includes(target)) return null;
  const allowed = room === 'cli' ? CLI_ROOMS : (LOWER_ROOMS[room] ?? []);
  return allowed.includes(targetRoom) ? null : `${fault}: ${room} may not see ${targetRoom}`;
}

suite('imports', (test) => {
  test('a room imports only rooms below it', () => {
    const faults: string[] = [];
    for (const source of HOUSE) {
      for (const specifier of importsOf(source).filter((name) => name.startsWith('.'))) {
        const target = path.posix.join(path.posix.dirname(source.file), specifier);
        const fault = importFault(source.file, target);
        if (fault !== null) faults.push(fault);
      }
    }
    expectNone(faults);
  });

  test('each foreign package is imported by its owner only', () => {
    const faults: string[] = [];
    for (const source of TYPESCRIPT) {
      for (const specifier of importsOf(source)) {
        const parts = specifier.split('/');
        const owner = PACKAGE_OWNERS[specifier] ?? PACKAGE_OWNERS[parts[0] ?? ''];
        const isTest = /^(test|bench|scripts)\//.test(source.file);
        if (owner && !owner.test(source.file) && !isTest) {
          faults.push(`${source.file} imports ${specifier}; it belongs to ${owner.source}`);
        }
      }
    }
    expectNone(faults);
  });

  test('every package that is imported has an owner here', () => {
    const faults: string[] = [];
    for (const source of HOUSE) {
      for (const specifier of importsOf(source)) {
        if (/^(\.|node:)/.test(specifier)) continue;
        if (!PACKAGE_OWNERS[specifier] && !PACKAGE_OWNERS[specifier.split('/')[0] ?? '']) {
          faults.push(`${source.file} imports ${specifier}`);
        }
      }
    }
    expectNone(faults);
  });

  test('no file of the product imports a test, a bench or a script', () => {
    const faults = HOUSE.flatMap((source) =>
      importsOf(source)
        .filter((specifier) => /(^|\/)(test|bench|scripts)\//.test(specifier))
        .map((specifier) => `${source.file} imports ${specifier}`),
    );
    expectNone(faults);
  });

  test('every .ts file is imported by something', () => {
    const isEntry = (file: string): boolean =>
      file === 'src/cli/main.ts' ||
      file === 'assembly/index.ts' ||
      file === 'test/run.ts' ||
      /^(assembly\/test|scripts|bench)\//.test(file) ||
      /^src\/l2\/adapters\/(?:[^/]+|([^/]+)\/\1)\.ts$/.test(file) || // the registry finds them
      file.endsWith('.test.ts');
    const imported = new Map<string, Set<string>>();
    for (const source of TYPESCRIPT) {
      for (const specifier of importsOf(source).filter((name) => name.startsWith('.'))) {
        let target = path.posix.join(path.posix.dirname(source.file), specifier);
        if (!target.endsWith('.ts')) target += '.ts';
        const importers = imported.get(target) ?? new Set();
        imported.set(target, importers.add(source.file));
      }
    }
    const faults: string[] = [];
    for (const { file } of TYPESCRIPT) {
      if (isEntry(file)) continue;
      // A part of the product that only tests use is dead; the client is for tests, too.
      const importers = [...(imported.get(file) ?? [])].filter(
        (importer) => !file.startsWith('src/') || /^src\/client\//.test(file) || isUse(importer),
      );
      if (importers.length === 0) faults.push(`${file}: nothing imports it`);
    }
    expectNone(faults);
  });
});

const isUse = (importer: string): boolean => !/^(test|bench)\//.test(importer);

// ---------------------------------------------------------------- names

suite('names', (test) => {
  const folders = new Set(SOURCES.flatMap(({ file }) => file.split('/').slice(0, -1)));

  test('no folder or file is a drawer for odds and ends', () => {
    const forbidden = /^(utils?|helpers?|common|shared|misc|lib)$/;
    const faults = [...folders].filter((name) => forbidden.test(name));
    for (const { file } of SOURCES) {
      if (forbidden.test(path.basename(file).replace(/\..*$/, ''))) faults.push(file);
    }
    expectNone(faults);
  });

  test('TypeScript files are kebab-case, C files snake_case', () => {
    const faults = SOURCES.filter(({ file }) => {
      const name = path.basename(file);
      if (/\.(c|h)$/.test(name)) return !/^[a-z0-9]+(_[a-z0-9]+)*\.(c|h)$/.test(name);
      return !/^[a-z0-9]+(-[a-z0-9]+)*(\.test)?\.(ts|mjs)$/.test(name);
    });
    expectNone(faults.map(({ file }) => file));
  });

  test('src has no index.ts and its ground floor no sixth file', () => {
    const faults = HOUSE.filter(({ file }) => file.endsWith('/index.ts')).map(({ file }) => file);
    for (const { file } of HOUSE) {
      const name = /^src\/([^/]+)\.ts$/.exec(file)?.[1];
      if (name && name !== 'server' && !GROUND_FLOOR.includes(name)) faults.push(file);
    }
    expectNone(faults);
  });
});

// ---------------------------------------------------------------- sizes

suite('sizes', (test) => {
  test('lines have at most 100 columns', () => {
    const faults: string[] = [];
    for (const { file, lines } of SOURCES) {
      for (const [index, line] of lines.entries()) {
        if ([...line].length > LINE_LENGTH_MAX) faults.push(`${file}:${index + 1}`);
      }
    }
    expectNone(faults);
  });

  test('functions have at most 70 lines', () => {
    const faults: string[] = [];
    for (const source of SOURCES) {
      for (const { line, lineCount, head } of findFunctions(source)) {
        if (lineCount > FUNCTION_LINES_MAX && !head.startsWith('suite(')) {
          faults.push(`${source.file}:${line}: ${lineCount} lines: ${head}`);
        }
      }
    }
    expectNone(faults);
  });

  test('a file of more than 400 lines says in its head comment why', () => {
    const faults: string[] = [];
    for (const { file, text, lines } of SOURCES) {
      const head = /^(?:\/\*[\s\S]*?\*\/|(?:\/\/[^\n]*\n)+)/.exec(text)?.[0] ?? '';
      if (lines.length - 1 > FILE_LINES_MAX && !/longer than (?:400|other)/i.test(head)) {
        faults.push(`${file}: ${lines.length - 1} lines; split it or say why ("longer than 400")`);
      }
    }
    expectNone(faults);
  });
});

// ---------------------------------------------------------------- words

suite('words', (test) => {
  test('only src/clock.ts reads a clock or starts a timer', () => {
    const pattern =
      /\b(?:Date\.now|performance\.now|process\.hrtime|setTimeout|setInterval)\b|new Date\(\)/;
    expectNone(findLines(HOUSE, pattern, (file) => file === 'src/clock.ts'));
  });

  test('nothing of the product draws random numbers with Math.random', () => {
    const product = TYPESCRIPT.filter(({ file }) => /^(src|assembly)\//.test(file));
    expectNone(findLines(product, /\bMath\.random\b/));
  });

  test('only src/config reads the environment, and native.ts as it explains', () => {
    const isAllowed = (file: string): boolean =>
      file.startsWith('src/config/') || file === 'src/native.ts';
    expectNone(findLines(HOUSE, /\bprocess\.env\b/, isAllowed));
  });

  test('only src/cli prints', () => {
    const isAllowed = (file: string): boolean => file.startsWith('src/cli/');
    expectNone(findLines(HOUSE, /\bconsole\.|\bprocess\.(stdout|stderr)\b/, isAllowed));
  });

  test('no any, no enum, no namespace', () => {
    const pattern = /(?:[:<|&,(]|\bas)\s*any\b(?!\s*[:(])|^\s*(?:export )?(?:enum|namespace) /;
    expectNone(findLines(TYPESCRIPT, pattern, (file) => file.startsWith('assembly/')));
  });

  test('no leftovers', () => {
    // Put together here, so that this file does not find itself.
    const words = new RegExp(['FIX' + 'ME', 'TO' + 'DO', 'XX' + 'X', 'HA' + 'CK'].join('|'));
    const faults: string[] = [];
    for (const { file, lines } of SOURCES) {
      for (const [index, line] of lines.entries()) {
        if (words.test(line)) faults.push(`${file}:${index + 1}: ${line.trim()}`);
      }
    }
    expectNone([...faults, ...findLines(SOURCES, /\.only\(|\bdebugger\b/)]);
  });

  test('no commented-out code', () => {
    const faults: string[] = [];
    for (const { file, lines } of SOURCES) {
      for (const [index, line] of lines.entries()) {
        if (/^\s*\/\/.*(;|\)\s*\{|=>\s*\{)\s*$/.test(line)) faults.push(`${file}:${index + 1}`);
      }
    }
    expectNone(faults);
  });

  test('no catch swallows an error without a word', () => {
    const faults: string[] = [];
    for (const { file, text, lines } of SOURCES) {
      const pattern = /catch\s*(?:\([^)]*\)\s*)?\{\s*\}|\.catch\(\(\) => \{\}\)/g;
      for (const match of text.matchAll(pattern)) {
        const line = text.slice(0, match.index).split('\n').length;
        const isExplained = /^\s*(?:\/\/|\*)/.test(lines[line - 2] ?? '');
        if (!isExplained) faults.push(`${file}:${line}: say why nothing can be done`);
      }
    }
    expectNone(faults);
  });
});

// ---------------------------------------------------------------- tests and documents

suite('tests and documents', (test) => {
  test('every test file has tests', () => {
    const faults = TYPESCRIPT.filter(
      ({ file, text }) =>
        file.endsWith('.test.ts') &&
        file !== 'test/tidy.test.ts' &&
        !(/\bsuite\(/.test(text) && /\btest\(/.test(text)) &&
        !/\b\w*Contract\(/.test(text),
    );
    expectNone(faults.map(({ file }) => file));
  });

  test('docs/errors.md is what src/errors.ts says', () => {
    const text = fs.readFileSync(path.join(ROOT, 'docs/errors.md'), 'utf8');
    assert.is(text, renderErrors(), 'run `npm run docs`');
  });

  test('docs/operating.md has every flag as src/config/flags.ts has it', () => {
    const text = fs.readFileSync(path.join(ROOT, 'docs/operating.md'), 'utf8');
    assert.is(text, insertFlags(text), 'run `npm run docs`');
  });

  test('docs/l2-adapters.md has every key of every adapter', async () => {
    const text = fs.readFileSync(path.join(ROOT, 'docs/l2-adapters.md'), 'utf8');
    assert.is(text, insertAdapters(text, await loadBackendTypes()), 'run `npm run docs`');
  });

  test('docs/metrics.md has every instrument of the catalogue', () => {
    const text = fs.readFileSync(path.join(ROOT, 'docs/metrics.md'), 'utf8');
    assert.is(text, insertMetrics(text), 'run `npm run docs`');
  });

  test('every npm script that a document names exists', () => {
    const { scripts } = JSON.parse(fs.readFileSync(path.join(ROOT, 'package.json'), 'utf8'));
    const faults: string[] = [];
    const documents = [...listFiles('docs'), 'README.md', 'CONTRIBUTING.md', 'SECURITY.md'];
    for (const file of documents.filter((name) => name.endsWith('.md'))) {
      const text = fs.readFileSync(path.join(ROOT, file), 'utf8');
      for (const [, name] of text.matchAll(/npm run ([a-z][a-z0-9:-]*)/g)) {
        if (name && !(name in scripts)) faults.push(`${file}: npm run ${name}`);
      }
    }
    expectNone(faults);
  });
});
