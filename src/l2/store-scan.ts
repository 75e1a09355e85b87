/**
 * Finds out at start what a store holds already, in the background: without it, capacity and
 * eviction would know only of what this process has stored.
 *
 * The whole list is read, sorted by age, and handed on oldest first, so that an order of eviction
 * comes out as it was. About 200 bytes an object until it is done.
 */
import type { ListedObject, ListOptions, ListPage } from './backend.ts';
import { isLayoutRecord } from './layout-record.ts';

const PAGE_SIZE = 1000;

export interface ScanOptions {
  readonly list: (options: Omit<ListOptions, 'signal'>) => Promise<ListPage>;
  /** Handed some objects at a time. */
  readonly found: (objects: readonly ListedObject[]) => void;
  readonly isOver: () => boolean;
}

/** Returns the number of objects; rejects when the store cannot be listed. */
export async function scanStore({ list, found, isOver }: ScanOptions): Promise<number> {
  const all: ListedObject[] = [];
  let token: string | null = null;
  do {
    const page: ListPage = await list({ modelName: null, pageSize: PAGE_SIZE, token });
    for (const object of page.objects) if (!isLayoutRecord(object.key)) all.push(object);
    token = page.nextToken;
  } while (token !== null && !isOver());
  all.sort((a, b) => a.storedMs - b.storedMs);
  for (let first = 0; first < all.length && !isOver(); first += PAGE_SIZE) {
    found(all.slice(first, first + PAGE_SIZE));
    await new Promise(setImmediate);
  }
  return all.length;
}
