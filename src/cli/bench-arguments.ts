/**
 * Command line of `kvd bench`. The flags of `lmcache bench server` are among them and mean the
 * same, so that its users' scripts work; every problem is reported at once.
 */
import type { Command } from 'commander';
import { Option } from 'commander';
import type { BenchOptions } from '../client/load/bench-run.ts';
import type { CacheGeometry } from '../client/load/cache-shape.ts';
import { DTYPE_SIZE_BYTES } from '../device/tensor-wrapper.ts';
import { CommandError, clientCommand, EXIT_CODE_USAGE, parseArguments } from './arguments.ts';
import { isDtype, parseShapeSpec } from './bench-shape.ts';
import { NumberReader } from './number-reader.ts';
import type { ReportOptions } from './report.ts';
import { toBaseUrl } from './status-document.ts';

const REQUEST_COUNT = 16;
const CLIENT_COUNT_MAX = 256;

/** A cache of 64 KiB per token: a request of 512 tokens moves 32 MiB. */
const SHAPE_DEFAULTS = { layers: 16, heads: 8, headSize: 128, dtype: 'float16', blockSize: 16 };
const SPEC_PARTS = ['layers', 'heads', 'headSize', 'dtype'] as const;

interface RawOptions extends ReportOptions {
  readonly rpcUrl: string;
  readonly url?: string;
  readonly mode: string;
  readonly transferMode: BenchOptions['transferMode'];
  readonly dialect: BenchOptions['dialect'];
  readonly kvcacheShapeSpec?: string;
  readonly layers?: string;
  readonly heads?: string;
  readonly headSize?: string;
  readonly dtype?: string;
  readonly blockSize?: string;
  readonly numBlocks?: string;
  readonly numTokens: string;
  readonly requests?: string;
  readonly start: string;
  readonly end?: string;
  readonly clients: string;
  readonly interval: string;
  readonly duration?: string;
  readonly lookupSeconds: string;
  readonly timeout: string;
}

export interface BenchArguments {
  readonly bench: Omit<BenchOptions, 'clock' | 'signal' | 'onProgress'>;
  /** HTTP address to ask for the state of the server; null = do not. */
  readonly httpUrl: string | null;
  readonly report: ReportOptions;
}

function benchCommand(): Command {
  const { layers, heads, headSize, dtype, blockSize } = SHAPE_DEFAULTS;
  return clientCommand('bench', 'Check a server end to end and measure it, without an engine.')
    .argument('[target]', 'server; for compatibility with `lmcache bench server`', 'server')
    .option('--rpc-url <url>', 'message port of the server', 'tcp://localhost:5555')
    .option('--url <url>', 'HTTP address of the server: check and show its state, too')
    .addOption(choice('--transfer-mode <mode>', 'who copies', ['auto', ...MODES]).default('auto'))
    .addOption(choice('--dialect <name>', 'client generation', ['A', 'B', 'C']).default('A'))
    .addOption(choice('--mode <mode>', 'memory of the workers', ['cpu', 'gpu']).default('cpu'))
    .option('--num-tokens <n>', 'tokens of a prompt; whole chunks of it are stored', '512')
    .option('--requests <n>', `how many (default: ${REQUEST_COUNT}; endless with --duration)`)
    .option('--start <n>', 'number of the first request', '0')
    .option('--end <n>', 'number behind the last one, in place of --requests')
    .option('--clients <n>', 'workers at a time', '1')
    .option('--interval <seconds>', 'pause of a worker between two requests', '0')
    .option('--duration <seconds>', 'begin no request after this time')
    .option('--lookup-seconds <seconds>', 'then look up in a loop; 0 = do not', '1')
    .option('--timeout <seconds>', 'how long to wait for one answer', '30')
    .option('--kvcache-shape-spec <spec>', "'(kv_size,NB,BS,NH,HS):dtype:layers[;…]'")
    .option('--layers <n>', `or its parts: layers (default: ${layers})`)
    .option('--heads <n>', `KV heads (default: ${heads})`)
    .option('--head-size <n>', `elements of a head (default: ${headSize})`)
    .option('--dtype <name>', `element type (default: ${dtype})`)
    .option('--block-size <n>', `tokens of a block (default: ${blockSize})`)
    .option('--num-blocks <n>', 'blocks of the cache (default: what one request needs)');
}

const MODES = ['lmcache_driven', 'engine_driven'];
const choice = (flag: string, help: string, choices: string[]) =>
  new Option(flag, help).choices(choices);

