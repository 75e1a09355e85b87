/**
 * What no single row of the flag table can check: required flags, features that this build lacks,
 * flags without a meaning, and settings that contradict each other. Collects; never stops early.
 */
import { parseLogLevels } from '../observability/log.ts';
import { formatBytes, GIB } from '../units.ts';
import type { Problem } from './command-line.ts';
import { FEATURES, type FeatureName, type FlagSpec, type SettingValue } from './flag-spec.ts';
import type { Setting, Settings } from './settings.ts';

export interface Findings {
  readonly problems: Problem[];
  readonly warnings: string[];
}

const isEqual = (a: SettingValue, b: SettingValue) => JSON.stringify(a) === JSON.stringify(b);

function lackingFeature(feature: FeatureName): string | null {
  const { isBuilt, what } = FEATURES[feature];
  return isBuilt ? null : what;
}

function checkFlag(flag: FlagSpec, setting: Setting, findings: Findings): void {
  const { value, source, origin } = setting;
  if (source === 'default') return;
  const choiceFeature = typeof value === 'string' ? flag.choiceNeeds?.[value] : undefined;
  const lackedByChoice = choiceFeature ? lackingFeature(choiceFeature) : null;
  if (lackedByChoice) {
    const reason = `'${String(value)}' needs ${lackedByChoice}, which this build does not have`;
    findings.problems.push({ flag: flag.name, reason });
  }
  const isNeutral = [flag.default, ...(flag.neutral ?? [])].some((v) => isEqual(v, value));
  if (isNeutral) return;
  const lacked = flag.needs ? lackingFeature(flag.needs) : null;
  if (lacked && isDetail(flag) && source === 'environment') {
    findings.warnings.push(`${origin} has no effect: this build does not have ${lacked}`);
  } else if (lacked) {
    const reason = `needs ${lacked}, which this build does not have; leave the flag out`;
    findings.problems.push({ flag: flag.name, reason });
  }
  if (flag.inert) findings.warnings.push(`${flag.name} has no effect: ${flag.inert}`);
}

/**
 * The reference's own variables that only tune a feature are set by charts whether or not the
 * feature is on (`LMCACHE_COORDINATOR_ADVERTISE_IP`), so they must not stop the start.
 */
function isDetail(flag: FlagSpec): boolean {
  return (flag.environment?.length ?? 0) > 0 && !ENABLING.has(flag.name);
}

const ENABLING = new Set<string>(['--coordinator-url', '--coordinator-event-reporting']);

const EXAMPLES: Readonly<Record<string, string>> = {
  '--l1-size-gb': '--l1-size-gb 20',
  '--eviction-policy': '--eviction-policy LRU',
};

/** The core counts places in aligned units of 32 bits. */
const ALIGNED_UNITS_MAX = 2 ** 32 - 1;

function checkL1(settings: Settings, problems: Problem[]): void {
  const alignBytes = settings.number('--l1-align-bytes');
  if ((alignBytes & (alignBytes - 1)) !== 0) {
    const reason = `must be a power of two, got ${alignBytes}`;
    problems.push({ flag: '--l1-align-bytes', reason });
  }
  const sizeBytes = Math.trunc((settings.numberOrNull('--l1-size-gb') ?? 1) * GIB);
  if (sizeBytes < alignBytes) {
    const size = formatBytes(sizeBytes);
    const reason = `${size} is less than one aligned unit of ${alignBytes} bytes`;
    problems.push({ flag: '--l1-size-gb', reason });
  }
  if (sizeBytes / alignBytes > ALIGNED_UNITS_MAX) {
    const reason = `too small for ${formatBytes(sizeBytes)}: at most 2^32 - 1 units can be counted`;
    problems.push({ flag: '--l1-align-bytes', reason });
  }
  const hasShm =
    settings.textOrNull('--shm-name') !== '' &&
    settings.text('--supported-transfer-mode') !== 'lmcache_driven';
  if (settings.isOn('--l1-use-hugepages') && hasShm) {
    const reason = 'huge pages cannot be shared memory; add --shm-name ""';
    problems.push({ flag: '--l1-use-hugepages', reason });
  }
}

