/**
 * A block device or pre-sized file, opened for this server alone.
 *
 * Exclusion: a file by an advisory lock. A block device as well, and by `O_EXCL`, which the kernel
 * checks on the device itself: two containers see it through two inodes, and a lock on one says
 * nothing about the other. The same check refuses a device that is mounted.
 */
import fs from 'node:fs';
import { KvdError } from '../../errors.ts';
import { errnoOf } from '../files.ts';

export interface BlockDevice {
  readonly sizeBytes: number;
  /** Fills all of the buffers. */
  read(buffers: readonly Uint8Array[], position: number): Promise<void>;
  write(buffers: readonly Uint8Array[], position: number): Promise<void>;
  /** What was written survives a loss of power. */
  sync(): Promise<void>;
  close(): Promise<void>;
}

export interface DeviceOptions {
  readonly path: string;
  readonly isDirect: boolean;
  readonly lockFile: (descriptor: number) => boolean;
}

const SECTOR_BYTES = 512;

/** Throws `ERR_CONFIG` when it is not there or no device. */
export function deviceBytesOf(path: string): number {
  const stats = statOf(path);
  return stats.isBlockDevice() ? blockDeviceBytes(path, stats.rdev) : stats.size;
}

function statOf(path: string): fs.Stats {
  let stats: fs.Stats;
  try {
    stats = fs.statSync(path);
  } catch (error) {
    return refuse(
      `"device_path" ${path} cannot be used (${errnoOf(error)}): it must be a block device, or ` +
        'a file of the wanted size (truncate -s 100G FILE)',
    );
  }
  if (stats.isFile() || stats.isBlockDevice()) return stats;
  return refuse(`"device_path" ${path} is neither a block device nor a file`);
}

/** `stat` gives 0 for devices, and Node cannot seek to their end. */
function blockDeviceBytes(path: string, device: number): number {
  const number = BigInt(device);
  // `dev_t` of glibc: 12 + 20 bits of major and 8 + 24 bits of minor, interleaved.
  const major = ((number >> 8n) & 0xfffn) | ((number >> 32n) & 0xffff_f000n);
  const minor = (number & 0xffn) | ((number >> 12n) & 0xffff_ff00n);
  const file = `/sys/dev/block/${major}:${minor}/size`;
  try {
    return Number(fs.readFileSync(file, 'latin1')) * SECTOR_BYTES;
  } catch (error) {
    return refuse(`the size of ${path} is not known: ${file} cannot be read (${errnoOf(error)})`);
  }
}

/** Throws `ERR_CONFIG` naming reason and mend. */
export function openBlockDevice({ path, isDirect, lockFile }: DeviceOptions): BlockDevice {
  const isBlockDevice = statOf(path).isBlockDevice();
  const { O_RDWR, O_DIRECT, O_EXCL } = fs.constants;
  const flags = O_RDWR | (isDirect ? O_DIRECT : 0) | (isBlockDevice ? O_EXCL : 0);
  let descriptor: number;
  try {
    descriptor = fs.openSync(path, flags);
  } catch (error) {
    return refuse(`"device_path" ${path}: ${openProblem(errnoOf(error), isDirect)}`);
  }
  if (!lockFile(descriptor)) {
    fs.closeSync(descriptor);
    refuse(`"device_path" ${path} is in use by another server: give each server its own`);
  }
  return new OpenDevice(descriptor, deviceBytesOf(path));
}

function openProblem(code: string, isDirect: boolean): string {
  if (code === 'EBUSY') return 'in use: mounted, part of a volume, or opened by another server';
  if (code === 'EINVAL' && isDirect) {
    return 'its file system has no O_DIRECT: set "use_odirect": false';
  }
  return `cannot be opened for reading and writing (${code})`;
}

function refuse(message: string): never {
  throw new KvdError('ERR_CONFIG', message);
}

type Transfer = (buffers: readonly Uint8Array[], position: number) => Promise<number>;

class OpenDevice implements BlockDevice {
  readonly sizeBytes: number;
  readonly #descriptor: number;

  constructor(descriptor: number, sizeBytes: number) {
    this.#descriptor = descriptor;
    this.sizeBytes = sizeBytes;
  }

  read(buffers: readonly Uint8Array[], position: number): Promise<void> {
    return transferAll(buffers, position, (rest, at) =>
      call((done) => fs.readv(this.#descriptor, rest, at, done)),
    );
  }

  write(buffers: readonly Uint8Array[], position: number): Promise<void> {
    return transferAll(buffers, position, (rest, at) =>
      call((done) => fs.writev(this.#descriptor, rest, at, done)),
    );
  }

  sync(): Promise<void> {
    return call<void>((done) => fs.fdatasync(this.#descriptor, done as fs.NoParamCallback));
  }

  close(): Promise<void> {
    return call<void>((done) => fs.close(this.#descriptor, done as fs.NoParamCallback));
  }
}

type Done<T> = (error: Error | null, value: T) => void;

function call<T>(start: (done: Done<T>) => void): Promise<T> {
  return new Promise((resolve, reject) => {
    start((error, value) => (error ? reject(error) : resolve(value)));
  });
}

/** A call may move less than was asked for: signals, and the kernel's bound of 2 GiB. */
async function transferAll(
  buffers: readonly Uint8Array[],
  position: number,
  transfer: Transfer,
): Promise<void> {
  let rest = buffers;
  let at = position;
  while (rest.length > 0) {
    const movedBytes = await transfer(rest, at);
    if (movedBytes === 0) throw new Error(`the device ends at ${at}`);
    at += movedBytes;
    rest = withoutFirst(rest, movedBytes);
  }
}

function withoutFirst(buffers: readonly Uint8Array[], byteCount: number): Uint8Array[] {
  let leftBytes = byteCount;
  const rest: Uint8Array[] = [];
  for (const buffer of buffers) {
    const skippedBytes = Math.min(leftBytes, buffer.length);
    leftBytes -= skippedBytes;
    if (skippedBytes < buffer.length) rest.push(buffer.subarray(skippedBytes));
  }
  return rest;
}
