/**
 * Values as files of one folder: `fs` and `fs_native`, whose files are the same (spec l2-adapters
 * 4.2, 4.3) and are shared with the peer's servers.
 *
 *   <base>/<name of the key>.data     the value's bytes and nothing else (`file-name.ts`)
 *   <base>/~<40 hex digits>.key       the key of a short name
 *   <base>[/<temporary folder>]/kvd-….tmp     being written (`temporary-files.ts`)
 *
 * Approach
 *   - Store: is it there with the right size → `present`; else write a temporary file, sync it if
 *     asked to, rename it over the name. So a value is there as a whole or not at all, also after
 *     a kill -9 and when the disk is full. After a power loss that holds with `fsync` only: without
 *     it a file system may keep the name and lose the bytes. The size check catches what was cut.
 *   - Load: a file of another size is `missing`; the next store of that key replaces it. Padded
 *     files are values where `padding` says so, and nowhere else: their true size is not known.
 *   - Bytes go straight between the buffer in L1 and the file, on libuv's threads, `workerCount`
 *     objects at a time. Nothing is copied but the last part of a block under direct I/O. Look-ups
 *     and deletes have threads of their own: a prefix of 1000 keys is not 1000 turns behind stores.
 *   - A call that was broken off lets the running system call end and removes what it wrote.
 *
 * Errors name folder and error number, never the file: its name holds the tenant's salt.
 */
import { constants } from 'node:fs';
import { mkdir, stat } from 'node:fs/promises';
import path from 'node:path';
import { KvdError } from '../errors.ts';
import { alignUp } from '../units.ts';
import type {
  DeleteResult,
  L2Backend,
  L2BackendContext,
  L2Object,
  ListOptions,
  ListPage,
  LoadResult,
  LookupResult,
  StoreResult,
} from './backend.ts';
import { BLOCK_BYTES, FileIo, type Sync } from './file-io.ts';
import { type FileName, fileNameOf, keyFileOf } from './file-name.ts';
import { FileWalks } from './file-walk.ts';
import { diskFiles, errnoOf, type Files } from './files.ts';
import type { ObjectKey } from './object-key.ts';
import { removeStaleTemporaries, TemporaryFiles } from './temporary-files.ts';
import { WorkerGate } from './worker-gate.ts';

/** config/thread-pool.ts counts on it. */
const NAME_WORKER_COUNT = 4;

/**
 * Files of the size of the L1 slot, as the peer 0.5.6 writes them with `fs_native` and direct I/O:
 * no value, values like others, or what stores write too.
 */
export type Padding = 'none' | 'accepted' | 'written';

export interface FileStoreOptions {
  /** As the peer calls this kind of adapter in its status. */
  readonly label: string;
  readonly basePath: string;
  /** Relative to `basePath`; empty = `basePath` itself. */
  readonly temporaryFolder: string;
  readonly workerCount: number;
  readonly isDirect: boolean;
  readonly readAheadBytes: number;
  readonly sync: Sync;
  readonly padding: Padding;
  readonly context: Pick<L2BackendContext, 'log' | 'clock' | 'alignBytes'>;
  /** Instead of the real ones, in tests. */
  readonly files?: Files;
}

export class FileStore implements L2Backend {
  readonly #options: FileStoreOptions;
  readonly #files: Files;
  /** Of stores and loads. */
  readonly #gate: WorkerGate;
  /** Of everything that moves no bytes, which must not wait for those that do. */
  readonly #nameGate = new WorkerGate(NAME_WORKER_COUNT);
  readonly #io: FileIo;
  readonly #temporaries: TemporaryFiles;
  readonly #walks: FileWalks;
  readonly #closing = new AbortController();
  /** Settles when the temporary files of earlier processes are gone. */
  cleaned: Promise<unknown> = Promise.resolve();

