import { openCoreParts } from '../support/core-parts.ts';
import { evictionPolicyContract } from './eviction-policy.ts';

const { parts } = openCoreParts(4096);

evictionPolicyContract({ parts, name: 'lru', kind: 1 });

evictionPolicyContract({
  parts,
  name: 'noop',
  kind: 0,
  skip: [
    {
      reason: 'it evicts nothing, so it names no family',
      tests: [
        'a walk names every family once, and looking changes nothing',
        'a family that comes again or is used is still one family',
        'a walk goes on behind a family that leaves while it is next',
        'a walk that is over stays over until it begins again',
      ],
    },
  ],
});
