/**
 * A map from hashes to values that never holds up the event loop, however large it is.
 *
 * A `Map` that outgrows its table builds a new one at once: 25 to 50 ms at 262,144 entries, and
 * again on the way down. So this is a tree of small ones: a leaf that grows too large becomes a
 * branch of 64 leaves. A step costs about 0.3 ms. Branches stay until the map is dropped.
 */

const LEAF_ENTRY_COUNT_MAX = 1024;
const BRANCH_BITS = 6;
const BRANCH_MASK = 2 ** BRANCH_BITS - 1;
/** As deep as the 32 bits of `mix` reach; beyond that leaves grow. */
const DEPTH_MAX = 5;

interface Node<V> {
  /** Empty in a branch. */
  values: Map<string, V>;
  parts: readonly Node<V>[] | null;
}

export class SplitMap<V> {
  readonly #root: Node<V> = leaf();
  #size = 0;

  get size(): number {
    return this.#size;
  }

  get(hash: string): V | undefined {
    return this.#leafOf(hash).values.get(hash);
  }

  has(hash: string): boolean {
    return this.#leafOf(hash).values.has(hash);
  }

  set(hash: string, value: V): void {
    let depth = 0;
    let node = this.#root;
    for (let bits = mix(hash); node.parts; bits >>>= BRANCH_BITS) {
      node = node.parts[bits & BRANCH_MASK] as Node<V>;
      depth += 1;
    }
    const { values } = node;
    const before = values.size;
    values.set(hash, value);
    this.#size += values.size - before;
    if (values.size > LEAF_ENTRY_COUNT_MAX && depth < DEPTH_MAX) split(node, depth);
  }

  delete(hash: string): boolean {
    const isDeleted = this.#leafOf(hash).values.delete(hash);
    if (isDeleted) this.#size -= 1;
    return isDeleted;
  }

  #leafOf(hash: string): Node<V> {
    let node = this.#root;
    for (let bits = mix(hash); node.parts; bits >>>= BRANCH_BITS) {
      node = node.parts[bits & BRANCH_MASK] as Node<V>;
    }
    return node;
  }
}

function leaf<V>(): Node<V> {
  return { values: new Map(), parts: null };
}

function split<V>(node: Node<V>, depth: number): void {
  const parts = Array.from({ length: BRANCH_MASK + 1 }, () => leaf<V>());
  for (const [hash, value] of node.values) {
    const part = parts[(mix(hash) >>> (depth * BRANCH_BITS)) & BRANCH_MASK] as Node<V>;
    part.values.set(hash, value);
  }
  node.values = new Map();
  node.parts = parts;
}

/** Of the last characters; hashes differ in all of them. */
function mix(hash: string): number {
  let bits = 0x811c9dc5;
  for (let i = Math.max(0, hash.length - 8); i < hash.length; i += 1) {
    bits = Math.imul(bits ^ hash.charCodeAt(i), 0x01000193);
  }
  return (bits ^ (bits >>> 15)) >>> 0;
}