  private constructor(options: FileStoreOptions) {
    this.#options = options;
    const { basePath, context, files = diskFiles, workerCount } = options;
    this.#files = files;
    this.#gate = new WorkerGate(workerCount);
    this.#temporaries = new TemporaryFiles(path.join(basePath, options.temporaryFolder));
    this.#walks = new FileWalks(basePath, files, this.#nameGate);
    this.#io = new FileIo({
      files,
      folder: basePath,
      isDirect: options.isDirect,
      readAheadBytes: options.readAheadBytes,
      sync: options.sync,
      paddingBytes: options.padding === 'written' ? this.#paddingBytes : 0,
      workerCount,
      log: context.log,
    });
  }

  /** Makes the folders. One that is there but cannot be written still serves what it holds. */
  static async open(options: FileStoreOptions): Promise<FileStore> {
    const { basePath, context, temporaryFolder } = options;
    const folders = [...new Set([basePath, path.join(basePath, temporaryFolder)])];
    for (const folder of folders) await makeFolder(folder, options);
    const store = new FileStore(options);
    await store.#probe();
    const cleaning = {
      files: store.#files,
      clock: context.clock,
      log: context.log,
      signal: store.#closing.signal,
    };
    // Beside the first requests: a folder of millions of names takes seconds to read.
    store.cleaned = Promise.all(folders.map((each) => removeStaleTemporaries(each, cleaning)));
    return store;
  }

  store(objects: readonly L2Object[], signal: AbortSignal): Promise<StoreResult[]> {
    return this.#gate.map(objects, (object, worker) =>
      this.#attempt('write', () => this.#storeOne(object, worker, signal)),
    );
  }

  lookup(keys: readonly ObjectKey[], signal: AbortSignal): Promise<LookupResult[]> {
    return this.#nameGate.map(keys, (key) =>
      this.#attempt('look up', async () => {
        signal.throwIfAborted();
        const facts = await this.#files.factsOf(this.#pathOf(fileNameOf(key).name));
        return facts?.isFile ? facts.sizeBytes : null;
      }),
    );
  }

  load(objects: readonly L2Object[], signal: AbortSignal): Promise<LoadResult[]> {
    return this.#gate.map(objects, (object, worker) =>
      this.#attempt('read', () => this.#loadOne(object, worker, signal)),
    );
  }

  delete(keys: readonly ObjectKey[], signal: AbortSignal): Promise<DeleteResult[]> {
    return this.#nameGate.map(keys, (key) =>
      this.#attempt('delete', async () => {
        signal.throwIfAborted();
        return this.#deleteOne(fileNameOf(key));
      }),
    );
  }

  list(options: ListOptions): Promise<ListPage> {
    return this.#walks.page(options);
  }

  acceptsSize(storedBytes: number, sizeBytes: number): boolean {
    if (storedBytes === sizeBytes) return true;
    if (this.#options.padding === 'none') return false;
    const sizes = [BLOCK_BYTES, this.#paddingBytes];
    return sizes.some((unitBytes) => storedBytes === alignUp(sizeBytes, unitBytes));
  }

  status(): Record<string, unknown> {
    const { label, basePath, workerCount, sync, isDirect } = this.#options;
    return {
      type: label,
      base_path: basePath,
      num_workers: workerCount,
      fsync: sync,
      use_odirect: isDirect,
      direct_io_active: this.#io.isDirect,
      direct_io_refused_count: this.#io.refusedTransferCount,
    };
  }

  async close(): Promise<void> {
    this.#closing.abort();
    await this.cleaned;
    await this.#walks.close();
  }

  /** Of an L1 slot, ours or the peer's. */
  get #paddingBytes(): number {
    return Math.max(BLOCK_BYTES, this.#options.context.alignBytes);
  }

  #pathOf(name: string): string {
    return path.join(this.#options.basePath, name);
  }

  /** Tries to make a file: rights, a read-only mount and a full disk show at the start already. */
  async #probe(): Promise<void> {
    const probe = { path: this.#temporaries.newPath(), bytes: new Uint8Array(1), worker: 0 };
    try {
      await this.#io.write({ ...probe, signal: this.#closing.signal });
      await this.#files.unlink(probe.path);
    } catch (error) {
      const { basePath, context } = this.#options;
      context.log.warn(`${basePath} cannot be written (${errnoOf(error)}): stores there will fail`);
    }
  }

  async #storeOne(object: L2Object, worker: number, signal: AbortSignal): Promise<StoreResult> {
    signal.throwIfAborted();
    const { bytes } = object;
    const fileName = fileNameOf(object.key);
    const target = this.#pathOf(fileName.name);
    const facts = await this.#files.factsOf(target);
    if (facts?.isFile && this.acceptsSize(facts.sizeBytes, bytes.length)) return 'present';
    if (fileName.plainName !== null) await this.#writeKey(fileName, worker, signal);
    await this.#writeInPlace(target, { bytes, worker, signal });
    return 'stored';
  }

  async #writeInPlace(
    target: string,
    value: { readonly bytes: Uint8Array; readonly worker: number; readonly signal: AbortSignal },
  ): Promise<void> {
    const temporary = this.#temporaries.newPath();
    await this.#io.write({ ...value, path: temporary });
    try {
      await this.#files.rename(temporary, target);
    } catch (error) {
      // What cannot be removed now is a stale temporary file at the next start.
      await this.#files.unlink(temporary).catch(() => false);
      throw error;
    }
    if (this.#options.sync === 'full') await this.#syncFolder();
  }

  /** Before the value: a value without it could not be listed, the other way round is no harm. */
  async #writeKey(
    { name, plainName }: FileName,
    worker: number,
    signal: AbortSignal,
  ): Promise<void> {
    const bytes = Buffer.from(plainName ?? '');
    await this.#writeInPlace(this.#pathOf(keyFileOf(name)), { bytes, worker, signal });
  }

  /** Makes the renaming last. */
  async #syncFolder(): Promise<void> {
    const fd = await this.#files.open(this.#options.basePath, constants.O_RDONLY, 0);
    try {
      await this.#files.sync(fd);
    } finally {
      await this.#files.close(fd);
    }
  }

  async #loadOne(object: L2Object, worker: number, signal: AbortSignal): Promise<LoadResult> {
    signal.throwIfAborted();
    const { bytes } = object;
    const call = { path: this.#pathOf(fileNameOf(object.key).name), bytes, worker, signal };
    try {
      const accepts = (fileBytes: number): boolean => this.acceptsSize(fileBytes, bytes.length);
      return (await this.#io.read(call, accepts)) ? 'loaded' : 'missing';
    } catch (error) {
      if (errnoOf(error) === 'ENOENT') return 'missing';
      throw error;
    }
  }

  async #deleteOne({ name, plainName }: FileName): Promise<DeleteResult> {
    const isDeleted = await this.#files.unlink(this.#pathOf(name));
    if (plainName !== null) await this.#files.unlink(this.#pathOf(keyFileOf(name)));
    return isDeleted ? 'deleted' : 'absent';
  }

  async #attempt<T>(what: string, run: () => Promise<T>): Promise<T | Error> {
    try {
      return await run();
    } catch (error) {
      const reason = error instanceof KvdError ? error.message : errnoOf(error) || 'broken off';
      const message = `cannot ${what} a file in ${this.#options.basePath}: ${reason}`;
      return new KvdError('ERR_L2_IO', message, { cause: error });
    }
  }
}

async function makeFolder(folder: string, { basePath }: FileStoreOptions): Promise<void> {
  const key = folder === basePath ? 'base_path' : 'relative_tmp_dir';
  try {
    await makeFolders(folder);
    await stat(path.join(folder, '.'));
  } catch (error) {
    const message = `"${key}": ${folder} is no folder and cannot be made (${errnoOf(error)})`;
    throw new KvdError('ERR_CONFIG', message, { cause: error });
  }
}

/** Step by step: Node's recursive form never ends where a parent can have no folders (/proc). */
async function makeFolders(folder: string): Promise<void> {
  try {
    await mkdir(folder);
  } catch (error) {
    const parent = path.dirname(folder);
    const errno = errnoOf(error);
    if (errno === 'EEXIST' && (await stat(folder)).isDirectory()) return;
    if (errno !== 'ENOENT' || parent === folder) throw error;
    const isThere = await stat(parent).then(
      () => true,
      () => false,
    );
    if (isThere) throw error;
    await makeFolders(parent);
    await mkdir(folder);
  }
}
