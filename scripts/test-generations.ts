/**
 * `npm run test:generations -- [--releases 0.5.0,0.5.6] [--quick]`
 *
 * The real clients of every release that kvd serves, from PyPI, against one server:
 *
 *   shared   engines of all releases at once: what one stores every other one reads back, byte for
 *            byte, over both transfer paths; where releases lay objects out differently (fused 4-D
 *            caches) they never see each other's; all of them busy on the same prompts at once
 *   gRPC     the client of 0.5.6 that has both transports, over both, at one server
 *   alone    the conformance driver under each release's client (left out by --quick)
 *
 * The drivers are in ../shared/conformance (or KVD_CONFORMANCE_DIR). About 12 minutes on two cores,
 * one with --quick. The last line is `N passed, N failed`.
 */
import { spawnSync } from 'node:child_process';
import path from 'node:path';
import { freePorts } from '../test/support/free-ports.ts';
import { ServerProcess } from '../test/support/server-process.ts';
import { GenerationEngine, type Loaded } from './generations/engine.ts';
import { DRIVER_ENVIRONMENT, findDrivers, findPython, ROOT } from './reference.ts';

const RELEASES = ['0.5.0', '0.5.2', '0.5.3', '0.5.4', '0.5.5', '0.5.6'];
const MODES = ['lmcache_driven', 'engine_driven'];
/** Their objects mean the same in every release. */
const SHARED_FORMATS = ['kv_first', 'mla'];
/** The first with gRPC. */
const GRPC_RELEASE = '0.5.6';
const CHUNK_COUNT = 2;
const BUSY_ROUNDS = 15;
const OTHER_STORE_MS = 5000;
/** Groups of the driver that do not start servers of their own. */
const GROUPS = 'control,handle,engine_driven,other_engines,errors';

const OUTPUT_BYTES_MAX = 1 << 26;

let passedCount = 0;
let failedCount = 0;

function check(title: string, isRight: boolean, seen: unknown): void {
  if (isRight) passedCount += 1;
  else failedCount += 1;
  console.log(
    `${isRight ? 'PASS ' : 'FAIL '} ${title}${isRight ? '' : `: ${JSON.stringify(seen)}`}`,
  );
}

const isWhole = (loaded: Loaded, digest: string): boolean =>
  loaded.ok && loaded.hit === CHUNK_COUNT && loaded.digest === digest;

/** Every release stores a prompt of its own; every release and path reads all of them. */
async function checkSharing(engines: readonly GenerationEngine[]): Promise<void> {
  for (const format of SHARED_FORMATS) {
    const model = `shared-${format}`;
    await openEverywhere(engines, model, format);
    let seed = 1000;
    for (const writer of engines) {
      for (const writerMode of MODES) {
        seed += 1;
        const stored = await writer.store(`${model}/${writerMode}`, seed, CHUNK_COUNT);
        check(`${format}: ${writer.release} ${writerMode} stores`, stored.ok, stored);
        for (const reader of engines) {
          for (const mode of MODES) {
            const loaded = await reader.load(`${model}/${mode}`, seed, CHUNK_COUNT);
            const title = `${format}: ${writer.release} ${writerMode} to ${reader.release} ${mode}`;
            check(title, isWhole(loaded, stored.digest), { loaded, stored });
          }
        }
      }
    }
    await closeEverywhere(engines, model);
  }
}

/**
 * Fused 4-D caches: a release takes its own objects back whole, and of another one's either all
 * the right bytes or nothing.
 */
async function checkFused(engines: readonly GenerationEngine[]): Promise<void> {
  const model = 'fused';
  const [mode] = MODES as [string];
  for (const engine of engines)
    await engine.open(`${model}/${mode}`, { model, format: model, mode });
  let seed = 3000;
  for (const writer of engines) {
    seed += 1;
    const stored = await writer.store(`${model}/${mode}`, seed, CHUNK_COUNT);
    for (const reader of engines) {
      const loaded = await reader.load(`${model}/${mode}`, seed, CHUNK_COUNT);
      const isRight =
        isWhole(loaded, stored.digest) || (reader !== writer && loaded.ok && loaded.hit === 0);
      check(`fused: ${writer.release} to ${reader.release}`, isRight, { loaded, stored });
    }
  }
  for (const engine of engines) await engine.close(`${model}/${mode}`);
}

/** What another engine is just storing is there a little later. */
async function loadWhole(engine: GenerationEngine, name: string, seed: number): Promise<Loaded> {
  const endMs = Date.now() + OTHER_STORE_MS;
  for (;;) {
    const loaded = await engine.load(name, seed, CHUNK_COUNT);
    if (loaded.hit === CHUNK_COUNT || !loaded.ok || Date.now() > endMs) return loaded;
  }
}

/** All releases and paths at once on the same prompts. */
async function checkTogether(engines: readonly GenerationEngine[]): Promise<void> {
  const model = 'busy';
  await openEverywhere(engines, model, 'kv_first');
  const busy = engines.map(async (engine, index): Promise<string[]> => {
    const faults: string[] = [];
    for (let round = 0; round < BUSY_ROUNDS; round += 1) {
      const name = `${model}/${MODES[(round + index) % MODES.length]}`;
      const seed = 5000 + Math.floor(round / 3);
      const stored = await engine.store(name, seed, CHUNK_COUNT);
      const loaded = await loadWhole(engine, name, seed);
      if (!stored.ok || !isWhole(loaded, stored.digest)) {
        faults.push(`${engine.release} ${name} ${seed}: ${JSON.stringify({ stored, loaded })}`);
      }
    }
    return faults;
  });
  const faults = (await Promise.all(busy)).flat();
  check(`${engines.length} releases busy at once`, faults.length === 0, faults.slice(0, 3));
  await closeEverywhere(engines, model);
}

