/**
 * `block_ids` of `GET /kvcache/check`: a comma list of integers and `[first,last]` ranges, white
 * space ignored. The answer shows ids in order, runs of three or more as `[first, last]`.
 */

/** More than any engine has blocks; a range is expanded, so it must have a bound. */
export const BLOCK_ID_COUNT_MAX = 1_000_000;

const ITEM = String.raw`(?:-?\d{1,15}|\[-?\d{1,15},-?\d{1,15}\])`;
const LIST = new RegExp(`^${ITEM}(?:,${ITEM})*$`);

/** null = malformed, or more than the bound. */
export function parseBlockIds(text: string): number[] | null {
  const compact = text.replaceAll(/\s+/g, '');
  if (!LIST.test(compact)) return null;
  const ids: number[] = [];
  for (const [, first, last, single] of compact.matchAll(/\[(-?\d+),(-?\d+)\]|(-?\d+)/g)) {
    const from = Number(single ?? first);
    const to = Number(single ?? last);
    if (to < from || ids.length + (to - from) >= BLOCK_ID_COUNT_MAX) return null;
    for (let id = from; id <= to; id += 1) ids.push(id);
  }
  return ids;
}

const RUN_LENGTH_MIN = 3;

export function formatBlockIds(ids: readonly number[]): (number | [number, number])[] {
  const ranges: (number | [number, number])[] = [];
  let index = 0;
  while (index < ids.length) {
    let end = index + 1;
    while (end < ids.length && ids[end] === ids[end - 1]! + 1) end += 1;
    if (end - index >= RUN_LENGTH_MIN) ranges.push([ids[index]!, ids[end - 1]!]);
    else ranges.push(...ids.slice(index, end));
    index = end;
  }
  return ranges;
}
