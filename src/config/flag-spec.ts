/**
 * The shape of a row of `flags.ts`, and what this build of kvd has.
 *
 * kvd accepts every flag name that a user of the reference may type. What a row may be:
 *
 *   works          nothing said: the value reaches `ServerConfig`.
 *   needs: F       asks for a feature. While `FEATURES[F].isBuilt` is false, a value other than the
 *                  default (or one of `neutral`) stops the start with the reason. Being ignored
 *                  would be worse: the user would believe to have an L2 tier.
 *   inert: why     has no meaning here and never will; other than default it is warned about once.
 */

export type FlagType =
  | 'int'
  | 'float'
  | 'octal'
  | 'text'
  | 'choice'
  /** Present or absent, no value. */
  | 'switch'
  /** `--x` / `--no-x`. */
  | 'pair'
  /** All following words up to the next flag; the last list wins. */
  | 'list'
  /** Text, repeatable, in order. */
  | 'texts'
  /** One JSON object. */
  | 'object'
  /** JSON objects, repeatable, in order. */
  | 'objects';

export type SettingValue =
  | null
  | boolean
  | number
  | string
  | readonly string[]
  | JsonObject
  | readonly JsonObject[];

export type JsonObject = { readonly [key: string]: unknown };

/** What a flag may ask for that not every build has. Flip `isBuilt` when the feature arrives. */
export const FEATURES = {
  adapters: { isBuilt: true, what: 'L2 adapters' },
  engineDriven: { isBuilt: true, what: 'engine-driven transfers' },
  blend: { isBuilt: false, what: 'CacheBlend' },
  p2p: { isBuilt: false, what: 'peer-to-peer transfers' },
  coordinator: { isBuilt: false, what: 'coordinator membership' },
  gds: { isBuilt: false, what: 'GPU-direct storage' },
  devdax: { isBuilt: false, what: 'Device-DAX memory' },
  otlp: { isBuilt: true, what: 'OTLP export and tracing' },
  traceFile: { isBuilt: true, what: 'trace recording' },
  eventTrace: { isBuilt: false, what: 'recording of cache events for a coordinator' },
  lifecycleMetrics: { isBuilt: true, what: 'sampled and per-tenant metrics' },
  quotas: { isBuilt: true, what: 'quotas' },
  plugins: { isBuilt: false, what: 'runtime plugins' },
  objectGroups: { isBuilt: true, what: 'separate object groups' },
  modules: { isBuilt: false, what: 'loadable server modules' },
  grpc: { isBuilt: true, what: 'the gRPC transport' },
  kvEvents: { isBuilt: true, what: 'the KV event log' },
  newDialects: { isBuilt: false, what: 'protocol dialects B and C' },
  extraLogging: { isBuilt: true, what: 'periodic state logging' },
} as const satisfies Record<string, { isBuilt: boolean; what: string }>;

export type FeatureName = keyof typeof FEATURES;

/** Sections of `--help` and docs/operating.md, in this order. */
export const SECTIONS = [
  'Server',
  'L1 memory',
  'Eviction',
  'L2 storage',
  'HTTP',
  'Observability',
  'Coordinator',
  'Peer to peer',
  'Plugins and modules',
] as const;

export interface FlagSpec {
  readonly name: `--${string}`;
  readonly section: (typeof SECTIONS)[number];
  readonly type: FlagType;
  readonly default: SettingValue;
  readonly help: string;
  /** First release of the reference that has it; `kvd` = our own. */
  readonly since: '0.5.0' | '0.5.3' | '0.5.6' | 'kvd';
  readonly unit?: string;
  readonly min?: number;
  readonly max?: number;
  /** `min` itself is refused: `(0, 1]`. */
  readonly isMinExclusive?: boolean;
  readonly choices?: readonly string[];
  /** Choices are accepted in any case. */
  readonly ignoresCase?: boolean;
  /** Choices that ask for a feature. */
  readonly choiceNeeds?: Readonly<Record<string, FeatureName>>;
  readonly isRequired?: boolean;
  /** Other spellings: renamed flags of deployed charts. Not shown in `--help`. */
  readonly aliases?: readonly `--${string}`[];
  /** Environment names of the reference, beside our `KVD_<FLAG>`. */
  readonly environment?: readonly string[];
  /** A bad text in one of those means the default, with a warning, as the reference does it. */
  readonly isEnvironmentLenient?: boolean;
  readonly needs?: FeatureName;
  /** Values beside the default that mean "off" or "as it is" and so need no feature. */
  readonly neutral?: readonly SettingValue[];
  readonly inert?: string;
  /** Command line only: not from the environment or the file. */
  readonly isCommandLineOnly?: boolean;
}
