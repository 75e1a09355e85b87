/** The plan of the reference's newest release, where its rules are ours (spec storage 9.1, 17) */
import * as assert from 'uvu/assert';
import { NOT_LOADED, planPrefetch } from '../../../src/storage/l2/prefetch-plan.ts';
import { firstNeededChunk } from '../../../src/storage/window-fold.ts';
import { policyVectors } from '../../support/policy-vectors.ts';
import { suite } from '../../support/suite.ts';

type Rows = readonly string[];

interface Case {
  readonly windows: readonly number[];
  readonly policy: 'prefix' | 'full';
  readonly l1: Readonly<Record<string, Rows>>;
  readonly l2: Readonly<Record<string, Rows>>;
  readonly l2_plan: Readonly<Record<string, Rows>>;
  readonly hit_length_if_all_loads_succeed: number;
  readonly hit_cells_if_all_loads_succeed: Rows;
}

/** Rows of chunks, one row per column, as cells. */
function cellsOf(rows: Rows): Uint8Array {
  const chunkCount = rows[0]?.length ?? 0;
  const cells = new Uint8Array(chunkCount * rows.length);
  for (const [column, row] of rows.entries()) {
    for (let chunk = 0; chunk < chunkCount; chunk += 1) {
      cells[chunk * rows.length + column] = Number(row[chunk]);
    }
  }
  return cells;
}

function rowsOf(cells: ArrayLike<number>, columnCount: number, isSet: (cell: number) => boolean) {
  return Array.from({ length: columnCount }, (_, column) => {
    const row = Array.from({ length: cells.length / columnCount }, (_unused, chunk) =>
      isSet(cells[chunk * columnCount + column] as number) ? '1' : '0',
    );
    return row.join('');
  });
}

suite('storage: plan of a prefetch', (test) => {
  const cases = policyVectors<Case[]>('prefetch_plan_056').filter(
    ({ policy, windows }) => policy === 'prefix' && windows.length > 0,
  );

  test('loads what the reference loads, from where it does', () => {
    assert.ok(cases.length > 30);
    for (const { windows, l1, l2, ...expected } of cases) {
      const empty = expected.hit_cells_if_all_loads_succeed.map((row) => '0'.repeat(row.length));
      const isResident = cellsOf(empty);
      for (const rows of Object.values(l1)) {
        for (const [i, bit] of cellsOf(rows).entries()) if (bit) isResident[i] = 1;
      }
      const ids = Object.keys(l2).sort((a, b) => Number(a) - Number(b));
      const sources = ids.map((id) => cellsOf(l2[id] as Rows));
      const all = Number.POSITIVE_INFINITY;
      const plan = planPrefetch({ isResident, sources, windows }, all);
      assert.is(plan.chunkCount, expected.hit_length_if_all_loads_succeed);
      for (const [source, id] of ids.entries()) {
        const rows = rowsOf(plan.sourceOf, windows.length, (of) => of === source);
        assert.equal(rows, expected.l2_plan[id] ?? empty);
      }
    }
  });

  test('a shorter prefix that is asked for is planned for itself', () => {
    const isResident = new Uint8Array(10);
    const source = new Uint8Array(10).fill(1);
    const plan = planPrefetch({ isResident, sources: [source], windows: [0, 2] }, 3);
    assert.is(plan.chunkCount, 3);
    const rows = rowsOf(plan.sourceOf, 2, (of) => of !== NOT_LOADED);
    assert.equal(rows, ['11100', '01100']);
    assert.is(firstNeededChunk(3, 2), 1);
  });
});
