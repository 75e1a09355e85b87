/**
 * Builds everything that is not run from source.
 *
 *   node build.mjs [--if-missing] [--only wasm,shim,bundle,sea]
 *
 *   wasm    assembly/*.ts  ─ asc ─────────▶ build/core.wasm, build/core.debug.wasm
 *   shim    shim/*.c       ─ cc ──────────▶ build/libkvshim.so
 *   bundle  src/cli/main.ts ─ esbuild esm ▶ dist/kvd.mjs, dist/native/*, dist/THIRD-PARTY.txt
 *   sea     src/cli/main.ts ─ esbuild cjs ▶ build/sea/main.cjs ─ node, postject ▶ dist/kvd
 *
 * `--if-missing` leaves out a part whose outputs are newer than its sources. Outputs are written
 * beside and renamed, so a build that breaks off leaves the old ones usable.
 *
 * The folder src/l2/adapters is listed at build time (adapterFiles, below). Beside that
 * the bundles replace four things (libraries.md 3.6 says how each was found): the addon lookup of
 * zeromq, the addon lookup of koffi (both then ask src/native.ts), the ESM builds of
 * @opentelemetry, which would bring @grpc/grpc-js in twice, and @grpc/proto-loader, a third of a
 * megabyte that grpc-js asks for in services of its own that kvd does not offer.
 */
import { spawn, spawnSync } from 'node:child_process';
import { createHash } from 'node:crypto';
import fs from 'node:fs';
import path from 'node:path';
import { pathToFileURL } from 'node:url';

const ROOT = import.meta.dirname;
const at = (...parts) => path.join(ROOT, ...parts);
const NODE_MAJOR_MIN = 24;
const SEA_FUSE = 'NODE_SEA_FUSE_fce680ab2cc467b6e072b8b5df1996b2';

/**
 * Native files by fixed path: what the packages would choose for themselves depends on the machine
 * (the glibc-147 build of zeromq, for one, does not load on glibc 2.36).
 */
const ASSETS = {
  'zeromq.node': at(
    `node_modules/zeromq/build/linux/${process.arch}/node/glibc-127-Release/addon.node`,
  ),
  'koffi.node': at(
    `node_modules/@koromix/koffi-linux-${process.arch}/linux_${process.arch}/koffi.node`,
  ),
  'libkvshim.so': at('build/libkvshim.so'),
  'core.wasm': at('build/core.wasm'),
};

/** In this order: each part needs those above it. */
const PARTS = {
  wasm: {
    sources: ['assembly', 'asconfig.json'],
    outputs: ['build/core.wasm', 'build/core.debug.wasm'],
    build: buildWasm,
  },
  shim: { sources: ['shim'], outputs: ['build/libkvshim.so'], build: buildShim },
  bundle: {
    sources: ['src', 'assembly', 'shim', 'package.json', 'package-lock.json', 'build.mjs'],
    outputs: ['dist/kvd.mjs', ...Object.keys(ASSETS).map((name) => `dist/native/${name}`)],
    build: () => buildBundle({ entry: at('src/cli/main.ts'), folder: at('dist') }),
  },
  sea: {
    sources: ['src', 'assembly', 'shim', 'package.json', 'package-lock.json', 'build.mjs'],
    outputs: ['dist/kvd'],
    build: () =>
      buildExecutable({ entry: at('src/cli/main.ts'), file: at('dist/kvd'), work: 'build/sea' }),
  },
};

// ---------------------------------------------------------------- parts

async function buildWasm() {
  fs.mkdirSync(at('build'), { recursive: true });
  const asc = at('node_modules/assemblyscript/bin/asc.js');
  const compile = async (target, file) => {
    const draft = `build/.${process.pid}-${file}`;
    const args = [asc, 'assembly/index.ts', '--config', 'asconfig.json', '--target', target];
    await run(process.execPath, [...args, '--outFile', draft]);
    fs.renameSync(at(draft), at('build', file));
  };
  await Promise.all([compile('release', 'core.wasm'), compile('debug', 'core.debug.wasm')]);
}