async function openEverywhere(
  engines: readonly GenerationEngine[],
  model: string,
  format: string,
): Promise<void> {
  for (const engine of engines) {
    for (const mode of MODES) await engine.open(`${model}/${mode}`, { model, format, mode });
  }
}

async function closeEverywhere(engines: readonly GenerationEngine[], model: string): Promise<void> {
  for (const engine of engines) {
    for (const mode of MODES) await engine.close(`${model}/${mode}`);
  }
}

async function checkShared(drivers: string, releases: readonly string[]): Promise<void> {
  const server = await ServerProcess.start({ '--chunk-size': 256, '--l1-size-gb': 1 });
  const engines: GenerationEngine[] = [];
  try {
    for (const release of releases) {
      const python = findPython('generation', release);
      engines.push(await GenerationEngine.start({ python, drivers, url: server.url, release }));
    }
    await checkSharing(engines);
    await checkFused(engines);
    await checkTogether(engines);
    const { read_locked_count, write_locked_count } = await server.l1();
    const locked = { read_locked_count, write_locked_count };
    check('nothing is left locked', read_locked_count === 0 && write_locked_count === 0, locked);
  } finally {
    for (const engine of engines) await engine.end();
    await server.stop();
  }
}

/** One server with both doors; an engine on each. */
async function checkGrpc(drivers: string): Promise<void> {
  console.log(`==== gRPC, ${GRPC_RELEASE}`);
  const [port] = await freePorts(1);
  const grpcUrl = `grpc://127.0.0.1:${port}`;
  const server = await ServerProcess.start({
    '--chunk-size': 256,
    '--l1-size-gb': 1,
    '--endpoint': grpcUrl,
  });
  const python = findPython('generation', GRPC_RELEASE);
  const engines: GenerationEngine[] = [];
  try {
    for (const url of [grpcUrl, server.url]) {
      engines.push(await GenerationEngine.start({ python, drivers, url, release: GRPC_RELEASE }));
    }
    await checkSharing(engines);
    checkGrpcRequests(python, grpcUrl);
  } finally {
    for (const engine of engines) await engine.end();
    await server.stop();
  }
}

function checkGrpcRequests(python: string, url: string): void {
  const script = path.join(import.meta.dirname, 'generations/grpc-requests.py');
  const [format] = SHARED_FORMATS;
  const run = spawnSync(python, [script, url, `shared-${format}`], {
    encoding: 'utf8',
    env: DRIVER_ENVIRONMENT,
    stdio: ['ignore', 'pipe', 'inherit'],
  });
  const seen = JSON.parse(run.stdout || '{}');
  check('gRPC: single requests', seen.chunk_size === 256 && seen.noop === 'OK', seen);
  const { seqs, tokens, closed, batches } = seen.events ?? {};
  const isStreamed = String(seqs).startsWith('1,2,3,4') && batches >= 2 && tokens === 256;
  check('gRPC: the event stream replays what was stored', isStreamed && closed, seen.events);
  const refusedBy = (name: string) => `${seen[name]?.code} ${seen[name]?.details}`;
  for (const name of ['bad_registration', 'bad_context']) {
    const isRefused = refusedBy(name).startsWith('INVALID_ARGUMENT BAD_REQUEST: ');
    check(`gRPC: ${name} is refused at once`, isRefused, seen[name]);
  }
  const isNotEnabled = refusedBy('rope').startsWith('UNIMPLEMENTED NOT_ENABLED: ');
  check('gRPC: what is not enabled says so', isNotEnabled, seen.rope);
  const hasPinged = String(seen.unregistered) === 'false,true';
  check('gRPC: a worker that is not registered hears so once', hasPinged, seen.unregistered);
}

/** The driver counts by itself; its last line is taken over. */
function checkAlone(release: string): void {
  console.log(`==== conformance under ${release}`);
  const script = path.join(import.meta.dirname, 'conformance.ts');
  const run = spawnSync(process.execPath, [script, '--release', release, '--group', GROUPS], {
    cwd: ROOT,
    encoding: 'utf8',
    stdio: ['ignore', 'pipe', 'inherit'],
    maxBuffer: OUTPUT_BYTES_MAX,
  });
  process.stdout.write(run.stdout.replace(/^PASS .*\n/gm, ''));
  const counts = /^(\d+) passed, (\d+) failed/m.exec(run.stdout);
  passedCount += Number(counts?.[1] ?? 0);
  failedCount += counts ? Number(counts[2]) : 1;
}

function readReleases(args: readonly string[]): string[] {
  const index = args.indexOf('--releases');
  return index < 0 ? RELEASES : (args[index + 1] ?? '').split(',');
}

async function main(args: readonly string[]): Promise<number> {
  const drivers = findDrivers();
  if (drivers === null) {
    console.log(
      'test:generations: skipped: there is no ../shared/conformance and no KVD_CONFORMANCE_DIR',
    );
    return 0;
  }
  const releases = readReleases(args);
  await checkShared(drivers, releases);
  if (releases.includes(GRPC_RELEASE)) await checkGrpc(drivers);
  if (!args.includes('--quick')) for (const release of releases) checkAlone(release);
  console.log(`${passedCount} passed, ${failedCount} failed`);
  return failedCount === 0 && passedCount > 0 ? 0 : 1;
}

process.exitCode = await main(process.argv.slice(2));
