/** Who asks: what the engine has to know of a client. Set by the door, per client generation. */

export type LayoutRules = 'first-tensor' | 'per-layer';

/** What the client at the other end can bear. */
export interface ClientTraits {
  /** False: the client takes a failed RETRIEVE for a success (vLLM ≤ 0.5.4): strict mode. */
  readonly reportsFailedRetrieve: boolean;
  /** False: the client opens every event handle it gets, so an empty one would break it. */
  readonly acceptsEmptyEvent: boolean;
  /** True: a LOOKUP means the tokens up to the key's end. False: all of them. */
  readonly looksUpToEnd: boolean;
  /** True: FREE_LOOKUP_LOCKS also takes the result of the lookup, if nobody has yet. */
  readonly freeTakesResult: boolean;
  /** True: block ids that are all null mean that the engine has no bytes of that chunk. */
  readonly sendsNullBlocks: boolean;
  /**
   * How the client's servers read its tensors. `first-tensor`: one format for all layers, keys and
   * values of fused heads apart; `per-layer`: a format per layer, fused heads as they are.
   */
  readonly layoutRules: LayoutRules;
  /** False: CPU workers lay their caches out as HND and report NHD. */
  readonly reportsKvLayout: boolean;
}

export interface RequestContext {
  /** One per client connection; never reused while the server runs. */
  readonly connectionId: number;
  readonly client: ClientTraits;
}