async function buildShim() {
  fs.mkdirSync(at('build'), { recursive: true });
  const sources = fs
    .readdirSync(at('shim'))
    .filter((name) => name.endsWith('.c'))
    .map((name) => `shim/${name}`);
  const draft = `build/.${process.pid}-libkvshim.so`;
  const flags = ['-std=c17', '-O2', '-shared', '-fPIC', '-Wall', '-Wextra'];
  await run('cc', [...flags, '-o', draft, ...sources, '-lpthread', '-ldl'], {
    hint: 'the C shim needs a C compiler (Debian: gcc libc6-dev)',
  });
  fs.renameSync(at(draft), at('build/libkvshim.so'));
}

export async function buildBundle({ entry, folder }) {
  const esbuild = await import('esbuild');
  fs.mkdirSync(path.join(folder, 'native'), { recursive: true });
  const native = path.join(folder, 'native');
  for (const [name, file] of Object.entries(ASSETS)) replaceFile(path.join(native, name), file);
  const banner =
    "import { createRequire as __createRequire } from 'node:module';" +
    'const require = __createRequire(import.meta.url);' +
    'const __filename = import.meta.filename, __dirname = import.meta.dirname;';
  const draft = path.join(folder, `.${process.pid}-kvd.mjs`);
  const { metafile } = await esbuild.build({
    ...commonOptions('bundle'),
    entryPoints: [entry],
    outfile: draft,
    format: 'esm',
    banner: { js: banner },
  });
  checkMetafile(metafile);
  fs.renameSync(draft, path.join(folder, 'kvd.mjs'));
  fs.writeFileSync(path.join(folder, 'THIRD-PARTY.txt'), thirdPartyLicenses(metafile));
}

/**
 * Order matters: strip the copy of Node first (114 instead of 132 MB), inject then; stripping
 * afterwards breaks the file. The blob holds a code cache and so belongs to this very Node.
 * All paths in the configuration are relative: they show in stack traces.
 */
export async function buildExecutable({ entry, file, work }) {
  const esbuild = await import('esbuild');
  const { inject } = await import('postject');
  fs.mkdirSync(at(work), { recursive: true });
  fs.mkdirSync(path.dirname(file), { recursive: true });
  const { metafile } = await esbuild.build({
    ...commonOptions('executable'),
    entryPoints: [entry],
    outfile: at(work, 'main.cjs'),
    format: 'cjs',
    banner: {
      js:
        "const __selfUrl = require('node:url').pathToFileURL(process.execPath).href;" +
        "const __selfFolder = require('node:path').dirname(process.execPath);",
    },
  });
  checkMetafile(metafile);
  const config = {
    main: 'main.cjs',
    output: 'sea.blob',
    disableExperimentalSEAWarning: true,
    useCodeCache: true,
    execArgv: ['--max-semi-space-size=16'],
    execArgvExtension: 'none',
    assets: Object.fromEntries(
      Object.entries(ASSETS).map(([name, source]) => [name, path.relative(at(work), source)]),
    ),
  };
  fs.writeFileSync(at(work, 'sea-config.json'), `${JSON.stringify(config, null, 2)}\n`);
  await run(process.execPath, ['--experimental-sea-config', 'sea-config.json'], { cwd: at(work) });
  const draft = `${file}.${process.pid}`;
  fs.copyFileSync(process.execPath, draft);
  fs.chmodSync(draft, 0o755);
  await run('strip', ['--strip-all', draft], { optional: 'the executable stays 18 MB larger' });
  await quietly(() =>
    inject(draft, 'NODE_SEA_BLOB', fs.readFileSync(at(work, 'sea.blob')), {
      sentinelFuse: SEA_FUSE,
    }),
  );
  fs.renameSync(draft, file);
}

// ---------------------------------------------------------------- esbuild

