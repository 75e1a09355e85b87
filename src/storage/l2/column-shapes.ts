/**
 * How large the objects of a rank are, and what their bytes mean: what to ask slower stores for.
 *
 * Pipeline stages of one model have different layers. What a stage has stored or read here is known
 * exactly; before that, the layout of the newest worker has to do, and a stage that differs from it
 * gets no hits until its engine has stored once (spec engine 9.4).
 */
import type { Namespace, NamespaceTable } from '../../core/namespaces.ts';
import type { GroupRule, ObjectShape } from '../l1-manager.ts';

/** Ranks and object groups of all models; the oldest is forgotten. */
const COLUMN_COUNT_MAX = 16_384;

export class ColumnShapes {
  readonly #namespaces: NamespaceTable;
  readonly #byName = new Map<string, ObjectShape>();
  /** What has been learned from a namespace last: nearly every store says the same again. */
  readonly #latest = new WeakMap<Namespace, ObjectShape>();

  constructor(namespaces: NamespaceTable) {
    this.#namespaces = namespaces;
  }

  /** The objects of a namespace that an engine uses now have this shape. */
  learn(namespaceId: number, shape: ObjectShape): void {
    const namespace = this.#namespaces.describe(namespaceId);
    if (this.#latest.get(namespace) === shape) return;
    this.#latest.set(namespace, shape);
    const name = nameOf(namespace);
    this.#byName.delete(name);
    this.#byName.set(name, shape);
    if (this.#byName.size <= COLUMN_COUNT_MAX) return;
    for (const oldest of this.#byName.keys()) {
      this.#byName.delete(oldest);
      return;
    }
  }

  /** One that readers under this rule understand; null = none is known. */
  shapeOf(namespace: Namespace, { shape, layoutTags }: GroupRule): ObjectShape | null {
    const learned = this.#byName.get(nameOf(namespace));
    return learned && layoutTags.has(learned.layoutTag) ? learned : (shape ?? null);
  }
}

/** Of all tenants. */
function nameOf({ modelName, worldSize, workerId, objectGroupId }: Namespace): string {
  return `${worldSize}/${workerId}/${objectGroupId}/${modelName}`;
}
