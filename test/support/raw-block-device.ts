/** Files that stand in for block devices, and raw_block backends on them. */
import fs from 'node:fs';
import os from 'node:os';
import path from 'node:path';
import { gunzipSync } from 'node:zlib';
import { backendType } from '../../src/l2/adapters/raw-block.ts';
import type { L2Backend, L2BackendContext } from '../../src/l2/backend.ts';
import { encodeRawBlockKey } from '../../src/l2/key-text.ts';
import type { ObjectKey } from '../../src/l2/object-key.ts';
import { identityOf } from '../../src/l2/raw-block/layout.ts';
import { KIB, MIB } from '../../src/units.ts';
import { openBackend } from './l2-context.ts';

export const BLOCK_BYTES = 4 * KIB;

export interface DeviceShape {
  readonly slotBytes: number;
  readonly slotCount: number;
  readonly metaBytes: number;
}

export class DeviceFile {
  readonly folder = fs.mkdtempSync(path.join(os.tmpdir(), 'kvd-raw-block-'));
  readonly path = path.join(this.folder, 'device.img');
  readonly shape: DeviceShape;

  constructor(shape: Partial<DeviceShape> = {}) {
    this.shape = { slotBytes: 12 * KIB, slotCount: 16, metaBytes: MIB, ...shape };
    const { slotBytes, slotCount, metaBytes } = this.shape;
    fs.writeFileSync(this.path, '');
    fs.truncateSync(this.path, metaBytes + slotBytes * slotCount);
  }

  /** `json` over what fits the file. */
  open(
    json: Readonly<Record<string, unknown>> = {},
    context: Partial<L2BackendContext> = {},
  ): Promise<L2Backend> {
    const { slotBytes, metaBytes } = this.shape;
    const own = { device_path: this.path, slot_bytes: slotBytes, meta_total_bytes: metaBytes };
    return openBackend(backendType, { ...own, ...json }, {}, context);
  }

  /** Where the slot begins whose header has the identity of this key. */
  offsetOf(key: ObjectKey): number {
    const identity = Buffer.from(identityOf(encodeRawBlockKey(key)));
    const { slotBytes, slotCount, metaBytes } = this.shape;
    for (let slot = 0; slot < slotCount; slot += 1) {
      const offset = metaBytes + slot * slotBytes;
      if (this.read(offset + 8, 8).equals(identity)) return offset;
    }
    throw new Error('no slot has this key');
  }

  read(position: number, length: number): Buffer {
    const bytes = Buffer.alloc(length);
    this.#withFile('r', (file) => fs.readSync(file, bytes, 0, length, position));
    return bytes;
  }

  write(position: number, bytes: Uint8Array): void {
    this.#withFile('r+', (file) => fs.writeSync(file, bytes, 0, bytes.length, position));
  }

  remove(): void {
    fs.rmSync(this.folder, { recursive: true });
  }

  #withFile(flags: string, run: (file: number) => void): void {
    const file = fs.openSync(this.path, flags);
    try {
      run(file);
    } finally {
      fs.closeSync(file);
    }
  }
}

/** Images that the peer has written, and what they hold. */
export function peerImage(release: '050' | '056') {
  const folder = path.join(import.meta.dirname, '../vectors/l2/raw_block');
  const expected = JSON.parse(
    fs.readFileSync(path.join(folder, `expected_${release}.json`), 'utf8'),
  ) as {
    readonly device_path_in_image: string;
    readonly config: Readonly<Record<string, number>>;
    readonly live_after_recovery: readonly string[];
    readonly containers: readonly { readonly payload: Readonly<Record<string, unknown>> }[];
  };
  const image = gunzipSync(fs.readFileSync(path.join(folder, `image_${release}.img.gz`)));
  return { expected, image };
}
