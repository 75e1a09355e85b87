/** Compiles a file of assembly/test as build.mjs compiles the core, and starts an instance. */
import { execFileSync } from 'node:child_process';
import { mkdtempSync, readFileSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import path from 'node:path';

const ROOT = path.join(import.meta.dirname, '..', '..');

// As in src/core/instance.ts: the compiler's library has no WebAssembly without the DOM.
declare const WebAssembly: {
  Module: new (bytes: Uint8Array) => object;
  Instance: new (module: object, imports: object) => { readonly exports: unknown };
};

function compileAssembly(file: string): Uint8Array {
  const folder = mkdtempSync(path.join(tmpdir(), 'kvd-asc-'));
  try {
    const output = path.join(folder, 'module.wasm');
    const asc = path.join(ROOT, 'node_modules', 'assemblyscript', 'bin', 'asc.js');
    const options = ['--config', 'asconfig.json', '--target', 'release', '--outFile', output];
    execFileSync(process.execPath, [asc, file, ...options], { cwd: ROOT });
    return readFileSync(output);
  } finally {
    rmSync(folder, { recursive: true });
  }
}

/** `file` is relative to the root of the repository; `T` are its exports. */
export function startAssembly<T>(file: string): T {
  const module = new WebAssembly.Module(compileAssembly(file));
  const abort = (_message: number, _file: number, line: number) => {
    throw new Error(`an assertion failed in line ${line} of ${file} or of what it imports`);
  };
  return new WebAssembly.Instance(module, { env: { abort } }).exports as T;
}
