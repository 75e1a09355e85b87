/**
 * `native_plugin`: a store of the user's own in another language, as a Node-API addon.
 *
 * The peer calls Python objects here that have an event descriptor and `submit_batch_*` methods.
 * Nothing of that can be loaded into Node; what can is an addon (C, C++, Rust, Go, …) whose class
 * has the same methods as a JavaScript plugin.
 */
import type { L2BackendType } from '../backend.ts';
import { openPlugin, PLUGIN_KEYS, pluginCapacityBytes } from '../plugin-module.ts';

export const backendType: L2BackendType = {
  typeName: 'native_plugin',
  about: "A store of the user's own: a class in a Node-API addon.",
  keys: PLUGIN_KEYS,
  capacityBytes: pluginCapacityBytes,
  open: (values, context) => openPlugin('native_plugin', values, context),
};
