/** `plugin`: a store of the user's own, a class in a JavaScript module. */
import type { L2BackendType } from '../backend.ts';
import { openPlugin, PLUGIN_KEYS, pluginCapacityBytes } from '../plugin-module.ts';

export const backendType: L2BackendType = {
  typeName: 'plugin',
  about: "A store of the user's own: a class in a JavaScript module.",
  keys: {
    ...PLUGIN_KEYS,
    config_class_name: {
      kind: 'text',
      fallback: '',
      about: 'Without effect: a class gets adapter_params as they are.',
    },
  },
  capacityBytes: pluginCapacityBytes,
  open: (values, context) => openPlugin('plugin', values, context),
};