function commonOptions(form) {
  const hashes = {};
  for (const [name, file] of Object.entries(ASSETS)) {
    hashes[name] = createHash('sha256').update(fs.readFileSync(file)).digest('hex');
  }
  const define = {
    KVD_FORM: JSON.stringify(form),
    KVD_ASSET_SHA256: JSON.stringify(hashes),
    KVD_COMMIT: JSON.stringify(commitId()),
  };
  if (form === 'executable') {
    // Any other text than a file URL makes createRequire throw at start.
    define['import.meta.url'] = '__selfUrl';
    define['import.meta.dirname'] = '__selfFolder';
    define['import.meta.filename'] = 'process.execPath';
  }
  return {
    bundle: true,
    platform: 'node',
    target: 'node24',
    // Full minification starts no faster and makes traces unreadable.
    minifyWhitespace: true,
    minifySyntax: true,
    keepNames: true,
    lineLimit: 160,
    legalComments: 'none',
    metafile: true,
    absWorkingDir: ROOT,
    logLevel: 'warning',
    define,
    plugins: [redirects, adapterFiles],
  };
}

const addonModule = (exported, name) => ({
  contents:
    `import { nativeAddon } from ${JSON.stringify(at('src/native.ts'))};\n` +
    `export const ${exported} = () => nativeAddon(${JSON.stringify(name)});\n`,
  resolveDir: ROOT,
});

/** src/l2/adapter-files.ts reads a folder that the bundle does not have; this is what it finds. */
const adapterFiles = {
  name: 'kvd-adapter-files',
  setup(build) {
    const folder = at('src/l2/adapters');
    build.onLoad({ filter: /\/src\/l2\/adapter-files\.ts$/ }, () => {
      const specifiers = fs
        .readdirSync(folder, { withFileTypes: true })
        .map((entry) => (entry.isDirectory() ? `${entry.name}/${entry.name}.ts` : entry.name))
        .filter((file) => file.endsWith('.ts'))
        .sort()
        .map((file) => JSON.stringify(`./adapters/${file}`));
      const imports = specifiers.map((specifier) => `import(${specifier})`).join(',\n');
      return {
        contents: `export const importAdapterModules = () => Promise.all([${imports}]);\n`,
        resolveDir: at('src/l2'),
      };
    });
  },
};

