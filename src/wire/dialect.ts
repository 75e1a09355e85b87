/**
 * Client generations.
 *
 * Releases of the client number the operations differently, and the numbers collide: 5 is LOOKUP
 * for one and STORE_Q for the next. A *dialect* is everything that depends on the generation: the
 * number or text of each operation, the payloads that changed, what such a client can bear
 * (`ClientTraits`), and how a failure is told to it. One dialect is one file in `dialects/`; no
 * other file, and nothing outside this room, knows a number.
 *
 * Nothing in a message says which dialect it is. A connection starts with every dialect that the
 * server offers (`--wire-dialect`: all of them or one), and `detection.ts` finds out.
 */
import type { OperationName } from '../engine/api.ts';
import type { Dialect, DialectName } from './dialects/define-dialect.ts';
import { DIALECT_A } from './dialects/dialect-a.ts';
import { DIALECT_B } from './dialects/dialect-b.ts';
import { DIALECT_C } from './dialects/dialect-c.ts';
import type { Call } from './operation.ts';

export type { Dialect, DialectName } from './dialects/define-dialect.ts';

/** From the oldest to the newest. */
export const DIALECTS: readonly Dialect[] = [DIALECT_A, DIALECT_B, DIALECT_C];

export type DialectChoice = 'auto' | DialectName;

export function offeredDialects(choice: DialectChoice): readonly Dialect[] {
  return choice === 'auto' ? DIALECTS : DIALECTS.filter((dialect) => dialect.name === choice);
}

export function dialectNamed(name: DialectName): Dialect {
  return DIALECTS.find((dialect) => dialect.name === name) as Dialect;
}

/** How a client of this generation calls `name`. Throws when it cannot. */
export function callNamed<N extends OperationName>(dialect: Dialect, name: N): Call<N> {
  const call = dialect.callsByName.get(name);
  if (!call) throw new Error(`dialect ${dialect.name} has no operation ${name}`);
  return call as unknown as Call<N>;
}
