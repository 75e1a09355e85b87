/** Folders and file stores for tests of `fs` and `fs_native`. */
import { mkdtempSync } from 'node:fs';
import { rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import path from 'node:path';
import { FileStore, type FileStoreOptions } from '../../src/l2/file-store.ts';
import { silentLogger } from './silent-logger.ts';
import { VirtualClock } from './virtual-clock.ts';

/** On a real disk wherever the system's folder for temporary files is. */
export function newFolder(): string {
  return mkdtempSync(path.join(tmpdir(), 'kvd-l2-files-'));
}

export async function inFolder(run: (folder: string) => Promise<void>): Promise<void> {
  const folder = newFolder();
  try {
    await run(folder);
  } finally {
    await rm(folder, { recursive: true, force: true });
  }
}

export function openStore(
  basePath: string,
  options: Partial<FileStoreOptions> = {},
): Promise<FileStore> {
  return FileStore.open({
    label: 'FSL2Adapter',
    basePath,
    temporaryFolder: '',
    workerCount: 4,
    isDirect: false,
    readAheadBytes: 0,
    sync: 'none',
    padding: 'none',
    context: { log: silentLogger, clock: new VirtualClock(), alignBytes: 4096 },
    ...options,
  });
}