function checkWorkers(settings: Settings, problems: Problem[]): void {
  const reapSeconds = settings.number('--worker-reap-timeout-seconds');
  if (reapSeconds !== 0 && reapSeconds < 30) {
    const reason = `must be 0 (never) or at least 30 seconds, got ${reapSeconds}`;
    problems.push({ flag: '--worker-reap-timeout-seconds', reason });
  }
  const graceSeconds = settings.number('--worker-registration-grace-seconds');
  if (graceSeconds < reapSeconds) {
    const least = `the reap timeout (${reapSeconds} seconds)`;
    const reason = `must be at least ${least}, got ${graceSeconds}`;
    problems.push({ flag: '--worker-registration-grace-seconds', reason });
  }
}

const HOST = /^[\w.\-:%[\]*]+$/;

/** Port 0 and `*` let the system choose. */
function isEndpoint(url: string, isPath: RegExp, isAddress: RegExp): boolean {
  if (isPath.test(url)) return true;
  const port = isAddress.exec(url)?.[1];
  return port === '*' || Number(port ?? Number.NaN) <= 65535;
}

const isZmqEndpoint = (url: string): boolean =>
  isEndpoint(url, /^ipc:\/\/.+$/, /^tcp:\/\/.+:(\d{1,5}|\*)$/);
const isGrpcEndpoint = (url: string): boolean =>
  isEndpoint(url, /^grpc\+unix:\/\/\/.+$/, /^grpc:\/\/.+:(\d{1,5}|\*)$/);

function checkAddresses(settings: Settings, problems: Problem[]): void {
  const expectUrl = (flag: string, url: string) => {
    if (isZmqEndpoint(url) || isGrpcEndpoint(url)) return;
    const kinds = 'tcp://HOST:PORT, ipc://PATH, grpc://HOST:PORT or grpc+unix:///PATH';
    problems.push({ flag, reason: `expected ${kinds}, got '${url}'` });
  };
  const host = settings.text('--host');
  if (host.includes('://')) expectUrl('--host', host);
  else if (!HOST.test(host)) {
    problems.push({ flag: '--host', reason: `expected an address or a name, got '${host}'` });
  }
  for (const url of settings.texts('--endpoint')) expectUrl('--endpoint', url);
  for (const flag of ['--kv-events-endpoint', '--kv-events-replay-endpoint']) {
    const url = settings.textOrNull(flag);
    if (!url || isZmqEndpoint(url)) continue;
    problems.push({ flag, reason: `expected tcp://HOST:PORT or ipc://PATH, got '${url}'` });
  }
  for (const flag of ['--http-host', '--prometheus-host']) {
    const value = settings.textOrNull(flag);
    if (value !== null && !HOST.test(value)) {
      problems.push({ flag, reason: `expected an address or a name, got '${value}'` });
    }
  }
}

function checkNames(settings: Settings, problems: Problem[]): void {
  const shmName = settings.textOrNull('--shm-name');
  // Client and server build a path from it: one plain component, and room for the prefix.
  if (shmName !== null && shmName !== '' && !/^\/?[\w.-]{1,200}$/.test(shmName)) {
    const reason = `expected letters, digits, '.', '_' and '-', got '${shmName}'`;
    problems.push({ flag: '--shm-name', reason });
  }
}

const OTLP_ENDPOINT = /^(?:https?:\/\/)?(?:\[[\da-fA-F:.]+\]|[\w.-]+)(?::\d{1,5})?(?:\/.*)?$/;

function checkLogs(settings: Settings, problems: Problem[]): void {
  const rooms = parseLogLevels(settings.text('--log-levels'));
  if ('reason' in rooms) problems.push({ flag: '--log-levels', reason: rooms.reason });
  if (settings.isOn('--enable-extra-logging') && settings.isOn('--disable-observability')) {
    const reason = 'counts what --disable-observability does not observe; leave one of them out';
    problems.push({ flag: '--enable-extra-logging', reason });
  }
}

