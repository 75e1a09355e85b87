/**
 * Spans of CacheBlend (spec observability 8; blend):
 *
 *   cb.request
 *    ├─ cb.lookup
 *    │   └─ cb.fingerprint_match, cb.prefix_lookup, cb.coordinator_match, cb.sparse_prefetch
 *    ├─ cb.retrieve
 *    │   └─ cb.scatter
 *    ├─ cb.store_pre_computed, cb.store_final
 *    └─ cb.fingerprints.registered, cb.chunks.evicted          no length
 *
 * A request that retrieves stores its final chunks afterwards, so it ends with that store, however
 * often the engine has said before that it is over.
 */
import type { Subscriber } from '../event-bus.ts';
import type { EventCatalogue, EventName } from '../events.ts';
import type { SpanAttributes } from './span-sink.ts';
import { SpanTree, type SpanTreeOptions } from './span-tree.ts';

const SCOPE = 'lmcache_mp.blend';

interface OfSession {
  readonly sessionId: string;
}
type SpanName =
  Extract<EventName, `cb.${string}.start`> extends `${infer Name}.start` ? Name : never;

const PARENTS: Readonly<Partial<Record<SpanName, readonly string[]>>> = {
  'cb.fingerprint_match': ['cb.lookup'],
  'cb.prefix_lookup': ['cb.lookup'],
  'cb.coordinator_match': ['cb.lookup'],
  'cb.sparse_prefetch': ['cb.lookup'],
  'cb.scatter': ['cb.retrieve'],
};

export function blendSpans(options: SpanTreeOptions): Subscriber {
  const tree = new SpanTree(SCOPE, 'cb.request', options);
  const begin = ({ sessionId }: OfSession, at: number) => tree.begin(sessionId, at);
  const start = (name: SpanName) => (event: OfSession, atSeconds: number) => {
    const parents = PARENTS[name] ?? [];
    const attributes = attributesOf(event);
    tree.openChild(event.sessionId, { key: name, name, parents, atSeconds, attributes });
  };
  const end = (name: SpanName) => (event: OfSession, atSeconds: number) => {
    const attributes = attributesOf(event);
    const error = attributes['success'] === false ? 'it did not succeed' : null;
    tree.closeChild(event.sessionId, name, { atSeconds, attributes, error });
  };
  /** Of what `begin` has announced. */
  const finish = (name: SpanName) => (event: OfSession, atSeconds: number) => {
    end(name)(event, atSeconds);
    tree.finish(event.sessionId, atSeconds);
  };
  const mark = (name: string) => (event: OfSession, atSeconds: number) =>
    tree.mark(event.sessionId, name, { atSeconds, attributes: attributesOf(event) });
  return {
    name: 'BlendTracingSubscriber',
    subscriptions: {
      'cb.request.start': ({ sessionId }, at) => tree.openRoot(sessionId, at),
      'cb.request.end': ({ sessionId }, at) => tree.closeRoot(sessionId, at),
      'cb.lookup.start': start('cb.lookup'),
      'cb.lookup.end': (event, at) => {
        end('cb.lookup')(event, at);
        tree.setRootAttributes(event.sessionId, ratesOf(event));
      },
      'cb.fingerprint_match.start': start('cb.fingerprint_match'),
      'cb.fingerprint_match.end': end('cb.fingerprint_match'),
      'cb.prefix_lookup.start': start('cb.prefix_lookup'),
      'cb.prefix_lookup.end': end('cb.prefix_lookup'),
      'cb.coordinator_match.start': start('cb.coordinator_match'),
      'cb.coordinator_match.end': end('cb.coordinator_match'),
      'cb.sparse_prefetch.start': start('cb.sparse_prefetch'),
      'cb.sparse_prefetch.end': end('cb.sparse_prefetch'),
      'cb.retrieve.submitted': (event, at) => {
        begin(event, at);
        tree.await(event.sessionId, true);
      },
      'cb.retrieve.start': start('cb.retrieve'),
      'cb.retrieve.end': finish('cb.retrieve'),
      'cb.scatter.start': start('cb.scatter'),
      'cb.scatter.end': end('cb.scatter'),
      'cb.store_pre_computed.submitted': begin,
      'cb.store_pre_computed.start': start('cb.store_pre_computed'),
      'cb.store_pre_computed.end': finish('cb.store_pre_computed'),
      'cb.store_final.submitted': (event, at) => {
        begin(event, at);
        tree.await(event.sessionId, false);
      },
      'cb.store_final.start': start('cb.store_final'),
      'cb.store_final.end': finish('cb.store_final'),
      'cb.fingerprints.registered': mark('cb.fingerprints.registered'),
      'cb.chunks.evicted': mark('cb.chunks.evicted'),
    },
    shutdown: () => tree.close(),
  };
}

/** What an event says, but for the session, under the names of the reference. */
function attributesOf(event: OfSession): SpanAttributes {
  const { sessionId: _, ...said } = event;
  return Object.fromEntries(
    Object.entries(said).map(([name, value]) => [
      name.replaceAll(/[A-Z]/g, (letter) => `_${letter.toLowerCase()}`),
      value as SpanAttributes[string],
    ]),
  );
}

function ratesOf(event: EventCatalogue['cb.lookup.end']): SpanAttributes {
  const { hitTokens, requestedTokens, prefixHits } = event;
  const { prefixHitTokens = 0, segmentedPrefixHitTokens = 0, nonPrefixHitTokens = 0 } = event;
  const rate = (tokens: number) => tokens / (requestedTokens || 1);
  return {
    hit_tokens: hitTokens,
    requested_tokens: requestedTokens,
    hit_rate: rate(hitTokens),
    prefix_hits: prefixHits,
    prefix_hit_tokens: prefixHitTokens,
    segmented_prefix_hit_tokens: segmentedPrefixHitTokens,
    non_prefix_hit_tokens: nonPrefixHitTokens,
    prefix_hit_rate: rate(prefixHitTokens),
    segmented_prefix_hit_rate: rate(segmentedPrefixHitTokens),
    non_prefix_hit_rate: rate(nonPrefixHitTokens),
  };
}
