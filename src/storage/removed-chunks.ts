/**
 * Tells the bus which chunks L1 holds no more: what the core has recorded (removal-records.ts),
 * with names in place of numbers. One event per model, world size and tenant of a call.
 */
import type { NamespaceTable } from '../core/namespaces.ts';
import type { ObjectTable } from '../core/object-table.ts';
import type { EventBus } from '../observability/event-bus.ts';

/** Followers keep an event as one record; many removals at once are cut into several. */
const HASH_COUNT_MAX = 1024;

export function publishRemovals(of: {
  readonly table: ObjectTable;
  readonly namespaces: NamespaceTable;
  readonly bus: EventBus;
}): void {
  const { table, namespaces, bus } = of;
  table.removals.listen({
    removed({ hashes, namespaceIds }) {
      const byScope = new Map<number, { namespaceId: number; hashes: Uint8Array[] }>();
      for (const [i, namespaceId] of namespaceIds.entries()) {
        const { scope } = namespaces.describe(namespaceId);
        const known = byScope.get(scope);
        if (known) known.hashes.push(hashes[i] as Uint8Array);
        else byScope.set(scope, { namespaceId, hashes: [hashes[i] as Uint8Array] });
      }
      for (const { namespaceId, hashes: all } of byScope.values()) {
        const { modelName, worldSize, cacheSalt } = namespaces.describe(namespaceId);
        for (let first = 0; first < all.length; first += HASH_COUNT_MAX) {
          const part = all.slice(first, first + HASH_COUNT_MAX);
          bus.publish('l1.chunks.removed', { modelName, worldSize, cacheSalt, hashes: part });
        }
      }
    },
    cleared: () => bus.publish('l1.chunks.cleared', {}),
    lost: () => bus.publish('l1.chunks.lost', {}),
  });
}
