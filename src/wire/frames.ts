/**
 * The frames of a message, as the ROUTER socket sees and sends them.
 *
 *   request    [identity, uid, op, payload 0, … payload n − 1]
 *   reply      [identity, uid, op, response?]
 *   failure    [identity, uid, op, neutral value, error map]     (reply.ts)
 *
 *   identity   chosen by ZMQ per connection (5 bytes) or by the client
 *   uid        the client's number of the request: opaque, echoed byte for byte
 *   op         msgpack integer, echoed byte for byte
 *   payload    one msgpack value each
 */
import { MsgpackReader } from './msgpack.ts';

/** Index of the first payload behind identity, uid and op. */
export const FIRST_PAYLOAD = 3;

/** An operation id, or what stands in its place. */
export type OperationFrame = number | 'text' | 'empty' | 'invalid';

const reader = new MsgpackReader();

export function readOperationFrame(frame: Uint8Array): OperationFrame {
  const first = frame[0];
  if (first === undefined) return 'empty';
  if (first <= 0x7f) return frame.length === 1 ? first : 'invalid';
  reader.reset(frame);
  const kind = reader.peek();
  if (kind === 'str') return 'text';
  if (kind !== 'int') return 'invalid';
  try {
    const id = reader.readInteger();
    return reader.remaining === 0 && typeof id === 'number' && id >= 0 ? id : 'invalid';
  } catch {
    // A truncated integer names no operation; the caller says so to the client.
    return 'invalid';
  }
}

/** Bytes of all frames together. */
export function sizeOfFrames(frames: readonly Uint8Array[]): number {
  let size = 0;
  for (const frame of frames) size += frame.length;
  return size;
}
