/** Sizes and durations as people read them. Bytes are binary everywhere: 1 GiB = 2^30. */

export const KIB = 1024;
export const MIB = 1024 * KIB;
export const GIB = 1024 * MIB;

/** `1536` → `"1.50 KiB"`. */
export function formatBytes(bytes: number): string {
  const units = ['B', 'KiB', 'MiB', 'GiB', 'TiB'];
  let value = bytes;
  let unit = 0;
  while (Math.abs(value) >= 1024 && unit < units.length - 1) {
    value /= 1024;
    unit += 1;
  }
  return unit === 0 ? `${value} B` : `${value.toFixed(2)} ${units[unit]}`;
}

/** Rounds `bytes` up to a multiple of `alignBytes`, which is a power of two. */
export function alignUp(bytes: number, alignBytes: number): number {
  return Math.ceil(bytes / alignBytes) * alignBytes;
}
