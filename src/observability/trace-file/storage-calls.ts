/**
 * Calls of the storage room under the reference's names, so that traces are interchangeable:
 *
 *   reserve_write                       keys, layout_desc, mode
 *   finish_write                        keys
 *   submit_prefetch_task                keys, layout_desc, extra_count, external_request_id,
 *                                       policy, skip_l2
 *   read_prefetched_results.__enter__   keys
 *   read_prefetched_results.__exit__    keys
 *   finish_read_prefetched              keys, extra_count
 */
import type { Arguments } from './frames.ts';
import type { LayoutFields, ObjectKeyFields, TraceValue } from './values.ts';

export const STORAGE_PREFIX = 'lmcache.v1.distributed.storage_manager.StorageManager.';

export type StorageOperation =
  | 'reserve_write'
  | 'finish_write'
  | 'submit_prefetch_task'
  | 'read_prefetched_results.__enter__'
  | 'read_prefetched_results.__exit__'
  | 'finish_read_prefetched';

/** Keys whose namespace is shared: thousands of keys have a handful of them. */
export interface CallKey {
  readonly chunkHash: Uint8Array;
  readonly namespace: Omit<ObjectKeyFields, 'chunkHash'>;
}

export interface StorageCall {
  readonly operation: StorageOperation;
  readonly keys: readonly CallKey[];
  /** Of a reservation or a lookup. */
  readonly layout?: LayoutFields;
  /** Readers of a lookup beside the first. */
  readonly extraCount?: number;
}

export function storageQualname({ operation }: StorageCall): string {
  return STORAGE_PREFIX + operation;
}

/** In the order of the reference's parameters. */
export function storageArguments({ operation, keys, layout, extraCount }: StorageCall): Arguments {
  const args = new Map<string, TraceValue>();
  args.set(
    'keys',
    keys.map(({ chunkHash, namespace }) => {
      const { modelName, kvRank, objectGroupId, cacheSalt } = namespace;
      const value = { chunkHash, modelName, kvRank, objectGroupId, cacheSalt };
      return { tag: 'ObjectKey', value } as const;
    }),
  );
  if (layout) args.set('layout_desc', { tag: 'MemoryLayoutDesc', value: layout });
  if (operation === 'reserve_write') args.set('mode', 'new');
  if (extraCount !== undefined) args.set('extra_count', extraCount);
  if (operation === 'submit_prefetch_task') {
    // The storage room does not know whose lookup it is.
    args.set('external_request_id', '');
    args.set('policy', { tag: 'TrimPolicy', value: 'PREFIX' });
    args.set('skip_l2', false);
  }
  return args;
}
