/** What clients can bear: those of 0.5.0 to 0.5.2, and those since 0.5.5. */
import type { ClientTraits } from '../../src/engine/client-traits.ts';

export const OLD_CLIENT: ClientTraits = {
  reportsFailedRetrieve: false,
  acceptsEmptyEvent: false,
  looksUpToEnd: false,
  freeTakesResult: false,
  sendsNullBlocks: false,
  layoutRules: 'first-tensor',
  reportsKvLayout: false,
};

export const NEW_CLIENT: ClientTraits = {
  reportsFailedRetrieve: true,
  acceptsEmptyEvent: true,
  looksUpToEnd: true,
  freeTakesResult: true,
  sendsNullBlocks: true,
  layoutRules: 'per-layer',
  reportsKvLayout: true,
};
