/** The JSON keys of `fs` and `fs_native`, and the store that they describe. */
import path from 'node:path';
import { KvdError } from '../errors.ts';
import { GIB } from '../units.ts';
import type { L2BackendContext } from './backend.ts';
import type { ConfigKeys, ConfigValues } from './config-keys.ts';
import type { Sync } from './file-io.ts';
import { FileStore, type Padding } from './file-store.ts';

/** More threads than this wait for each other in the kernel. */
const WORKER_COUNT_MAX = 128;

export const FILE_KEYS = {
  base_path: { kind: 'text', about: 'Folder of the files; made if it is missing.' },
  relative_tmp_dir: {
    kind: 'text',
    fallback: '',
    about: 'Folder for files that are being written, inside base_path.',
  },
  num_workers: {
    kind: 'integer',
    fallback: 4,
    min: 1,
    max: WORKER_COUNT_MAX,
    about: 'Files that are read or written at a time.',
  },
  use_odirect: {
    kind: 'boolean',
    fallback: false,
    about: 'Past the page cache (O_DIRECT), where the file system allows it.',
  },
  read_ahead_size: {
    kind: 'integer',
    fallback: 0,
    min: 0,
    about: 'Bytes of the first read of a file; 0 = the whole file at once.',
  },
  fsync: {
    kind: 'text',
    fallback: 'none',
    choices: ['none', 'data', 'full'],
    about: 'What a store waits for: nothing, its bytes on the disk, or also their name (full).',
  },
  max_capacity_gb: {
    kind: 'number',
    fallback: 0,
    min: 0,
    about: 'GiB that the folder may hold; 0 = no bound.',
  },
} as const satisfies ConfigKeys;

export const NATIVE_FILE_KEYS = {
  ...FILE_KEYS,
  pad_to_alignment: {
    kind: 'boolean',
    fallback: false,
    about:
      'Pad files to the L1 alignment, which lmcache 0.5.6 needs to read them with use_odirect.',
  },
} as const satisfies ConfigKeys;

export function capacityBytes(values: ConfigValues): number {
  return Math.floor((values['max_capacity_gb'] as number) * GIB);
}

export function openFileStore(
  kind: { readonly label: string; readonly padding: Padding },
  values: ConfigValues,
  context: L2BackendContext,
): Promise<FileStore> {
  const basePath = values['base_path'] as string;
  if (basePath === '') throw new KvdError('ERR_CONFIG', 'base_path must be a non-empty string');
  return FileStore.open({
    ...kind,
    basePath: path.resolve(basePath),
    temporaryFolder: checkedTemporaryFolder(values['relative_tmp_dir'] as string),
    workerCount: values['num_workers'] as number,
    isDirect: values['use_odirect'] as boolean,
    readAheadBytes: values['read_ahead_size'] as number,
    sync: values['fsync'] as Sync,
    context,
  });
}

function checkedTemporaryFolder(folder: string): string {
  if (path.isAbsolute(folder) || folder.split(/[/\\]/).includes('..')) {
    throw new KvdError(
      'ERR_CONFIG',
      `relative_tmp_dir must be a relative path without "..", got ${JSON.stringify(folder)}`,
    );
  }
  return folder;
}
