/**
 * Spans of requests (spec observability 8), as `--enable-tracing` sends them:
 *
 *   request                         from the first that is heard of a session to its end
 *    ├─ mp.lookup_prefetch          LOOKUP until somebody has the result
 *    ├─ mp.retrieve, mp.store       each transfer by its id; they may overlap
 *    └─ timeout                     no length, failed
 *
 * A session that ends while a transfer runs ends with it. Attributes have the names of the
 * reference and their own types.
 */
import type { Subscriber } from '../event-bus.ts';
import type { EventCatalogue } from '../events.ts';
import type { SpanAttributes } from './span-sink.ts';
import { SpanTree, type SpanTreeOptions } from './span-tree.ts';

const SCOPE = 'lmcache_mp.server';
const LOOKUP = 'mp.lookup_prefetch';

type Start = EventCatalogue['mp.store.start' | 'mp.retrieve.start'];
type StoreEnd = EventCatalogue['mp.store.end'];
type RetrieveEnd = EventCatalogue['mp.retrieve.end'];
type LookupEnd = EventCatalogue['mp.lookup_prefetch.end'];

export function mpSpans(options: SpanTreeOptions): Subscriber {
  const tree = new SpanTree(SCOPE, 'request', options);
  const transferBegins = ({ sessionId }: { sessionId: string }, atSeconds: number) =>
    tree.begin(sessionId, atSeconds);
  return {
    name: 'MPServerTracingSubscriber',
    subscriptions: {
      'mp.request.start': ({ sessionId }, at) => tree.openRoot(sessionId, at),
      'mp.request.end': ({ sessionId }, at) => tree.closeRoot(sessionId, at),
      'mp.lookup_prefetch.start': ({ sessionId }, atSeconds) =>
        tree.openChild(sessionId, { key: LOOKUP, name: LOOKUP, atSeconds, attributes: {} }),
      'mp.lookup_prefetch.end': (end, atSeconds) => endLookup(tree, end, atSeconds),
      'mp.store.submitted': transferBegins,
      'mp.retrieve.submitted': transferBegins,
      'mp.store.start': (start, at) => startTransfer(tree, 'mp.store', start, at),
      'mp.retrieve.start': (start, at) => startTransfer(tree, 'mp.retrieve', start, at),
      'mp.store.end': (end, at) => {
        endTransfer(tree, end, at, { stored_count: end.storedCount });
      },
      'mp.retrieve.end': (end, at) => {
        const { retrievedCount, cacheSalt } = end;
        endTransfer(tree, end, at, { retrieved_count: retrievedCount, cache_salt: cacheSalt });
      },
      'timeout.raised': ({ sessionId, exceptionType, message }, atSeconds) => {
        const attributes = { exception_type: exceptionType, message };
        tree.mark(sessionId, 'timeout', { atSeconds, attributes, error: message });
      },
    },
    shutdown: () => tree.close(),
  };
}

function startTransfer(tree: SpanTree, name: string, start: Start, atSeconds: number): void {
  const { sessionId, transferId, device, engineId, modelName } = start;
  const attributes = { device, engine_id: engineId, model_name: modelName };
  tree.openChild(sessionId, { key: `${transferId}`, name, atSeconds, attributes });
}

function endTransfer(
  tree: SpanTree,
  end: StoreEnd | RetrieveEnd,
  atSeconds: number,
  outcome: SpanAttributes,
): void {
  const { sessionId, transferId, totalBytes, error } = end;
  const attributes = { ...outcome, total_bytes: totalBytes, ...(error && { error }) };
  tree.closeChild(sessionId, `${transferId}`, { atSeconds, attributes, error });
  tree.finish(sessionId, atSeconds);
}

function endLookup(tree: SpanTree, end: LookupEnd, atSeconds: number): void {
  const { sessionId, foundCount, requestedTokens, hitTokens, modelName, cacheSalt, error } = end;
  const attributes = {
    ...{ found_count: foundCount, requested_tokens: requestedTokens, hit_tokens: hitTokens },
    ...{ model_name: modelName, cache_salt: cacheSalt },
    ...(error && { error }),
  };
  tree.closeChild(sessionId, LOOKUP, { atSeconds, attributes, error });
  if (error) return;
  tree.setRootAttributes(sessionId, {
    hit_tokens: hitTokens,
    requested_tokens: requestedTokens,
    hit_rate: requestedTokens > 0 ? hitTokens / requestedTokens : 0,
  });
}
