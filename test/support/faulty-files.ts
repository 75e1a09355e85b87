/** The real files with faults between, for tests of file stores. */
import fs from 'node:fs';
import { diskFiles, type Files } from '../../src/l2/files.ts';

export function systemError(code: string, syscall: string): Error {
  return Object.assign(new Error(`${code}: as ordered, ${syscall}`), { code, syscall });
}

/** From `begin` on: calls by name, in their order. Without a fault of their own they are real. */
export class FaultyFiles {
  readonly calls: string[] = [];
  readonly files: Files;
  #hasBegun = false;

  constructor(faults: Partial<Files>) {
    const target = { ...diskFiles, ...faults };
    this.files = new Proxy(target, {
      get: (_, name: keyof Files) => {
        if (!this.#hasBegun) return diskFiles[name];
        const run = target[name] as (...args: readonly unknown[]) => unknown;
        return (...args: readonly unknown[]) => {
          this.calls.push(name);
          return run(...args);
        };
      },
    });
  }

  begin(): void {
    this.#hasBegun = true;
  }
}

/** As a file system that does not know direct I/O: `open` makes the file and then refuses. */
export async function refuseDirectOpen(path: string, flags: number, mode: number): Promise<number> {
  if ((flags & fs.constants.O_DIRECT) === 0) return diskFiles.open(path, flags, mode);
  if ((flags & fs.constants.O_CREAT) !== 0) fs.writeFileSync(path, '');
  throw systemError('EINVAL', 'open');
}
