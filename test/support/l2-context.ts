/** Opens L2 backends from JSON, as `--l2-adapter` does. */
import { systemClock } from '../../src/clock.ts';
import { Shim } from '../../src/device/shim.ts';
import type { L2Backend, L2BackendContext, L2BackendType } from '../../src/l2/backend.ts';
import { readConfigKeys } from '../../src/l2/config-keys.ts';
import { SLOT_ALIGN_BYTES } from './l2-objects.ts';
import { silentLogger } from './silent-logger.ts';

export function backendContext(rest: Partial<L2BackendContext> = {}): L2BackendContext {
  return {
    log: silentLogger,
    clock: systemClock,
    alignBytes: SLOT_ALIGN_BYTES,
    lockFile: (descriptor) => Shim.load().lockFile(descriptor),
    openInner: () => Promise.reject(new Error('nothing to wrap')),
    ...rest,
  };
}

export function openBackend(
  type: L2BackendType,
  json: Readonly<Record<string, unknown>>,
  env: Readonly<Record<string, string>> = {},
  context: Partial<L2BackendContext> = {},
): Promise<L2Backend> {
  const values = readConfigKeys(type.keys, json, { where: type.typeName, env });
  return type.open(values, backendContext(context));
}
