/** What a dialect is, and how its table is put together from the operations and their forms. */
import { assert } from '../../assert.ts';
import type { OperationName } from '../../engine/api.ts';
import type { ClientTraits } from '../../engine/client-traits.ts';
import type { KvdError } from '../../errors.ts';
import { type Call, callOf, type Form, type Operation } from '../operation.ts';
import type { FailedCall } from '../reply.ts';
import { type FormTable, OPERATIONS, UNCHANGED_FORMS } from '../requests.ts';

export type DialectName = 'A' | 'B' | 'C';

export interface Dialect {
  readonly name: DialectName;
  /** Releases of the client that speak it, for logs and `/status`. */
  readonly releases: string;
  readonly client: ClientTraits;
  readonly callsById: ReadonlyMap<number, Call>;
  /** Empty where clients know numbers only. */
  readonly callsByText: ReadonlyMap<string, Call>;
  readonly callsByName: ReadonlyMap<OperationName, Call>;
  /** Reply frames without the identity; null = this client is answered by silence. */
  refuse(failed: FailedCall, error: KvdError): Uint8Array[] | null;
}

interface Definition extends Pick<Dialect, 'name' | 'releases' | 'client' | 'refuse'> {
  /** In the order of their ids, which begin with 1. */
  readonly names: readonly OperationName[];
  /** Operations that these clients call by text only. */
  readonly unnumbered?: readonly OperationName[];
  /** How these clients spell a name, when they send it as text; null: they cannot. */
  spell?(name: OperationName): string | null;
  /** Requests that other generations write otherwise. */
  readonly forms: FormTable;
}

export function defineDialect(definition: Definition): Dialect {
  const { names, unnumbered = [], spell, forms, ...rest } = definition;
  const allForms: FormTable = { ...UNCHANGED_FORMS, ...forms };
  const callsById = new Map<number, Call>();
  const callsByText = new Map<string, Call>();
  const callsByName = new Map<OperationName, Call>();
  const add = (name: OperationName, id: number | null) => {
    const text = spell?.(name) ?? null;
    const own = allForms[name] as readonly Form<never>[] | undefined;
    assert(own !== undefined, `dialect ${rest.name} has no form for ${name}`);
    const operation = OPERATIONS[name] as unknown as Operation;
    const call = callOf({ operation, id, label: text ?? name }, own);
    if (id !== null) callsById.set(id, call);
    if (text !== null) callsByText.set(text, call);
    callsByName.set(name, call);
  };
  for (const [index, name] of names.entries()) add(name, index + 1);
  for (const name of unnumbered) add(name, null);
  return { ...rest, callsById, callsByText, callsByName };
}
