/**
 * Finds the modules of `adapters/`: `<type>.ts`, or `<type>/<type>.ts` where one is a folder.
 *
 * Run from sources this reads the folder; in the bundles build.mjs puts in its place a list of
 * imports that it has made from the same folder. So a new type is a new file and nothing else.
 */
import fs from 'node:fs/promises';
import path from 'node:path';
import { pathToFileURL } from 'node:url';

const FOLDER = path.join(import.meta.dirname, 'adapters');

export async function importAdapterModules(): Promise<unknown[]> {
  const entries = await fs.readdir(FOLDER, { withFileTypes: true });
  const files = entries.map((entry) =>
    entry.isDirectory() ? path.join(entry.name, `${entry.name}.ts`) : entry.name,
  );
  return Promise.all(
    files
      .sort()
      .filter((file) => file.endsWith('.ts'))
      .map((file) => import(pathToFileURL(path.join(FOLDER, file)).href)),
  );
}
