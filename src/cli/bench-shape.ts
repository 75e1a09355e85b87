/**
 * The shape of a KV cache as the reference's tools write it:
 *
 *   (kv_size,NB,BS,NH,HS):dtype:layers[;(…):dtype:layers…]        (2,1024,16,8,128):float16:32
 *
 * kv_size 2 = keys and values, 1 = MLA; NB blocks of BS tokens; NH heads of HS elements. All
 * groups have the same NB and BS, because block ids mean the same for all layers.
 */
import type { CacheGeometry, LayerGroup } from '../client/load/cache-shape.ts';
import { DTYPE_SIZE_BYTES, type DtypeName } from '../device/tensor-wrapper.ts';

const GROUP = /^\((\d+),(\d+),(\d+),(\d+),(\d+)\):([a-z0-9_]+):(\d+)$/;
/** Far above every model; keeps sizes computed from it exact. */
const NUMBER_MAX = 1 << 20;

export type Parsed<T> = { readonly value: T } | { readonly problem: string };

export function isDtype(text: string): text is DtypeName {
  return Object.hasOwn(DTYPE_SIZE_BYTES, text);
}

export function parseShapeSpec(spec: string): Parsed<CacheGeometry> {
  const groups: LayerGroup[] = [];
  const grids = new Set<string>();
  let blockCount = 0;
  let slotsPerBlock = 0;
  for (const text of spec.replaceAll(/\s/g, '').split(';')) {
    const match = GROUP.exec(text);
    if (!match) {
      return problem(`expected '(kv_size,NB,BS,NH,HS):dtype:layers', got '${text}'`);
    }
    const [kvSize, blocks, slots, headCount, headSize] = match.slice(1, 6).map(Number) as Numbers;
    const [dtype = '', layerCount = 0] = [match[6], Number(match[7])];
    const numbers = [blocks, slots, headCount, headSize, layerCount];
    if (!numbers.every((number) => number >= 1 && number <= NUMBER_MAX)) {
      return problem(`expected numbers from 1 to ${NUMBER_MAX}, got '${text}'`);
    }
    if (kvSize !== 1 && kvSize !== 2) return problem(`expected kv_size 1 or 2, got ${kvSize}`);
    if (!isDtype(dtype)) return problem(`unknown dtype '${dtype}'`);
    grids.add(`${blocks},${slots}`);
    [blockCount, slotsPerBlock] = [blocks, slots];
    const itemSizeBytes = DTYPE_SIZE_BYTES[dtype];
    groups.push({ kvSize, headCount, headSize, dtype, itemSizeBytes, layerCount });
  }
  if (grids.size > 1) return problem('expected the same NB and BS in all groups');
  return { value: { blockCount, slotsPerBlock, groups } };
}

type Numbers = [number, number, number, number, number];

function problem(text: string): { readonly problem: string } {
  return { problem: text };
}

/** The spec of a geometry; `blockCount` is for one that left it open. */
export function formatShapeSpec(geometry: CacheGeometry, blockCount: number): string {
  return geometry.groups
    .map(({ kvSize, headCount, headSize, dtype, layerCount }) => {
      const numbers = [kvSize, blockCount, geometry.slotsPerBlock, headCount, headSize];
      return `(${numbers.join()}):${dtype}:${layerCount}`;
    })
    .join(';');
}