/** Null = help was asked for and printed. */
export function parseBenchArguments(argv: readonly string[]): BenchArguments | null {
  const parsed = parseArguments<RawOptions>(benchCommand(), argv);
  if (!parsed) return null;
  const { options, args } = parsed;
  const reader = new NumberReader();
  const { problems } = reader;
  const [target = 'server'] = args;
  if (target !== 'server') problems.push(`'${target}': expected server`);
  if (options.mode === 'gpu') problems.push('--mode gpu: not in this build, use cpu');
  const geometry = readGeometry(options, reader);
  const bench = {
    url: readUrl(options.rpcUrl, problems),
    transferMode: options.transferMode,
    dialect: options.dialect,
    geometry,
    tokenCount: reader.integer('--num-tokens', options.numTokens, 1),
    ...readRange(options, reader),
    clientCount: reader.integer('--clients', options.clients, 1, CLIENT_COUNT_MAX),
    intervalMs: reader.milliseconds('--interval', options.interval),
    lookupDurationMs: reader.milliseconds('--lookup-seconds', options.lookupSeconds),
    timeoutMs: reader.milliseconds('--timeout', options.timeout),
  };
  if (bench.timeoutMs === 0) problems.push('--timeout: expected seconds above 0');
  if (problems.length > 0) {
    const lines = problems.map((problem) => `kvd bench: error: ${problem}`);
    throw new CommandError(lines.join('\n'), EXIT_CODE_USAGE);
  }
  const httpUrl = options.url === undefined ? null : toBaseUrl(options.url);
  return { bench, httpUrl, report: options };
}

function readUrl(text: string, problems: string[]): string {
  const url = text.includes('://') ? text : `tcp://${text}`;
  if (!/^(tcp:\/\/.+:\d+|ipc:\/\/.+)$/.test(url)) {
    problems.push(`--rpc-url: expected tcp://HOST:PORT or ipc://PATH, got '${text}'`);
  }
  return url;
}

function readRange(options: RawOptions, reader: NumberReader) {
  const firstSequence = reader.integer('--start', options.start, 0);
  const durationMs = reader.milliseconds('--duration', options.duration ?? 'Infinity');
  let endSequence = firstSequence + REQUEST_COUNT;
  if (options.duration !== undefined) endSequence = Number.POSITIVE_INFINITY;
  if (options.requests !== undefined) {
    endSequence = firstSequence + reader.integer('--requests', options.requests, 1);
  }
  if (options.end !== undefined) {
    if (options.requests !== undefined) reader.problems.push('--end: not with --requests');
    endSequence = reader.integer('--end', options.end, firstSequence + 1);
  }
  return { firstSequence, endSequence, durationMs };
}

function readGeometry(options: RawOptions, reader: NumberReader): CacheGeometry {
  const { problems } = reader;
  const blockSize = options.blockSize ?? String(SHAPE_DEFAULTS.blockSize);
  const slotsPerBlock = reader.integer('--block-size', blockSize, 1);
  const { numBlocks, kvcacheShapeSpec: spec } = options;
  const blockCount = numBlocks === undefined ? null : reader.integer('--num-blocks', numBlocks, 1);
  if (spec !== undefined) return readSpec(spec, { options, blockCount, slotsPerBlock }, problems);
  const given = { ...SHAPE_DEFAULTS, ...options };
  const { dtype } = given;
  if (!isDtype(dtype)) problems.push(`--dtype: unknown dtype '${dtype}'`);
  const known = isDtype(dtype) ? dtype : 'uint8';
  const group = {
    kvSize: 2 as const,
    headCount: reader.integer('--heads', String(given.heads), 1),
    headSize: reader.integer('--head-size', String(given.headSize), 1),
    dtype: known,
    itemSizeBytes: DTYPE_SIZE_BYTES[known],
    layerCount: reader.integer('--layers', String(given.layers), 1),
  };
  return { blockCount, slotsPerBlock, groups: [group] };
}

/** The spec says it all: a flag beside it must agree with it. */
function readSpec(
  spec: string,
  beside: {
    readonly options: RawOptions;
    readonly blockCount: number | null;
    readonly slotsPerBlock: number;
  },
  problems: string[],
): CacheGeometry {
  const flag = '--kvcache-shape-spec';
  const parsed = parseShapeSpec(spec);
  if ('problem' in parsed) {
    problems.push(`${flag}: ${parsed.problem}`);
    return { blockCount: null, slotsPerBlock: 1, groups: [] };
  }
  const { options, blockCount, slotsPerBlock } = beside;
  const { value } = parsed;
  for (const part of SPEC_PARTS) {
    const name = part === 'headSize' ? 'head-size' : part;
    if (options[part] !== undefined) problems.push(`--${name}: not with ${flag}`);
  }
  if (blockCount !== null && blockCount !== value.blockCount) {
    problems.push(`--num-blocks: ${flag} has ${value.blockCount}, got ${blockCount}`);
  }
  if (options.blockSize !== undefined && slotsPerBlock !== value.slotsPerBlock) {
    problems.push(`--block-size: ${flag} has ${value.slotsPerBlock}, got ${slotsPerBlock}`);
  }
  return value;
}
