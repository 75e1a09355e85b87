/** Command line of `kvd simulate`; every problem is reported at once. */
import { type Command, Option } from 'commander';
import { EVICTION_POLICIES, type EvictionPolicy } from '../core/policy.ts';
import { GIB } from '../units.ts';
import { CommandError, clientCommand, EXIT_CODE_USAGE, parseArguments } from './arguments.ts';
import { NumberReader } from './number-reader.ts';
import type { ReportOptions } from './report.ts';
import type { LogOptions } from './simulate-log.ts';
import type { SyntheticOptions } from './simulate-workload.ts';

const COUNT_MAX = 10_000_000;
const CHUNKS_MAX = 65_536;
const TENANTS_MAX = 65_536;
/** Chunk numbers of a made-up workload: 1 GiB. */
const REFERENCE_COUNT_MAX = 2 ** 28;
const CHUNK_BYTES_MAX = 2 ** 32 - 1;
/** 1 PiB. */
const SIZE_GB_MAX = 1_048_576;
const SIZE_COUNT_MAX = 64;
const ZIPF_MAX = 10;
const SEED_MAX = 2 ** 32 - 1;
/** Chunks of 256 tokens of an 8B model with 8 KV heads, in 16 bits. */
const SYNTHETIC_CHUNK_BYTES = 33_554_432;

export interface SimulateArguments {
  readonly policies: readonly EvictionPolicy[];
  /** null = parts of what the requests need. */
  readonly sizesBytes: readonly number[] | null;
  readonly watermarkRatio: number;
  readonly evictionRatio: number;
  /** One of the two is what to replay. */
  readonly log: LogOptions | null;
  readonly synthetic: SyntheticOptions | null;
  readonly report: ReportOptions;
}

interface RawOptions extends ReportOptions {
  readonly policies: string;
  readonly l1SizeGb?: string;
  readonly evictionTriggerWatermark: string;
  readonly evictionRatio: string;
  readonly model?: string;
  readonly maxLookups?: string;
  readonly chunkBytes?: string;
  readonly requests: string;
  readonly tenants: string;
  readonly prefixes: string;
  readonly prefixChunks: string;
  readonly suffixChunks: string;
  readonly zipf: string;
  readonly scanShare: string;
  readonly chunkSize: string;
  readonly seed: string;
}

const OF_LOGS = ['model', 'maxLookups'] as const;
const OF_SYNTHETIC = [
  ...(['requests', 'tenants', 'prefixes', 'prefixChunks', 'suffixChunks', 'zipf'] as const),
  ...(['scanShare', 'chunkSize', 'seed'] as const),
];

const toFlag = (name: string) => `--${name.replace(/[A-Z]/g, (c) => `-${c.toLowerCase()}`)}`;

function simulateCommand(): Command {
  const all = EVICTION_POLICIES.filter((policy) => policy !== 'noop');
  return clientCommand('simulate', 'Hit rates by eviction policy and L1 size, before you buy.')
    .argument('[logs...]', 'lookup-hash logs: files or folders; none = made-up requests')
    .option('--policies <list>', `of ${EVICTION_POLICIES.join(', ')}`, all.join(','))
    .option('--l1-size-gb <list>', 'sizes of L1 (default: 1/16, … 1 of what is looked up)')
    .option('--eviction-trigger-watermark <part>', 'as of kvd server', '0.8')
    .option('--eviction-ratio <part>', 'as of kvd server', '0.2')
    .option('--chunk-bytes <n>', 'bytes of a chunk, all ranks together (default: as logged)')
    .option('--model <name>', 'logs: lookups of this model only')
    .option('--max-lookups <n>', 'logs: no more than the first of them')
    .option('--requests <n>', 'made up: how many', '20000')
    .option('--tenants <n>', 'made up: tenants, each with prefixes of its own', '1')
    .option('--prefixes <n>', 'made up: shared prefixes of a tenant', '500')
    .option('--prefix-chunks <n>', 'made up: chunks of a shared prefix', '16')
    .option('--suffix-chunks <n>', 'made up: chunks that only one request has', '4')
    .option('--zipf <exponent>', 'made up: how uneven prefixes are used; 0 = evenly', '0.9')
    .option('--scan-share <part>', 'made up: requests that share nothing', '0.3')
    .option('--chunk-size <tokens>', 'made up: tokens of a chunk', '256')
    .addOption(new Option('--seed <n>', 'made up: equal seeds, equal requests').default('1'));
}

