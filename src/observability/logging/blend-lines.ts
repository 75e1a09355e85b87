/** DEBUG lines about CacheBlend (spec observability 7.1): each event, its request, its numbers. */
import type { Subscriber, Subscriptions } from '../event-bus.ts';
import type { EventName } from '../events.ts';
import type { Logger } from '../log.ts';

type BlendEventName = Extract<EventName, `cb.${string}`>;

/** What a line says of each; the compiler sees to it that none is forgotten. */
const TITLES: Readonly<Record<BlendEventName, string>> = {
  'cb.request.start': 'blend request start',
  'cb.request.end': 'blend request end',
  'cb.lookup.start': 'blend lookup start',
  'cb.lookup.end': 'blend lookup end',
  'cb.fingerprint_match.start': 'blend fingerprint match start',
  'cb.fingerprint_match.end': 'blend fingerprint match end',
  'cb.prefix_lookup.start': 'blend prefix lookup start',
  'cb.prefix_lookup.end': 'blend prefix lookup end',
  'cb.coordinator_match.start': 'blend coordinator match start',
  'cb.coordinator_match.end': 'blend coordinator match end',
  'cb.sparse_prefetch.start': 'blend sparse prefetch start',
  'cb.sparse_prefetch.end': 'blend sparse prefetch end',
  'cb.retrieve.submitted': 'blend retrieve submitted',
  'cb.retrieve.start': 'blend retrieve start',
  'cb.retrieve.end': 'blend retrieve end',
  'cb.scatter.start': 'blend scatter start',
  'cb.scatter.end': 'blend scatter end',
  'cb.store_pre_computed.submitted': 'blend store of precomputed chunks submitted',
  'cb.store_pre_computed.start': 'blend store of precomputed chunks start',
  'cb.store_pre_computed.end': 'blend store of precomputed chunks end',
  'cb.store_final.submitted': 'blend final store submitted',
  'cb.store_final.start': 'blend final store start',
  'cb.store_final.end': 'blend final store end',
  'cb.fingerprints.registered': 'blend fingerprints registered',
  'cb.chunks.evicted': 'blend chunks evicted',
};

export function blendLines(log: Logger): Subscriber {
  const logEvent =
    (title: string) =>
    ({ sessionId: requestId, ...numbers }: { readonly sessionId: string }) =>
      log.debug(title, { requestId, ...numbers });
  const entries = Object.entries(TITLES).map(([name, title]) => [name, logEvent(title)]);
  return {
    name: 'BlendLoggingSubscriber',
    subscriptions: Object.fromEntries(entries) as Subscriptions,
  };
}
