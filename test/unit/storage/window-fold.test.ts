/** How much of a prompt is cached under windows (spec engine 2.4, storage 2.8) */

import * as assert from 'uvu/assert';
import { countServableChunks, firstNeededChunk } from '../../../src/storage/window-fold.ts';
import { policyVectors } from '../../support/policy-vectors.ts';
import fc from '../../support/property.ts';
import { suite } from '../../support/suite.ts';

interface GroupedFold {
  readonly rows: readonly string[];
  readonly windows: readonly number[];
  readonly hit_length: number;
  readonly retain: readonly string[];
}

/** The older form: one string, `g·(chunks·ranks) + j·ranks + rank`; one window per group. */
interface FlatFold {
  readonly found: string;
  readonly num_chunks: number;
  readonly num_ranks: number;
  readonly windows: readonly number[];
  readonly hit_length: number;
}

/** Rows of `0` and `1`, one per column, as the fold takes them. */
function cellsOf(rows: readonly string[]): Uint8Array {
  const chunkCount = rows[0]?.length ?? 0;
  return Uint8Array.from({ length: chunkCount * rows.length }, (_, i) =>
    Number(rows[i % rows.length]?.[Math.floor(i / rows.length)]),
  );
}

/** The rule as the spec words it: each prefix on its own, without running counts. */
function servableByDefinition(rows: readonly string[], windows: readonly number[]): number {
  for (let length = rows[0]?.length ?? 0; length > 0; length -= 1) {
    const isServable = rows.every((row, i) => {
      const window = windows[i] as number;
      const needed = window > 0 ? Math.min(window, length) : length;
      return row.slice(length - needed, length) === '1'.repeat(needed);
    });
    if (isServable) return length;
  }
  return 0;
}

suite('window fold', (test) => {
  test('hit lengths and kept chunks are those of the reference, with rows per rank', () => {
    for (const { rows, windows, hit_length, retain } of policyVectors<GroupedFold[]>(
      'fold_grouped_056',
    )) {
      assert.is(countServableChunks(cellsOf(rows), windows), hit_length);
      const kept = rows.map((row, i) =>
        Array.from(row, (_, chunk) => {
          const isKept = chunk < hit_length && chunk >= firstNeededChunk(hit_length, windows[i]!);
          return isKept ? '1' : '0';
        }).join(''),
      );
      assert.equal(kept, retain);
    }
  });

  test('hit lengths are those of the reference, with ranks side by side', () => {
    for (const { found, num_chunks, num_ranks, windows, hit_length } of policyVectors<FlatFold[]>(
      'fold_050',
    )) {
      const rows = windows.flatMap((_, group) =>
        Array.from({ length: num_ranks }, (_, rank) =>
          Array.from(
            { length: num_chunks },
            (_, chunk) => found[group * num_chunks * num_ranks + chunk * num_ranks + rank],
          ).join(''),
        ),
      );
      const perRow = windows.flatMap((window) => new Array<number>(num_ranks).fill(window));
      assert.is(countServableChunks(cellsOf(rows), perRow), hit_length);
    }
  });

  test('the longest prefix is found that serves every column', () => {
    const table = fc
      .tuple(fc.nat({ max: 10 }), fc.integer({ min: 1, max: 4 }))
      .chain(([n, width]) =>
        fc.record({
          rows: fc.array(fc.stringMatching(new RegExp(`^[01]{${n}}$`)), {
            minLength: width,
            maxLength: width,
          }),
          windows: fc.array(fc.integer({ min: -1, max: 4 }), {
            minLength: width,
            maxLength: width,
          }),
        }),
      );
    fc.assert(
      fc.property(table, ({ rows, windows }) => {
        const expected = servableByDefinition(rows, windows);
        assert.is(countServableChunks(cellsOf(rows), windows), expected);
      }),
      { numRuns: 2000 },
    );
  });
});
