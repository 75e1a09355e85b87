/** Which L2 adapter a request means (spec http 5.3): the first of a type, else the first of all. */
import { HTTPException } from 'hono/http-exception';
import type { AdapterSummary } from '../storage/l2/adapter-control.ts';
import type { AdapterBackend } from './backend.ts';

export function findAdapter(adapters: AdapterBackend, typeName?: string): AdapterSummary {
  const all = adapters.list();
  const [primary] = all;
  if (!primary) throw new HTTPException(503, { message: 'no L2 adapters configured' });
  const found = typeName === undefined ? primary : all.find((one) => one.typeName === typeName);
  if (found) return found;
  throw new HTTPException(404, { message: `no L2 adapter with type_name='${typeName}'` });
}
