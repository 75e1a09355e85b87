/** From a checked `--l2-adapter` to an adapter that works. */
import { L2Adapter } from './adapter.ts';
import { type AdapterSpec, readAdapterSpec, type SpecReader } from './adapter-spec.ts';
import type { L2Backend, L2BackendContext } from './backend.ts';
import type { Serde } from './serde/serde.ts';
import { withSerde } from './serde/serde-backend.ts';

export interface OpenOptions extends Omit<L2BackendContext, 'openInner'> {
  /** Never used before. */
  readonly id: number;
  /** For adapters that wrap another one. */
  readonly reader: SpecReader;
}

export interface OpenedAdapter {
  readonly adapter: L2Adapter;
  /** Asked when a worker registers whether its objects can be transformed. */
  readonly serde: Serde | null;
}

/** Rejects with `ERR_CONFIG`. The caller adds its listeners and then calls `start`. */
export async function openAdapter(spec: AdapterSpec, options: OpenOptions): Promise<OpenedAdapter> {
  const { id, reader, clock, ...rest } = options;
  const log = options.log.child(spec.type.typeName);
  const context: L2BackendContext = {
    ...rest,
    log,
    clock,
    openInner: (given) => openInner(given, spec, reader, context),
  };
  const serde = spec.serde && (await spec.serde.type.open(spec.serde.values, spec.serde.where));
  const inner = await spec.type.open(spec.values, context);
  const adapter = new L2Adapter({
    id,
    typeName: spec.type.typeName,
    backend: serde ? withSerde(inner, serde) : inner,
    settings: spec.settings,
    capacityBytes: spec.capacityBytes,
    shown: spec.shown,
    clock,
    log,
  });
  return { adapter, serde };
}

/** The keys that all adapters have are those of the outer one. */
function openInner(
  given: unknown,
  outer: AdapterSpec,
  reader: SpecReader,
  context: L2BackendContext,
): Promise<L2Backend> {
  const spec = readAdapterSpec(given, `inner adapter of '${outer.type.typeName}'`, reader);
  return spec.type.open(spec.values, context);
}
