/**
 * Requests that are encoded before they are sent, so that a client costs less than the server that
 * it measures.
 */
import type { KvdClient } from '../../src/client/client.ts';
import type { OperationName, RequestOf } from '../../src/engine/api.ts';
import { callNamed, dialectNamed } from '../../src/wire/dialect.ts';
import { operationFrame } from '../../src/wire/frames.ts';

const TIMEOUT_MS = 60_000;
const dialect = dialectNamed('A');

export interface PreparedCall {
  /** All but the uid. */
  readonly frames: readonly Uint8Array[];
  /** What the response must end with: of `true` and of `[event, true]`, for example, 0xc3. */
  readonly lastByte: number | null;
}

export function prepareCall<N extends OperationName>(
  name: N,
  request: RequestOf<N>,
  lastByte: number | null = null,
): PreparedCall {
  const call = callNamed(dialect, name);
  return { frames: [operationFrame(call), ...call.encodeRequest(request)], lastByte };
}

/** Rejects when the response is not the expected one. */
export async function sendPrepared(
  client: KvdClient,
  { frames, lastByte }: PreparedCall,
): Promise<void> {
  const [, , response] = await client.exchange([client.nextUid(), ...frames], TIMEOUT_MS);
  if (lastByte === null || response?.at(-1) === lastByte) return;
  const hex = response ? Buffer.from(response).toString('hex') : 'nothing';
  throw new Error(`expected a response that ends with ${lastByte.toString(16)}, got ${hex}`);
}
