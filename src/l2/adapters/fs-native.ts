/**
 * `fs_native`: the same files as `fs`; the peer has a second implementation of them in C++. Both
 * may use one folder.
 *
 * The peer's release 0.5.6 pads files to its L1 alignment when `use_odirect` is set; only then are
 * padded files taken for values here.
 */
import type { L2BackendType } from '../backend.ts';
import type { ConfigValues } from '../config-keys.ts';
import { capacityBytes, NATIVE_FILE_KEYS, openFileStore } from '../file-keys.ts';
import type { Padding } from '../file-store.ts';

export const backendType: L2BackendType = {
  typeName: 'fs_native',
  about: 'The same as `fs`, under the name of the peer’s native implementation.',
  keys: NATIVE_FILE_KEYS,
  open: (values, context) =>
    openFileStore({ label: 'FSNativeL2Adapter', padding: paddingOf(values) }, values, context),
  capacityBytes,
};

function paddingOf(values: ConfigValues): Padding {
  if (values['pad_to_alignment'] === true) return 'written';
  return values['use_odirect'] === true ? 'accepted' : 'none';
}
