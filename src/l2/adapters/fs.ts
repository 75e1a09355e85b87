/** `fs`: values as files of a folder, the peer's first L2 adapter. */
import type { L2BackendType } from '../backend.ts';
import { capacityBytes, FILE_KEYS, openFileStore } from '../file-keys.ts';

export const backendType: L2BackendType = {
  typeName: 'fs',
  about: 'One file per object in a folder of a local or mounted file system.',
  keys: FILE_KEYS,
  open: (values, context) =>
    openFileStore({ label: 'FSL2Adapter', padding: 'none' }, values, context),
  capacityBytes,
};
