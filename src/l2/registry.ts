/**
 * The kinds of L2 stores that this build has, by the name in `--l2-adapter '{"type": …}'`.
 * A kind is a module in `adapters/` that exports its `L2BackendType` as `backendType`.
 */
import { assert } from '../assert.ts';
import { importAdapterModules } from './adapter-files.ts';
import type { L2BackendType } from './backend.ts';

export type BackendTypes = ReadonlyMap<string, L2BackendType>;

/** In the order of their names. */
export async function loadBackendTypes(): Promise<BackendTypes> {
  const modules = await importAdapterModules();
  const types = new Map<string, L2BackendType>();
  for (const module of modules) {
    const { backendType } = module as { backendType?: L2BackendType };
    assert(backendType, 'a module of src/l2/adapters exports no backendType');
    assert(!types.has(backendType.typeName), `two L2 types are named ${backendType.typeName}`);
    types.set(backendType.typeName, backendType);
  }
  return new Map([...types].sort(([a], [b]) => (a < b ? -1 : 1)));
}