function checkTelemetry(settings: Settings, problems: Problem[]): void {
  const endpoint = settings.textOrNull('--otlp-endpoint') || null;
  if (endpoint !== null && !OTLP_ENDPOINT.test(endpoint)) {
    const reason = `expected http://HOST:PORT, https://HOST:PORT or HOST:PORT, got '${endpoint}'`;
    problems.push({ flag: '--otlp-endpoint', reason });
  }
  if (settings.isOn('--enable-tracing') && endpoint === null) {
    const reason = 'needs a collector; add --otlp-endpoint http://HOST:4317';
    problems.push({ flag: '--enable-tracing', reason });
  }
}

function warnAboutTelemetry(settings: Settings, warnings: string[]): void {
  const warn = (flag: string, without: string) => {
    if (settings.isGiven(flag)) warnings.push(`${flag} has no effect without ${without}`);
  };
  if (!settings.textOrNull('--otlp-endpoint')) warn('--otlp-protocol', '--otlp-endpoint');
  if (!settings.isOn('--enable-tracing')) warn('--trace-ids-from-requests', '--enable-tracing');
  if (settings.textOrNull('--trace-level') !== null) return;
  for (const flag of ['--trace-output', '--trace-max-size-bytes']) warn(flag, '--trace-level');
}

function warnAboutEffects(settings: Settings, warnings: string[]): void {
  if (settings.text('--hash-algorithm') === 'builtin') {
    warnings.push(
      '--hash-algorithm builtin is not collision resistant: do not use it with tenants that ' +
        'do not trust each other',
    );
  }
  const canEvict = settings.textOrNull('--eviction-policy') !== 'noop';
  for (const flag of ['--eviction-trigger-watermark', '--eviction-ratio']) {
    if (!canEvict && settings.isGiven(flag)) {
      warnings.push(`${flag} has no effect: --eviction-policy noop never evicts`);
    }
  }
  if (settings.isGiven('--prometheus-host') && !settings.isGiven('--prometheus-port')) {
    warnings.push('--prometheus-host has no effect without --prometheus-port');
  }
  if (settings.text('--supported-transfer-mode') === 'lmcache_driven') {
    for (const flag of ['--shm-name', '--shm-mode']) {
      if (!settings.isGiven(flag) || settings.get(flag).value === '') continue;
      warnings.push(
        `${flag} has no effect: with --supported-transfer-mode lmcache_driven no engine maps L1`,
      );
    }
  }
  if (!settings.textOrNull('--kv-events-endpoint')) {
    for (const flag of ['--kv-events-replay-endpoint', '--kv-events-topic']) {
      if (!settings.isGiven(flag)) continue;
      warnings.push(`${flag} has no effect without --kv-events-endpoint`);
    }
  }
  const isIpcHost = settings.text('--host').includes('://');
  if (isIpcHost && settings.isGiven('--port')) {
    warnings.push('--port has no effect: --host is a whole URL');
  }
}

export function checkSettings(flags: readonly FlagSpec[], settings: Settings): Findings {
  const findings: Findings = { problems: [], warnings: [] };
  for (const flag of flags) {
    const setting = settings.get(flag.name);
    checkFlag(flag, setting, findings);
    if (flag.isRequired && setting.source === 'default') {
      const example = EXAMPLES[flag.name] ?? flag.name;
      findings.problems.push({ flag: flag.name, reason: `required, for example ${example}` });
    }
  }
  checkL1(settings, findings.problems);
  checkWorkers(settings, findings.problems);
  checkAddresses(settings, findings.problems);
  checkNames(settings, findings.problems);
  checkLogs(settings, findings.problems);
  checkTelemetry(settings, findings.problems);
  warnAboutEffects(settings, findings.warnings);
  warnAboutTelemetry(settings, findings.warnings);
  return findings;
}
