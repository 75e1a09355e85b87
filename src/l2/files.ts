/**
 * The calls to the file system that a file store is made of, each a promise.
 *
 * The callbacks of `node:fs` and bare descriptors, not `FileHandle`: per object that is half the
 * cost, and nothing is closed behind our back. As a value, so that tests can put faults between.
 */
import fs from 'node:fs';

export interface FileFacts {
  readonly isFile: boolean;
  readonly sizeBytes: number;
  readonly modifiedMs: number;
}

export interface Files {
  open(path: string, flags: number, mode: number): Promise<number>;
  /** Bytes written, which may be fewer than asked for. */
  write(fd: number, bytes: Uint8Array, range: FileRange): Promise<number>;
  /** Bytes read; 0 at the end of the file. */
  read(fd: number, bytes: Uint8Array, range: FileRange): Promise<number>;
  truncate(fd: number, sizeBytes: number): Promise<void>;
  facts(fd: number): Promise<FileFacts>;
  /** Null when there is no such file. */
  factsOf(path: string): Promise<FileFacts | null>;
  syncData(fd: number): Promise<void>;
  sync(fd: number): Promise<void>;
  close(fd: number): Promise<void>;
  rename(source: string, target: string): Promise<void>;
  /** False when there is no such file. */
  unlink(path: string): Promise<boolean>;
}

export interface FileRange {
  /** In the buffer. */
  readonly offset: number;
  readonly length: number;
  /** In the file. */
  readonly position: number;
}

type Done<T> = (error: Error | null, value: T) => void;

function call<T>(start: (done: Done<T>) => void): Promise<T> {
  return new Promise((resolve, reject) => {
    start((error, value) => (error ? reject(error) : resolve(value)));
  });
}

const factsOf = (stats: fs.Stats): FileFacts => ({
  isFile: stats.isFile(),
  sizeBytes: stats.size,
  modifiedMs: Math.trunc(stats.mtimeMs),
});

export function errnoOf(error: unknown): string {
  return (error as NodeJS.ErrnoException | null)?.code ?? '';
}

export const diskFiles: Files = {
  open: (path, flags, mode) => call((done) => fs.open(path, flags, mode, done)),
  write: (fd, bytes, { offset, length, position }) =>
    call((done) => fs.write(fd, bytes, offset, length, position, done)),
  read: (fd, bytes, { offset, length, position }) =>
    call((done) => fs.read(fd, bytes, offset, length, position, done)),
  truncate: (fd, sizeBytes) =>
    call<void>((done) => fs.ftruncate(fd, sizeBytes, done as fs.NoParamCallback)),
  facts: async (fd) => factsOf(await call<fs.Stats>((done) => fs.fstat(fd, done))),
  async factsOf(path) {
    try {
      return factsOf(await call<fs.Stats>((done) => fs.stat(path, done)));
    } catch (error) {
      if (errnoOf(error) === 'ENOENT') return null;
      throw error;
    }
  },
  syncData: (fd) => call<void>((done) => fs.fdatasync(fd, done as fs.NoParamCallback)),
  sync: (fd) => call<void>((done) => fs.fsync(fd, done as fs.NoParamCallback)),
  close: (fd) => call<void>((done) => fs.close(fd, done as fs.NoParamCallback)),
  rename: (source, target) =>
    call<void>((done) => fs.rename(source, target, done as fs.NoParamCallback)),
  async unlink(path) {
    try {
      await call<void>((done) => fs.unlink(path, done as fs.NoParamCallback));
      return true;
    } catch (error) {
      if (errnoOf(error) === 'ENOENT') return false;
      throw error;
    }
  },
};
