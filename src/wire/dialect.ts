/**
 * Client generations.
 *
 * Releases of the client number the operations differently, and the numbers collide: 5 is LOOKUP
 * for one and STORE_Q for the next. A *dialect* is everything that depends on the generation: the
 * number of each operation, the payloads and replies that changed, what such a client can bear
 * (`ClientTraits`), and how a failure is told to it. One dialect is one file in `dialects/`; no
 * other file, and nothing outside this room, knows a number.
 *
 * A connection starts with every dialect that the server offers (`--wire-dialect`: all of them or
 * one), and `dialectOf` names the one that a message belongs to. A dialect added to `DIALECTS`
 * takes its place there, together with the rule of spec wire 10 that tells colliding numbers
 * apart by their payloads. An operation that is named by a text belongs to generations behind
 * those offered and is refused in the form which these understand.
 */
import type { ClientTraits, OperationName } from '../engine/api.ts';
import type { KvdError } from '../errors.ts';
import { DIALECT_A } from './dialects/dialect-a.ts';
import type { Operation } from './requests.ts';

export type DialectName = 'A';

export interface Dialect {
  readonly name: DialectName;
  /** Releases of the client that speak it, for logs and `/status`. */
  readonly releases: string;
  readonly client: ClientTraits;
  readonly operationsById: ReadonlyMap<number, Operation>;
  /** Reply frames without the identity; null = this client is answered by silence. */
  refuse(
    uid: Uint8Array,
    op: Uint8Array,
    operation: Operation,
    error: KvdError,
  ): Uint8Array[] | null;
}

export const DIALECTS: readonly Dialect[] = [DIALECT_A];

export function offeredDialects(choice: 'auto' | DialectName): readonly Dialect[] {
  return choice === 'auto' ? DIALECTS : DIALECTS.filter((dialect) => dialect.name === choice);
}

/** The dialect in which `operationId` has a meaning; the first one when it has none. */
export function dialectOf(candidates: readonly Dialect[], operationId: number): Dialect {
  for (const dialect of candidates) {
    if (dialect.operationsById.has(operationId)) return dialect;
  }
  return candidates[0] as Dialect;
}

/** The number that a client of this generation sends for `name`. */
export function operationIdOf(dialect: Dialect, name: OperationName): number {
  for (const [id, operation] of dialect.operationsById) {
    if (operation.name === name) return id;
  }
  throw new Error(`dialect ${dialect.name} has no operation ${name}`);
}
