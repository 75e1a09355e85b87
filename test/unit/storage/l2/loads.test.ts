/** What becomes known of loads that bring nothing. */
import * as assert from 'uvu/assert';
import { KvdError } from '../../../../src/errors.ts';
import { buildL2House } from '../../../support/l2-house.ts';
import { suite } from '../../../support/suite.ts';

suite('loads from L2', (test) => {
  test('objects that were not loaded count once, by their reason', async () => {
    const house = buildL2House({ l2: { loadTimeoutMs: 3000 } });
    const failures: string[] = [];
    house.bus.subscribe('l2.prefetch.failed', ({ reason, countByModel }) =>
      failures.push(`${reason} ${countByModel.get('m')}`),
    );
    const keys = house.keysOf(1, 2);
    house.put(house.store0, keys);
    house.store0.holds.add('load');
    house.prefetch(keys);
    await house.run();
    await house.run(3000);
    assert.equal(failures.splice(0), ['load_timeout 2']);
    house.store0.held[0]!.release();
    house.prefetch(keys);
    await house.run();
    house.store0.held[1]!.timeOut(new KvdError('ERR_L2_TIMEOUT', 'too late'));
    await house.run();
    assert.equal(failures, ['load_timeout 2']);
    house.store0.releaseAll();
    await house.run();
  });
});
