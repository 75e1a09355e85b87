/**
 * Reads lookup-hash logs, of kvd or of the reference, into a workload (observability 7.2).
 *
 * Lines are read one after the other and sorted by time at the end. The same hash under another
 * model or tenant is another chunk. What is no lookup is counted and left out: a server that was
 * killed leaves half a line.
 */
import { createReadStream, readdirSync, statSync } from 'node:fs';
import path from 'node:path';
import { createInterface } from 'node:readline';
import { type LoggedLookup, parseLookupLine } from '../observability/logging/lookup-hash-line.ts';
import { CommandError } from './arguments.ts';
import type { SimulatedRequest, Workload } from './simulate-workload.ts';

/** Chunk numbers of all requests: 1 GiB. */
const REFERENCE_COUNT_MAX = 2 ** 28;
const FILE_NAME = /^lookup_hashes_.*\.jsonl$/;

export interface LogOptions {
  /** Files, and folders of files `lookup_hashes_*.jsonl`. */
  readonly paths: readonly string[];
  /** null = all. */
  readonly modelName: string | null;
  readonly lookupCountMax: number;
  /** null = as the log says. */
  readonly chunkSizeBytes: number | null;
}

export interface LogWorkload extends Workload {
  /** Lines that were no lookups. */
  readonly skippedLineCount: number;
}

function listFiles(paths: readonly string[]): string[] {
  return paths.flatMap((each) => {
    try {
      if (!statSync(each).isDirectory()) return [each];
      const names = readdirSync(each).filter((name) => FILE_NAME.test(name));
      return names.sort().map((name) => path.join(each, name));
    } catch (error) {
      throw new CommandError(`kvd simulate: error: ${(error as Error).message}`);
    }
  });
}

class WorkloadBuilder {
  readonly #chunkNumbers = new Map<string, number>();
  readonly #chunkSizes: number[] = [];
  readonly #chunkTokens: number[] = [];
  readonly #tenantNumbers = new Map<string, number>();
  readonly #requests: (SimulatedRequest & { readonly timestampSeconds: number })[] = [];
  #referenceCount = 0;

  get requestCount(): number {
    return this.#requests.length;
  }

  add(lookup: LoggedLookup, sizeBytes: number): void {
    const { modelName, tenant, chunkHashes, timestampSeconds } = lookup;
    this.#referenceCount += chunkHashes.length;
    if (this.#referenceCount > REFERENCE_COUNT_MAX) {
      throw new CommandError(
        `kvd simulate: error: more than ${REFERENCE_COUNT_MAX} chunks: use --max-lookups`,
      );
    }
    const chunks = Uint32Array.from(chunkHashes, (hash) => {
      const name = `${modelName}\n${tenant}\n${hash}`;
      const known = this.#chunkNumbers.get(name);
      if (known !== undefined) return known;
      this.#chunkNumbers.set(name, this.#chunkSizes.length);
      this.#chunkTokens.push(lookup.chunkSizeTokens);
      return this.#chunkSizes.push(sizeBytes) - 1;
    });
    const tenantNumber = this.#tenantNumbers.get(tenant) ?? this.#tenantNumbers.size;
    this.#tenantNumbers.set(tenant, tenantNumber);
    this.#requests.push({ tenant: tenantNumber, chunks, timestampSeconds });
  }

  build(lookupCountMax: number): Workload {
    const requests = this.#requests.sort((a, b) => a.timestampSeconds - b.timestampSeconds);
    return {
      requests: requests.slice(0, lookupCountMax),
      chunkSizesBytes: Float64Array.from(this.#chunkSizes),
      chunkTokens: Float64Array.from(this.#chunkTokens),
      tenants: [...this.#tenantNumbers.keys()],
    };
  }
}

export async function readLogs(options: LogOptions): Promise<LogWorkload> {
  const builder = new WorkloadBuilder();
  let skippedLineCount = 0;
  for (const file of listFiles(options.paths)) {
    const lines = createInterface({ input: createReadStream(file), crlfDelay: 100 });
    for await (const line of lines) {
      const lookup = parseLookupLine(line);
      if (!lookup) {
        if (line.trim() !== '') skippedLineCount += 1;
        continue;
      }
      if (options.modelName !== null && lookup.modelName !== options.modelName) continue;
      if (lookup.chunkHashes.length === 0) continue;
      const sizeBytes = options.chunkSizeBytes ?? lookup.chunkSizeBytes;
      if (sizeBytes === 0) {
        throw new CommandError(
          `kvd simulate: error: ${file}: no shapes that tell the size of a chunk: ` +
            'give --chunk-bytes',
        );
      }
      builder.add(lookup, sizeBytes);
    }
  }
  if (builder.requestCount === 0) {
    const skipped = skippedLineCount > 0 ? `, ${skippedLineCount} lines are none` : '';
    throw new CommandError(
      `kvd simulate: error: no lookups in ${options.paths.join(', ')}${skipped}`,
    );
  }
  return { ...builder.build(options.lookupCountMax), skippedLineCount };
}
