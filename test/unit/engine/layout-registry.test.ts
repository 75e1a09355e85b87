import * as assert from 'uvu/assert';
import type { LayoutRules } from '../../../src/engine/client-traits.ts';
import { type LayoutOwner, LayoutRegistry } from '../../../src/engine/layout-registry.ts';
import { NO_WINDOW } from '../../../src/storage/window-fold.ts';
import { suite } from '../../support/suite.ts';

function ownerOf(layoutTag: number, layoutRules: LayoutRules): LayoutOwner {
  const object = {
    objectGroupId: 0,
    windowChunks: NO_WINDOW,
    isAuxiliary: false,
    memoryLayout: { shapes: [], dtypes: [] },
    objectSizeBytes: 64,
    layoutText: String(layoutTag),
    layoutTag,
  };
  const layout = { isMla: false, objectGroups: [object] };
  return { modelName: 'm', worldSize: 1, engineType: 'vllm', layoutRules, layout };
}

function canRead(registry: LayoutRegistry, layoutRules?: LayoutRules): number[] {
  const [rule] = registry.find('m', 1, layoutRules)?.groupRules ?? [];
  return [1, 2, 3].filter((tag) => rule?.layoutTags.has(tag));
}

suite('layout registry', (test) => {
  test('each generation sees what its own workers can read', () => {
    const registry = new LayoutRegistry();
    registry.register(ownerOf(1, 'first-tensor'));
    registry.register(ownerOf(2, 'per-layer'));
    registry.register(ownerOf(3, 'per-layer'));
    assert.equal(canRead(registry, 'first-tensor'), [1]);
    assert.equal(canRead(registry, 'per-layer'), [2, 3]);
    assert.equal(canRead(registry), [1, 2, 3]);
  });

  test('a generation without workers sees what any worker can read', () => {
    const registry = new LayoutRegistry();
    registry.register(ownerOf(1, 'first-tensor'));
    assert.equal(canRead(registry, 'per-layer'), [1]);
  });

  test('a layout goes with its last owner, the model with the last of all', () => {
    const registry = new LayoutRegistry();
    const [first, second] = [ownerOf(1, 'first-tensor'), ownerOf(1, 'first-tensor')];
    const other = ownerOf(2, 'per-layer');
    for (const owner of [first, second, other]) registry.register(owner);
    assert.is(registry.unregister(first), false);
    assert.equal(canRead(registry, 'first-tensor'), [1]);
    assert.is(registry.unregister(second), false);
    assert.equal(canRead(registry, 'first-tensor'), [2]);
    assert.is(registry.unregister(other), true);
    assert.is(registry.find('m', 1), undefined);
    assert.is(registry.unregister(other), false);
  });

  test('the layout is that of the newest worker that is left', () => {
    const registry = new LayoutRegistry();
    const older = ownerOf(1, 'per-layer');
    const object = older.layout.objectGroups[0]!;
    const newer: LayoutOwner = {
      ...older,
      engineType: 'sglang',
      layout: { isMla: false, objectGroups: [object, { ...object, objectGroupId: 1 }] },
    };
    registry.register(older);
    registry.register(newer);
    assert.equal(registry.find('m', 1)?.objectGroupIds, [0, 1]);
    registry.unregister(newer);
    assert.equal(registry.find('m', 1)?.objectGroupIds, [0]);
    assert.equal(canRead(registry), [1]);
    assert.is(registry.find('m', 1)?.isVllm, true);
  });

  test('a worker that is replaced is counted out after its successor was counted in', () => {
    const registry = new LayoutRegistry();
    const [before, after] = [ownerOf(1, 'first-tensor'), ownerOf(2, 'per-layer')];
    registry.register(before);
    registry.register(after);
    assert.is(registry.unregister(before), false);
    for (const rules of ['first-tensor', 'per-layer', undefined] as const) {
      assert.equal(canRead(registry, rules), [2]);
    }
  });
});
