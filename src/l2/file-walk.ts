/**
 * Lists the values of a folder, a page at a time.
 *
 * A folder may hold millions of names, so a listing is a walk that is still open between pages: the
 * token of a page is the number of its walk. A walk whose reader does not come back is closed when
 * too many are open.
 */
import type { Dir } from 'node:fs';
import { opendir, readFile } from 'node:fs/promises';
import path from 'node:path';
import { KvdError } from '../errors.ts';
import type { ListedObject, ListOptions, ListPage } from './backend.ts';
import { isShortName, keyFileOf, keyOfFileName, keyOfShortName } from './file-name.ts';
import type { Files } from './files.ts';
import type { ObjectKey } from './object-key.ts';
import type { WorkerGate } from './worker-gate.ts';

const OPEN_WALK_COUNT_MAX = 4;
const NAMES_PER_READ = 512;

export class FileWalks {
  readonly #folder: string;
  readonly #files: Files;
  readonly #gate: WorkerGate;
  /** Oldest first. */
  readonly #walks = new Map<string, Dir>();
  #nextNumber = 1;

  constructor(folder: string, files: Files, gate: WorkerGate) {
    this.#folder = folder;
    this.#files = files;
    this.#gate = gate;
  }

  async page({ modelName, pageSize, token, signal }: ListOptions): Promise<ListPage> {
    const walk = token === null ? await this.#open() : this.#take(token);
    let isAtEnd = false;
    try {
      const objects: ListedObject[] = [];
      while (!isAtEnd && objects.length < pageSize) {
        signal.throwIfAborted();
        const names = await readNames(walk, pageSize - objects.length);
        isAtEnd = names.length === 0;
        const found = await this.#gate.map(names, (name) => this.#describe(name, modelName));
        objects.push(...found.filter((object) => object !== null));
      }
      return { objects, nextToken: isAtEnd ? null : await this.#keep(walk) };
    } catch (error) {
      isAtEnd = true;
      throw error;
    } finally {
      if (isAtEnd) await walk.close();
    }
  }

  async close(): Promise<void> {
    for (const walk of this.#walks.values()) await walk.close();
    this.#walks.clear();
  }

  #open(): Promise<Dir> {
    return opendir(this.#folder, { bufferSize: NAMES_PER_READ });
  }

  #take(token: string): Dir {
    const walk = this.#walks.get(token);
    if (!walk) throw new KvdError('ERR_BAD_REQUEST', 'the listing is over: begin it again');
    this.#walks.delete(token);
    return walk;
  }

  async #keep(walk: Dir): Promise<string> {
    const token = `${this.#nextNumber}`;
    this.#nextNumber += 1;
    this.#walks.set(token, walk);
    const [oldest] = this.#walks;
    if (oldest && this.#walks.size > OPEN_WALK_COUNT_MAX) {
      this.#walks.delete(oldest[0]);
      await oldest[1].close();
    }
    return token;
  }

  /** Null for what is no value, or none of this model, or gone by now. */
  async #describe(name: string, modelName: string | null): Promise<ListedObject | null> {
    const key = isShortName(name) ? await this.#readKey(name) : keyOfFileName(name);
    if (key === null || (modelName !== null && key.modelName !== modelName)) return null;
    const facts = await this.#files.factsOf(path.join(this.#folder, name)).catch(() => null);
    if (!facts?.isFile) return null;
    return { key, sizeBytes: facts.sizeBytes, storedMs: facts.modifiedMs };
  }

  async #readKey(shortName: string): Promise<ObjectKey | null> {
    try {
      const plainName = await readFile(path.join(this.#folder, keyFileOf(shortName)), 'utf8');
      return keyOfShortName(shortName, plainName);
    } catch {
      // Without its sibling nobody can say whose value it is; it can still be loaded by its key.
      return null;
    }
  }
}

/** Up to `countMax` names that may be values; none = the end. */
async function readNames(walk: Dir, countMax: number): Promise<string[]> {
  const names: string[] = [];
  while (names.length < countMax) {
    const entry = await walk.read();
    if (entry === null) break;
    if (entry.name.endsWith('.data')) names.push(entry.name);
  }
  return names;
}
