/**
 * Bytes that each tenant (cache salt) may hold in L2, all adapters together (spec storage 10.8).
 *
 *   limit of a salt = its quota, else the default limit, else none: the tenant is exempt
 *
 * The table survives a restart in `--quota-file`, which is read before anything can be evicted:
 * a restarted server must not take tenants without a limit for tenants with limit 0 (18.20). A
 * change is answered when it is on the disk; when it cannot be written, nothing has changed.
 *
 *   {"version": 1, "quotas": [{"cache_salt": "…", "limit_bytes": 1073741824}, …]}
 */
import { randomBytes } from 'node:crypto';
import fs from 'node:fs/promises';
import path from 'node:path';
import { KvdError } from '../../errors.ts';

export interface Quota {
  readonly cacheSalt: string;
  readonly limitBytes: number;
}

export interface QuotaTableOptions {
  /** Null: forgotten at the end of the process. */
  readonly filePath: string | null;
  /** For salts without a quota; null = exempt. 0 is what the reference does. */
  readonly defaultLimitBytes: number | null;
}

const VERSION = 1;
/** As many tenants as the core can tell apart. */
const QUOTA_COUNT_MAX = 65_536;

export class QuotaTable {
  readonly defaultLimitBytes: number | null;
  readonly #filePath: string | null;
  #limits: ReadonlyMap<string, number>;
  #lastChange: Promise<unknown> = Promise.resolve();
  #listener: (() => void) | null = null;

  private constructor(options: QuotaTableOptions, limits: ReadonlyMap<string, number>) {
    this.defaultLimitBytes = options.defaultLimitBytes;
    this.#filePath = options.filePath;
    this.#limits = limits;
  }

  /** Throws `ERR_CONFIG` for a file that is damaged, or that cannot be written. */
  static async open(options: QuotaTableOptions): Promise<QuotaTable> {
    const { filePath } = options;
    if (filePath === null) return new QuotaTable(options, new Map());
    const known = await readQuotaFile(filePath);
    if (known) return new QuotaTable(options, known);
    try {
      await writeQuotaFile(filePath, new Map());
    } catch (error) {
      const reason = (error as Error).message;
      const mend = 'give a path in a folder that the server may write to';
      throw new KvdError('ERR_CONFIG', `--quota-file: ${reason}; ${mend}`, { cause: error });
    }
    return new QuotaTable(options, new Map());
  }

  /** Runs `listener` after every change. */
  onChange(listener: () => void): void {
    this.#listener = listener;
  }

  /** The salt's own quota. */
  quotaOf(cacheSalt: string): number | null {
    return this.#limits.get(cacheSalt) ?? null;
  }

  /** Null: exempt. */
  limitBytesOf(cacheSalt: string): number | null {
    return this.#limits.get(cacheSalt) ?? this.defaultLimitBytes;
  }

  /** In the order in which they were first set. */
  list(): Quota[] {
    return [...this.#limits].map(([cacheSalt, limitBytes]) => ({ cacheSalt, limitBytes }));
  }

  set(cacheSalt: string, limitBytes: number): Promise<void> {
    return this.#change((limits) => {
      if (!limits.has(cacheSalt) && limits.size >= QUOTA_COUNT_MAX) {
        throw new KvdError('ERR_OVERLOADED', `expected at most ${QUOTA_COUNT_MAX} quotas`);
      }
      return new Map(limits).set(cacheSalt, limitBytes);
    });
  }

  /** False when it had none. */
  async delete(cacheSalt: string): Promise<boolean> {
    let isKnown = false;
    await this.#change((limits) => {
      const rest = new Map(limits);
      isKnown = rest.delete(cacheSalt);
      return rest;
    });
    return isKnown;
  }

  /** One after the other, so that the file never falls behind the table. */
  #change(apply: (limits: ReadonlyMap<string, number>) => Map<string, number>): Promise<void> {
    const change = this.#lastChange.then(async () => {
      const limits = apply(this.#limits);
      if (this.#filePath !== null) await this.#write(this.#filePath, limits);
      this.#limits = limits;
      this.#listener?.();
    });
    // The next change begins behind this one, also when it failed; its caller sees the error.
    this.#lastChange = change.catch(() => {});
    return change;
  }

  async #write(filePath: string, limits: ReadonlyMap<string, number>): Promise<void> {
    try {
      await writeQuotaFile(filePath, limits);
    } catch (error) {
      const reason = (error as Error).message;
      const text = `the quota is not changed: its file cannot be written: ${reason}`;
      throw new KvdError('ERR_QUOTA_FILE', text, { cause: error });
    }
  }
}

/** Null: there is no such file. */
async function readQuotaFile(filePath: string): Promise<Map<string, number> | null> {
  let text: string;
  try {
    text = await fs.readFile(filePath, 'utf8');
  } catch (error) {
    if ((error as NodeJS.ErrnoException).code === 'ENOENT') return null;
    throw damaged(filePath, (error as Error).message, error);
  }
  let content: unknown;
  try {
    content = JSON.parse(text);
  } catch (error) {
    throw damaged(filePath, (error as Error).message, error);
  }
  const { version, quotas } = (content ?? {}) as Record<string, unknown>;
  if (version !== VERSION) {
    throw damaged(filePath, `expected version ${VERSION}, got ${JSON.stringify(version)}`);
  }
  if (!Array.isArray(quotas)) throw damaged(filePath, 'expected a list "quotas"');
  return new Map(quotas.map((entry, index) => readQuota(filePath, entry, index)));
}

function readQuota(filePath: string, entry: unknown, index: number): [string, number] {
  const { cache_salt: cacheSalt, limit_bytes: limitBytes } = (entry ?? {}) as Record<
    string,
    unknown
  >;
  const isLimit = Number.isSafeInteger(limitBytes) && (limitBytes as number) >= 0;
  if (typeof cacheSalt === 'string' && isLimit) return [cacheSalt, limitBytes as number];
  const expected = 'a text "cache_salt" and a whole number "limit_bytes" of at least 0';
  throw damaged(filePath, `quotas[${index}]: expected ${expected}`);
}

/** A limit that cannot be read must not become "no limit" without anybody noticing. */
function damaged(filePath: string, reason: string, cause?: unknown): KvdError {
  const mend = 'mend the file, or remove it to start without quotas';
  return new KvdError('ERR_CONFIG', `--quota-file ${filePath}: ${reason}; ${mend}`, { cause });
}

/** The old file is there until the new one is whole. */
async function writeQuotaFile(
  filePath: string,
  limits: ReadonlyMap<string, number>,
): Promise<void> {
  const quotas = [...limits].map(([cacheSalt, limitBytes]) => ({
    cache_salt: cacheSalt,
    limit_bytes: limitBytes,
  }));
  const temporaryPath = `${filePath}.${process.pid}.${randomBytes(4).toString('hex')}.tmp`;
  const text = `${JSON.stringify({ version: VERSION, quotas }, null, 1)}\n`;
  try {
    await fs.writeFile(temporaryPath, text, { mode: 0o600, flush: true });
    await fs.rename(temporaryPath, filePath);
    await syncFolder(path.dirname(filePath));
  } catch (error) {
    await fs.rm(temporaryPath, { force: true });
    throw error;
  }
}

/** Without it a power loss could bring the old file back. */
async function syncFolder(folder: string): Promise<void> {
  const handle = await fs.open(folder);
  try {
    await handle.sync();
  } finally {
    await handle.close();
  }
}
