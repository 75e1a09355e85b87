/** Operations as clients of 0.5.0 call them. */
import type { OperationName } from '../../src/engine/api.ts';
import { callNamed, dialectNamed } from '../../src/wire/dialect.ts';
import type { Call } from '../../src/wire/operation.ts';

const DIALECT = dialectNamed('A');

export function callA<N extends OperationName>(name: N): Call<N> {
  return callNamed(DIALECT, name);
}

export function idA(name: OperationName): number {
  return callA(name).id as number;
}
