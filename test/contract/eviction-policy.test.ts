import { openCoreParts } from '../support/core-parts.ts';
import { evictionPolicyContract } from './eviction-policy.ts';

const parts = openCoreParts(4096);

evictionPolicyContract({ parts, name: 'LRU', kind: 1, section: 'lru' });
evictionPolicyContract({ parts, name: 'IsolatedLRU', kind: 2, section: 'isolated_lru' });
evictionPolicyContract({ parts, name: 'ARC', kind: 3, section: 'arc' });
evictionPolicyContract({ parts, name: 'S3FIFO', kind: 4 });

evictionPolicyContract({
  parts,
  name: 'noop',
  kind: 0,
  section: 'noop',
  skip: [
    {
      reason: 'it evicts nothing, so it names no family',
      tests: [
        'a walk names every family once, and looking changes nothing',
        'a family that comes again or is used is still one family',
        'a walk goes on behind a family that leaves while it is next',
        'a family that is placed again or reserved is tracked once',
        'used families are granted in the end, each once, and stay until they are removed',
        'a family that returns after its eviction is a family like any other',
        'a walk that is over stays over until it begins again',
      ],
    },
  ],
});
