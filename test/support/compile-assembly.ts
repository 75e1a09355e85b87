/** Compiles a file of assembly/test as build.mjs compiles the core, and starts an instance. */
import { execFileSync } from 'node:child_process';
import { mkdtempSync, readFileSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import path from 'node:path';
import { readText } from '../../src/core/instance.ts';

const ROOT = path.join(import.meta.dirname, '..', '..');

// As in src/core/instance.ts: the compiler's library has no WebAssembly without the DOM.
declare const WebAssembly: {
  Module: new (bytes: Uint8Array) => object;
  Instance: new (module: object, imports: object) => { readonly exports: unknown };
};

export function compileAssembly(file: string, target = 'release'): Uint8Array {
  const folder = mkdtempSync(path.join(tmpdir(), 'kvd-asc-'));
  try {
    const output = path.join(folder, 'module.wasm');
    const asc = path.join(ROOT, 'node_modules', 'assemblyscript', 'bin', 'asc.js');
    const options = ['--config', 'asconfig.json', '--target', target, '--outFile', output];
    execFileSync(process.execPath, [asc, file, ...options], { cwd: ROOT });
    return readFileSync(output);
  } finally {
    rmSync(folder, { recursive: true });
  }
}

interface AssemblyExports {
  readonly memory: { readonly buffer: ArrayBuffer };
}

/** A fresh instance of a compiled module; a failed assertion throws with its message and place. */
export function startCompiled<T extends AssemblyExports>(wasm: Uint8Array): T {
  const abort = (message: number, file: number, line: number) => {
    const { buffer } = exports.memory;
    const where = `${readText(buffer, file)}:${line}`;
    throw new Error(`assertion failed: ${readText(buffer, message)} (${where})`);
  };
  const module = new WebAssembly.Module(wasm);
  const exports = new WebAssembly.Instance(module, { env: { abort } }).exports as T;
  return exports;
}

/** `file` is relative to the root of the repository; `T` are its exports. */
export function startAssembly<T extends AssemblyExports>(file: string): T {
  return startCompiled<T>(compileAssembly(file));
}