/** Null = help was asked for and printed. */
export function parseSimulateArguments(argv: readonly string[]): SimulateArguments | null {
  const command = simulateCommand();
  const parsed = parseArguments<RawOptions>(command, argv);
  if (!parsed) return null;
  const { options, args } = parsed;
  const reader = new NumberReader();
  const { problems } = reader;
  const isLog = args.length > 0;
  for (const name of isLog ? OF_SYNTHETIC : OF_LOGS) {
    if (command.getOptionValueSource(name) === 'cli') {
      problems.push(`${toFlag(name)}: ${isLog ? 'not with logs' : 'only with logs'}`);
    }
  }
  const result = {
    policies: readPolicies(options.policies, problems),
    sizesBytes: readSizes(options.l1SizeGb, reader),
    watermarkRatio: reader.ratio('--eviction-trigger-watermark', options.evictionTriggerWatermark),
    evictionRatio: reader.ratio('--eviction-ratio', options.evictionRatio),
    log: isLog ? readLogOptions(args, options, reader) : null,
    synthetic: isLog ? null : readSynthetic(options, reader),
    report: options,
  };
  if (problems.length > 0) {
    const lines = problems.map((problem) => `kvd simulate: error: ${problem}`);
    throw new CommandError(lines.join('\n'), EXIT_CODE_USAGE);
  }
  return result;
}

function readPolicies(text: string, problems: string[]): EvictionPolicy[] {
  const names = [...new Set(text.split(',').map((name) => name.trim()))];
  const known = names.flatMap((name) => EVICTION_POLICIES.filter((policy) => policy === name));
  if (known.length < names.length) {
    problems.push(`--policies: expected some of ${EVICTION_POLICIES.join(', ')}, got '${text}'`);
  }
  return known;
}

function readSizes(text: string | undefined, reader: NumberReader): number[] | null {
  if (text === undefined) return null;
  const flag = '--l1-size-gb';
  const parts = text.split(',');
  if (parts.length > SIZE_COUNT_MAX) {
    reader.problems.push(`${flag}: expected at most ${SIZE_COUNT_MAX} sizes`);
    return null;
  }
  const sizes = parts.map((part) => reader.number(flag, part, 1e-6, SIZE_GB_MAX) * GIB);
  return sizes.sort((a, b) => a - b);
}

function readChunkBytes(text: string | undefined, reader: NumberReader): number | null {
  if (text === undefined) return null;
  return reader.integer('--chunk-bytes', text, 1, CHUNK_BYTES_MAX);
}

function readLogOptions(
  paths: readonly string[],
  options: RawOptions,
  reader: NumberReader,
): LogOptions {
  const { model, maxLookups } = options;
  return {
    paths,
    modelName: model ?? null,
    lookupCountMax:
      maxLookups === undefined
        ? Number.POSITIVE_INFINITY
        : reader.integer('--max-lookups', maxLookups, 1),
    chunkSizeBytes: readChunkBytes(options.chunkBytes, reader),
  };
}

function readSynthetic(options: RawOptions, reader: NumberReader): SyntheticOptions {
  const synthetic = {
    requestCount: reader.integer('--requests', options.requests, 1, COUNT_MAX),
    tenantCount: reader.integer('--tenants', options.tenants, 1, TENANTS_MAX),
    prefixCount: reader.integer('--prefixes', options.prefixes, 1, COUNT_MAX),
    prefixChunks: reader.integer('--prefix-chunks', options.prefixChunks, 0, CHUNKS_MAX),
    suffixChunks: reader.integer('--suffix-chunks', options.suffixChunks, 0, CHUNKS_MAX),
    zipfExponent: reader.number('--zipf', options.zipf, 0, ZIPF_MAX),
    scanRatio: reader.number('--scan-share', options.scanShare, 0, 1),
    chunkSizeBytes: readChunkBytes(options.chunkBytes, reader) ?? SYNTHETIC_CHUNK_BYTES,
    chunkSizeTokens: reader.integer('--chunk-size', options.chunkSize, 1, COUNT_MAX),
    seed: reader.integer('--seed', options.seed, 0, SEED_MAX),
  };
  const { prefixChunks, suffixChunks, requestCount, tenantCount, prefixCount } = synthetic;
  const promptChunks = prefixChunks + suffixChunks;
  if (promptChunks === 0) reader.problems.push('--prefix-chunks, --suffix-chunks: both are 0');
  const sharedCount = tenantCount * prefixCount * prefixChunks;
  if (requestCount * promptChunks + sharedCount > REFERENCE_COUNT_MAX) {
    reader.problems.push(`--requests: more than ${REFERENCE_COUNT_MAX} chunks in all requests`);
  }
  return synthetic;
}
