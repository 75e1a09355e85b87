/** What the JSON objects of `--l2-adapter` say, checked. */
import { type AdapterSpec, readAdapterSpec, type SpecReader } from '../l2/adapter-spec.ts';
import { type BackendTypes, loadBackendTypes } from '../l2/registry.ts';
import { suggestName } from './command-line.ts';
import type { JsonObject } from './flag-spec.ts';
import { type Environment, readEnvironment } from './sources.ts';

export interface L2AdapterOptions {
  readonly types: BackendTypes;
  readonly environment: Environment;
  readonly warn: (message: string) => void;
}

/** For adapters that come later, by HTTP. */
export function specReader({ types, environment, warn }: L2AdapterOptions): SpecReader {
  return { types, env: environment, suggestName, warn };
}

/** In the order of the flags. Throws `ERR_CONFIG` naming the adapter by its place and type. */
export function readL2Adapters(
  given: readonly JsonObject[],
  reader: SpecReader,
): readonly AdapterSpec[] {
  return given.map((json, index) => readAdapterSpec(json, `--l2-adapter #${index + 1}`, reader));
}

/** Looks for the types only when an adapter is wanted. */
export async function loadSpecReader(warn: (message: string) => void): Promise<SpecReader> {
  return specReader({ types: await loadBackendTypes(), environment: readEnvironment(), warn });
}

/** Everything that can be said about the adapters before they are opened. */
export async function checkL2Adapters(
  given: readonly JsonObject[],
): Promise<{ readonly problems: readonly string[]; readonly warnings: readonly string[] }> {
  const problems: string[] = [];
  const warnings: string[] = [];
  if (given.length === 0) return { problems, warnings };
  const reader = await loadSpecReader((message) => warnings.push(message));
  for (const [index, json] of given.entries()) {
    try {
      readAdapterSpec(json, `--l2-adapter #${index + 1}`, reader);
    } catch (error) {
      problems.push((error as Error).message);
    }
  }
  return { problems, warnings };
}
