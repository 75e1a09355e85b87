/**
 * What the core knows about a namespace (model, kv_rank, object group, salt): numbers, no names.
 *
 *   namespace id -> scope   all namespaces whose objects of one chunk form a family
 *                   scope -> tenant   the cache salt, for byte counts and isolated eviction
 *                -> count   objects under the id; src/core/namespaces.ts reuses ids with count 0
 *
 *   NAMESPACE  +0 u32 scope  +4 u32 objectCount  +8 u32 isDefined     (12 bytes)
 *   SCOPE      u32 tenant                                             (4 bytes)
 *   TENANT     +0 u64 units of arena memory under keys of the tenant
 *              +8 u64 units that it should not exceed, plus 1; 0 = no limit    (16 bytes)
 *
 * `src/core/namespaces.ts` interns the names and bounds their number.
 */
import { unitsToBytes } from './address-space';
import { reserveRegion } from './memory-map';
import { INVALID_ARGUMENT, SUCCESS } from './result';

const NAMESPACE_SIZE: u32 = 12;
const OBJECT_COUNT: usize = 4;
const IS_DEFINED: usize = 8;
const TENANT_SIZE: u32 = 16;
const LIMIT: usize = 8;

let namespaces: usize = 0;
let scopes: usize = 0;
let tenants: usize = 0;
let idCountMax: u32 = 0;

/** Scopes and tenants have ids of the same range: there are never more of them. */
export function namespaceLayout(countMax: u32): void {
  idCountMax = countMax;
  namespaces = reserveRegion(<u64>NAMESPACE_SIZE * <u64>countMax);
  scopes = reserveRegion(4 * <u64>countMax);
  tenants = reserveRegion(<u64>TENANT_SIZE * <u64>countMax);
}

function namespaceAt(id: u32): usize {
  return namespaces + <usize>id * NAMESPACE_SIZE;
}

function scopeAt(scope: u32): usize {
  return scopes + ((<usize>scope) << 2);
}

function tenantAt(tenant: u32): usize {
  return tenants + ((<usize>tenant) << 4);
}

/** Gives an unused id its meaning. */
export function defineNamespace(id: u32, scope: u32, tenant: u32): i32 {
  if (id >= idCountMax || scope >= idCountMax || tenant >= idCountMax) return INVALID_ARGUMENT;
  const at = namespaceAt(id);
  if (load<u32>(at, OBJECT_COUNT) !== 0) return INVALID_ARGUMENT;
  store<u32>(at, scope);
  store<u32>(at, 1, IS_DEFINED);
  store<u32>(scopeAt(scope), tenant);
  return SUCCESS;
}

export function isNamespace(id: u32): bool {
  return id < idCountMax && load<u32>(namespaceAt(id), IS_DEFINED) !== 0;
}

export function scopeOf(id: u32): u32 {
  return load<u32>(namespaceAt(id));
}

export function tenantOfScope(scope: u32): u32 {
  return load<u32>(scopeAt(scope));
}

/** Objects under the id, or INVALID_ARGUMENT. */
export function namespaceObjectCount(id: u32): i32 {
  if (id >= idCountMax) return INVALID_ARGUMENT;
  return <i32>load<u32>(namespaceAt(id), OBJECT_COUNT);
}

/** Arena units under keys of the tenant; 0 for an unknown one. */
export function tenantUnits(tenant: u32): u64 {
  return tenant < idCountMax ? load<u64>(tenantAt(tenant)) : 0;
}

/** Sets the limit of a tenant; no limit with less than 0. An id keeps it when it is used again. */
export function limitTenant(tenant: u32, bytes: f64): i32 {
  if (tenant >= idCountMax) return INVALID_ARGUMENT;
  const units = Math.min(Math.floor(bytes / unitsToBytes(1)), <f64>u32.MAX_VALUE);
  store<u64>(tenantAt(tenant), bytes >= 0 ? <u64>units + 1 : 0, LIMIT);
  return SUCCESS;
}

/** False for a tenant without a limit. */
export function isTenantOverLimit(tenant: u32): bool {
  if (tenant >= idCountMax) return false;
  const at = tenantAt(tenant);
  const limit = load<u64>(at, LIMIT);
  return limit !== 0 && load<u64>(at) >= limit;
}

/** Forgets all keys at once. Writes only where there were any, to leave fresh pages alone. */
export function noteAllKeysRemoved(): void {
  for (let id: u32 = 0; id < idCountMax; id++) {
    const at = namespaceAt(id);
    if (load<u32>(at, OBJECT_COUNT) === 0) continue;
    store<u32>(at, 0, OBJECT_COUNT);
    store<u64>(tenantAt(tenantOfScope(load<u32>(at))), 0);
  }
}

export function noteKeyAdded(id: u32, units: u32): void {
  const at = namespaceAt(id);
  const tenant = tenantAt(tenantOfScope(load<u32>(at)));
  store<u32>(at, load<u32>(at, OBJECT_COUNT) + 1, OBJECT_COUNT);
  store<u64>(tenant, load<u64>(tenant) + <u64>units);
}

export function noteKeyRemoved(id: u32, units: u32): void {
  const at = namespaceAt(id);
  const tenant = tenantAt(tenantOfScope(load<u32>(at)));
  const objectCount = load<u32>(at, OBJECT_COUNT);
  assert(objectCount > 0, 'a namespace lost an object twice');
  assert(load<u64>(tenant) >= <u64>units, 'a tenant lost bytes twice');
  store<u32>(at, objectCount - 1, OBJECT_COUNT);
  store<u64>(tenant, load<u64>(tenant) - <u64>units);
}