const redirects = {
  name: 'kvd-redirects',
  setup(build) {
    build.onResolve({ filter: /^cmake-ts\/build\/loader$/ }, () => ({
      path: 'zeromq',
      namespace: 'kvd-addon',
    }));
    build.onResolve({ filter: /^\.\/src\/static\.c?js$/ }, (args) =>
      args.importer.includes('/node_modules/koffi/')
        ? { path: 'koffi', namespace: 'kvd-addon' }
        : undefined,
    );
    build.onLoad({ filter: /.*/, namespace: 'kvd-addon' }, (args) =>
      args.path === 'zeromq'
        ? addonModule('loadAddon', 'zeromq.node')
        : addonModule('loadStatic', 'koffi.node'),
    );
    build.onResolve({ filter: /^@grpc\/proto-loader$/ }, () => ({
      path: 'proto-loader',
      namespace: 'kvd-nothing',
    }));
    build.onLoad({ filter: /.*/, namespace: 'kvd-nothing' }, () => ({ contents: '' }));
    build.onResolve({ filter: /^@opentelemetry\// }, (args) =>
      args.pluginData === 'cjs'
        ? undefined
        : build.resolve(args.path, {
            kind: 'require-call',
            resolveDir: args.resolveDir,
            importer: args.importer,
            pluginData: 'cjs',
          }),
    );
  },
};

/** What the redirects keep out. */
const UNWANTED =
  /node_modules\/(cmake-ts|@grpc\/proto-loader|@opentelemetry\/.*\.mjs|koffi\/.*static\.c?js)/;

/** What the redirects are for, checked on the result. */
function checkMetafile(metafile) {
  const inputs = Object.keys(metafile.inputs);
  const grpc = inputs.filter((file) => file.endsWith('@grpc/grpc-js/build/src/index.js'));
  if (grpc.length !== 1) throw new Error(`@grpc/grpc-js is in the bundle ${grpc.length} times`);
  for (const file of inputs) {
    if (UNWANTED.test(file)) {
      throw new Error(`${file} is in the bundle: a redirect of build.mjs no longer matches`);
    }
  }
}

/** The licences of what the bundle contains, as their texts ask. */
function thirdPartyLicenses(metafile) {
  const folders = new Set();
  for (const file of Object.keys(metafile.inputs)) {
    const match = /^(.*node_modules\/(?:@[^/]+\/)?[^/]+)\//.exec(file);
    if (match) folders.add(match[1]);
  }
  const parts = [];
  for (const folder of [...folders].sort()) {
    const { name, version, license } = JSON.parse(fs.readFileSync(at(folder, 'package.json')));
    const texts = fs
      .readdirSync(at(folder))
      .filter((file) => /^(licen[cs]e|notice)/i.test(file))
      .map((file) => fs.readFileSync(at(folder, file), 'utf8').trim());
    parts.push(`${name} ${version} (${license})\n\n${texts.join('\n\n')}\n`);
  }
  return parts.join(`\n${'-'.repeat(78)}\n\n`);
}

// ---------------------------------------------------------------- small things

/** Runs a program with its output going to ours; throws when it fails. */
function run(command, args, { cwd = ROOT, hint = '', optional = '' } = {}) {
  return new Promise((resolve, reject) => {
    const child = spawn(command, args, { cwd, stdio: ['ignore', 'inherit', 'inherit'] });
    child.on('error', (error) => {
      if (optional) {
        console.warn(`build: ${command}: ${error.message}; ${optional}`);
        resolve();
      } else reject(new Error(`${command}: ${error.message}${hint ? `; ${hint}` : ''}`));
    });
    child.on('exit', (code, signal) => {
      if (code === 0) resolve();
      else reject(new Error(`${command} ${args.join(' ')}: ${signal ?? `exit code ${code}`}`));
    });
  });
}

/** postject prints warnings about Node's own notes sections, which mean nothing. */
async function quietly(work) {
  const { error, warn, log } = console;
  Object.assign(console, { error() {}, warn() {}, log() {} });
  try {
    return await work();
  } finally {
    Object.assign(console, { error, warn, log });
  }
}

/** '' outside a git checkout. */
function commitId() {
  const { stdout } = spawnSync('git', ['rev-parse', '--short', 'HEAD'], {
    cwd: ROOT,
    encoding: 'utf8',
  });
  return stdout?.trim() ?? '';
}

/** A server may have the old file mapped: never write into it. */
function replaceFile(target, source) {
  const draft = `${target}.${process.pid}`;
  fs.copyFileSync(source, draft);
  fs.renameSync(draft, target);
}

function newestMs(file) {
  const stat = fs.statSync(file, { throwIfNoEntry: false });
  if (!stat) return 0;
  if (!stat.isDirectory()) return stat.mtimeMs;
  return Math.max(0, ...fs.readdirSync(file).map((name) => newestMs(path.join(file, name))));
}

function isCurrent({ sources, outputs }) {
  const oldest = Math.min(
    ...outputs.map((file) => fs.statSync(at(file), { throwIfNoEntry: false })?.mtimeMs ?? -1),
  );
  return oldest >= 0 && oldest >= Math.max(...sources.map((file) => newestMs(at(file))));
}

function parseArguments(args) {
  const options = { ifMissing: false, only: Object.keys(PARTS) };
  for (let index = 0; index < args.length; index += 1) {
    if (args[index] === '--if-missing') options.ifMissing = true;
    else if (args[index] === '--only') {
      index += 1;
      options.only = (args[index] ?? '').split(',');
    } else throw new Error(`unknown argument ${args[index]}`);
  }
  for (const name of options.only) {
    if (!(name in PARTS)) throw new Error(`unknown part "${name}": ${Object.keys(PARTS)}`);
  }
  return options;
}

async function main() {
  if (Number.parseInt(process.versions.node, 10) < NODE_MAJOR_MIN) {
    throw new Error(
      `needs Node ${NODE_MAJOR_MIN}, this is ${process.version}: use \`npm run build\` ` +
        'or node_modules/.bin/node build.mjs',
    );
  }
  const { ifMissing, only } = parseArguments(process.argv.slice(2));
  for (const [name, part] of Object.entries(PARTS)) {
    if (!only.includes(name) || (ifMissing && isCurrent(part))) continue;
    const startMs = performance.now();
    await part.build();
    console.log(`build: ${name} in ${Math.round(performance.now() - startMs)} ms`);
  }
}

if (import.meta.url === pathToFileURL(process.argv[1]).href) {
  main().catch((error) => {
    console.error(`build: ${error.message}`);
    process.exitCode = 1;
  });
}
