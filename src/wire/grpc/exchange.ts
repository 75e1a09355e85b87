/**
 * One call: a request, and what is sent back until the call is over.
 *
 *   open ── message, message, … ── ended ──► over        by the door
 *     └──────────────────────────────────► over        by the client: cancelled, deadline, gone
 *
 * grpc-js treats every call as a stream of messages, of which most have one. A message that has
 * been written counts against the bounds of its client until HTTP/2 has taken it, which a client
 * that does not read can put off for ever; the ledger says whether one more fits.
 */
import type { Metadata, ServerWritableStream } from '@grpc/grpc-js';
import type { OperationName, RequestOf } from '../../engine/api.ts';
import type { Connection } from '../connections.ts';
import type { Call } from '../operation.ts';
import type { MethodTable } from './services.ts';
import type { GrpcStatus } from './status.ts';

export type GrpcCall = ServerWritableStream<Buffer, Buffer>;

export interface Method {
  readonly table: MethodTable;
  /** The operation as dialect C calls it. */
  readonly call: Call;
}

export interface LedgerLimits {
  readonly queueBytesMax: number;
  readonly queueBytesMaxTotal: number;
}

/** Bytes that were written and not taken yet, by client. */
export class ReplyLedger {
  readonly #limits: LedgerLimits;
  readonly #queued = new Map<Connection, number>();
  queuedBytes = 0;

  constructor(limits: LedgerLimits) {
    this.#limits = limits;
  }

  get waitingClientCount(): number {
    return this.#queued.size;
  }

  /**
   * One that alone is larger than the bounds (inline data has gigabytes) fits when nothing else of
   * its client waits, else it could never be sent.
   */
  fits(connection: Connection, sizeBytes: number): boolean {
    const own = this.#queued.get(connection) ?? 0;
    const { queueBytesMax, queueBytesMaxTotal } = this.#limits;
    if (own === 0) return true;
    return own + sizeBytes <= queueBytesMax && this.queuedBytes + sizeBytes <= queueBytesMaxTotal;
  }

  add(connection: Connection, sizeBytes: number): void {
    this.queuedBytes += sizeBytes;
    const own = (this.#queued.get(connection) ?? 0) + sizeBytes;
    if (own === 0) this.#queued.delete(connection);
    else this.#queued.set(connection, own);
  }
}

export class Exchange {
  readonly connection: Connection;
  readonly method: Method;
  /** Null while it has not been read. */
  request: RequestOf<OperationName> | null = null;
  readonly #call: GrpcCall;
  readonly #ledger: ReplyLedger;
  #queuedBytes = 0;
  #isOver = false;
  #onOver: () => void = () => {};

  constructor(call: GrpcCall, connection: Connection, method: Method, ledger: ReplyLedger) {
    this.connection = connection;
    this.method = method;
    this.#call = call;
    this.#ledger = ledger;
    // Both come for every call, in the end; the first when its client gave it up.
    call.once('cancelled', () => this.#over());
    call.once('close', () => this.#over());
  }

  /** Nobody waits for an answer. */
  get isOver(): boolean {
    return this.#isOver || this.#call.cancelled;
  }

  /** Runs when the call is over, whoever ended it. One listener. */
  onOver(listener: () => void): void {
    this.#onOver = listener;
  }

  /** `onTaken`: it is on its way, and another one may follow. Not called when the call is over. */
  send(message: Buffer, onTaken: () => void = () => {}): void {
    this.#queue(message.length);
    this.#call.write(message, () => {
      if (this.#isOver) return;
      this.#queue(-message.length);
      onTaken();
    });
  }

  end(trailers?: Metadata): void {
    this.#call.end(trailers);
  }

  fail({ code, details }: GrpcStatus): void {
    if (this.isOver) return;
    // The stream of grpc-js is told by an error event, which ends it behind what was written.
    this.#call.emit('error', Object.assign(new Error(details), { code, details }));
  }

  #queue(sizeBytes: number): void {
    this.#queuedBytes += sizeBytes;
    this.#ledger.add(this.connection, sizeBytes);
  }

  #over(): void {
    if (this.#isOver) return;
    this.#isOver = true;
    this.#queue(-this.#queuedBytes);
    this.#onOver();
  }
}
