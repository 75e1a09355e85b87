/** What the bus is told about a transfer that has moved its bytes. */
import type { Clock } from '../../clock.ts';
import type { EventBus } from '../../observability/events.ts';

export function reportTransfer(
  to: { readonly clock: Clock; readonly bus: EventBus },
  event: 'mp.store.end' | 'mp.retrieve.end',
  of: {
    readonly requestId: string;
    readonly tokenCount: number;
    readonly sizeBytes: number;
    /** When its (first) request began, on the precise clock. */
    readonly startMs: number;
  },
): void {
  const { requestId, tokenCount, sizeBytes: bytes, startMs } = of;
  const seconds = (to.clock.preciseMs() - startMs) / 1000;
  to.bus.publish(event, { requestId, tokenCount, bytes, seconds });
}
