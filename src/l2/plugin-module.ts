/**
 * Users' own L2 stores: a class in a JavaScript module or in a Node-API addon, with the methods of
 * `L2Backend`.
 *
 *   export class MyStore {
 *     constructor(params, { log, clock, alignBytes }) {}
 *     async open() {}                                        // optional
 *     async store(objects, signal) {}   async load(objects, signal) {}
 *     async lookup(keys, signal) {}     async delete(keys, signal) {}
 *     status() {}                       async close() {}
 *   }
 *
 * Modules are loaded with `require`, which takes ES modules as well and works in all three forms of
 * kvd; only a module that awaits at its top level cannot be loaded so. What the peer's
 * configuration may name and nobody can load here is refused with what to do instead: Python
 * modules, and libraries without Node-API.
 */
import { createRequire } from 'node:module';
import path from 'node:path';
import { KvdError } from '../errors.ts';
import { GIB } from '../units.ts';
import type { L2Backend, L2BackendContext } from './backend.ts';
import type { ConfigKeys, ConfigValues } from './config-keys.ts';

const METHODS = ['store', 'lookup', 'load', 'delete', 'status', 'close'] as const;

export const PLUGIN_KEYS = {
  module_path: {
    kind: 'text',
    about: 'File, or name of an installed package, seen from the working directory.',
  },
  class_name: { kind: 'text', about: 'Exported class with the methods of an L2 store.' },
  adapter_params: {
    kind: 'object',
    fallback: {},
    about: 'Handed to its constructor.',
  },
  max_capacity_gb: {
    kind: 'number',
    fallback: 0,
    min: 0,
    about: 'GiB that the store may hold; 0 = unbounded.',
  },
} as const satisfies ConfigKeys;

type PluginClass = new (params: unknown, context: L2BackendContext) => L2Backend;

export function pluginCapacityBytes(values: ConfigValues): number {
  return Math.floor((values['max_capacity_gb'] as number) * GIB);
}

/** Rejects with `ERR_CONFIG`. */
export async function openPlugin(
  typeName: string,
  values: ConfigValues,
  context: L2BackendContext,
): Promise<L2Backend> {
  const modulePath = values['module_path'] as string;
  const className = values['class_name'] as string;
  const Plugin = findClass(
    loadModule(modulePath, typeName),
    className,
    `${typeName}: ${modulePath}`,
  );
  const plugin = new Plugin(values['adapter_params'], context);
  const missing = METHODS.filter((name) => typeof plugin[name] !== 'function');
  if (missing.length > 0) {
    const text = `class ${className} of ${modulePath} lacks ${missing.join(', ')}`;
    throw new KvdError('ERR_CONFIG', `${typeName}: ${text} (docs/extending.md)`);
  }
  await (plugin as { open?: () => Promise<void> }).open?.();
  return plugin;
}

function loadModule(modulePath: string, typeName: string): Readonly<Record<string, unknown>> {
  const fail = (text: string, cause?: unknown): never => {
    throw new KvdError('ERR_CONFIG', `${typeName}: module_path ${modulePath} ${text}`, { cause });
  };
  const languages = 'plugins are JavaScript modules or Node-API addons (.node) here';
  if (modulePath.endsWith('.py')) fail(`is Python; ${languages}`);
  if (/\.so(\.\d+)*$/.test(modulePath)) {
    fail(`is a library without Node-API; ${languages}: wrap it in an addon`);
  }
  const folder = process.cwd();
  const isFile = path.isAbsolute(modulePath) || modulePath.startsWith('.');
  try {
    const load = createRequire(path.join(folder, 'kvd'));
    return load(isFile ? path.resolve(folder, modulePath) : modulePath);
  } catch (error) {
    const { code, message } = error as NodeJS.ErrnoException;
    if (code === 'MODULE_NOT_FOUND')
      return fail(`is not found from ${folder}; ${languages}`, error);
    if (code === 'ERR_REQUIRE_ASYNC_MODULE') {
      return fail('awaits at its top level; do that in open() of the class', error);
    }
    return fail(`cannot be loaded: ${message}`, error);
  }
}

function findClass(
  exported: Readonly<Record<string, unknown>>,
  className: string,
  where: string,
): PluginClass {
  const found = Object.hasOwn(exported, className) ? exported[className] : undefined;
  if (typeof found === 'function') return found as PluginClass;
  const names = Object.keys(exported).filter((name) => typeof exported[name] === 'function');
  const known = names.length > 0 ? names.join(', ') : 'none';
  throw new KvdError('ERR_CONFIG', `${where} exports no class ${className}; classes: ${known}`);
}
