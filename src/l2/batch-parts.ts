/** Batches in parts, so that not all objects wait for the slowest one of a call. */

const PART_BYTES = 64 * 1024 * 1024;
const PART_OBJECT_COUNT = 512;

export interface Part<T> {
  readonly items: readonly T[];
  /** Of its first item in the batch. */
  readonly firstIndex: number;
}

/** Consecutive items, so many that neither bound is exceeded; a large one stands alone. */
export function partsOf<T>(items: readonly T[], sizeOf: (item: T) => number = () => 0): Part<T>[] {
  const parts: Part<T>[] = [];
  let first = 0;
  let bytes = 0;
  for (const [i, item] of items.entries()) {
    const sizeBytes = sizeOf(item);
    if (i > first && (bytes + sizeBytes > PART_BYTES || i - first >= PART_OBJECT_COUNT)) {
      parts.push({ items: items.slice(first, i), firstIndex: first });
      first = i;
      bytes = 0;
    }
    bytes += sizeBytes;
  }
  if (items.length > first) parts.push({ items: items.slice(first), firstIndex: first });
  return parts;
}

/** Puts the results of a part into those of its batch. */
export function fillPart<T>(results: (T | undefined)[], firstIndex: number, answers: readonly T[]) {
  for (const [i, answer] of answers.entries()) results[firstIndex + i] = answer;
}
