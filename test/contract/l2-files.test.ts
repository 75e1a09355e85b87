import { mkdirSync, writeFileSync } from 'node:fs';
import { rm } from 'node:fs/promises';
import path from 'node:path';
import { fileNameOf } from '../../src/l2/file-name.ts';
import type { FileStoreOptions } from '../../src/l2/file-store.ts';
import type { Skip } from '../support/contract.ts';
import { newFolder, openStore } from '../support/l2-folders.ts';
import { l2BackendContract } from './l2-backend.ts';

function fileContract(
  name: string,
  options: Partial<FileStoreOptions>,
  skip: readonly Skip[] = [],
): void {
  l2BackendContract({
    name,
    async makeStore() {
      const folder = newFolder();
      return {
        open: () => openStore(folder, options),
        dispose: () => rm(folder, { recursive: true }),
        plant: async (key, bytes) => writeFileSync(path.join(folder, fileNameOf(key).name), bytes),
        spoil: async (key) => void mkdirSync(path.join(folder, fileNameOf(key).name)),
      };
    },
    isPersistent: true,
    isShared: true,
    skip,
  });
}

fileContract('files, buffered', {});
fileContract('files, direct, one at a time', { isDirect: true, workerCount: 1 });
fileContract('files, direct, synced, with a folder for temporary files', {
  isDirect: true,
  sync: 'full',
  temporaryFolder: 'tmp',
  readAheadBytes: 1000,
});
fileContract('files, direct, padded ones accepted', { isDirect: true, padding: 'accepted' }, [
  {
    reason: 'a padded file does not say how much of it is the value (test/unit/l2/file-store)',
    tests: ['a value of another size is missing, and nothing is written outside of the buffer'],
  },
]);
