/** `fs` and `fs_native`: one folder under both servers, buffered and with direct I/O. */
import { mkdtempSync } from 'node:fs';
import { rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import path from 'node:path';
import { backendType as fs } from '../../src/l2/adapters/fs.ts';
import { backendType as fsNative } from '../../src/l2/adapters/fs-native.ts';
import { openBackend } from '../../test/support/l2-context.ts';
import { type Check, checkBothWays } from './both-ways.ts';
import { ReferenceAdapter } from './reference-adapter.ts';

const TYPES = { fs, fs_native: fsNative };

export async function run(python: string, release: string, check: Check): Promise<void> {
  for (const [type, backendType] of Object.entries(TYPES)) {
    for (const isDirect of [false, true]) {
      const folder = mkdtempSync(path.join(tmpdir(), 'kvd-interop-'));
      const keys = { base_path: folder, use_odirect: isDirect };
      // Only fs_native of 0.5.6 pads, and cannot read a file of odd size that was not padded.
      const isPadding = type === 'fs_native' && isDirect && release === '0.5.6';
      const theirs = await ReferenceAdapter.start(python, release, { type, ...keys });
      const ours = await openBackend(backendType, {
        ...keys,
        ...(isPadding ? { pad_to_alignment: true } : {}),
      });
      try {
        const title = `${release} ${type}${isDirect ? ', direct' : ''}`;
        // Salted keys are malformed for fs_native of 0.5.0, whose fs cannot delete.
        const hasSalts = type === 'fs' || release !== '0.5.0';
        const canDelete = type === 'fs_native' || release !== '0.5.0';
        await checkBothWays({ title, ours, theirs, hasSalts, canDelete }, check);
      } finally {
        await theirs.end();
        await ours.close();
        await rm(folder, { recursive: true });
      }
    }
  }
}
