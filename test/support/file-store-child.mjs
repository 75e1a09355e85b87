/**
 * A process that stores into a folder, for tests that kill it or leave it no room.
 *
 *   file-store-child.mjs <folder> <object bytes> <object count>
 *
 * Prints one line per object that has an answer: `<index> stored` or `<index> failed <message>`.
 */

import { openStore } from './l2-folders.ts';
import { l2Key, l2Value } from './l2-objects.ts';

const [folder = '', sizeText, countText] = process.argv.slice(2);
const sizeBytes = Number(sizeText);
const store = await openStore(folder);
const never = new AbortController().signal;
await Promise.all(
  Array.from({ length: Number(countText) }, async (_, index) => {
    const object = { key: l2Key(index), bytes: l2Value(sizeBytes, index) };
    const [result] = await store.store([object], never);
    const text = result instanceof Error ? `failed ${result.message}` : result;
    process.stdout.write(`${index} ${text}\n`);
  }),
);
await store.close();
