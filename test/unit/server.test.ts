/** What the composition root undoes, whatever fails on the way */
import * as assert from 'uvu/assert';
import { Closers } from '../../src/house/closers.ts';
import { RecordingLogger } from '../support/recording-logger.ts';
import { rejects } from '../support/rejects.ts';
import { suite } from '../support/suite.ts';
import { VirtualClock } from '../support/virtual-clock.ts';

suite('closers', (test) => {
  test('the latest closes first, and each only once', async () => {
    const closers = new Closers(new RecordingLogger());
    const closed: string[] = [];
    closers.add(async () => closed.push('first'));
    closers.add(() => closed.push('second'));
    await closers.closeAll();
    await closers.closeAll();
    assert.equal(closed, ['second', 'first']);
  });

  test('all of them share the time for a stop, which begins with the first', async () => {
    const clock = new VirtualClock();
    const closers = new Closers(new RecordingLogger(), clock);
    const left: number[] = [];
    closers.add(() => left.push(closers.leftMsOf(1000)));
    closers.add(() => {
      left.push(closers.leftMsOf(1000));
      clock.advance(1500);
    });
    closers.add(() => {
      left.push(closers.leftMsOf(1000));
      clock.advance(400);
    });
    clock.advance(5000);
    await closers.closeAll();
    assert.equal(left, [1000, 600, 0]);
  });

  test('one that fails keeps none from closing, and the first failure is reported', async () => {
    const log = new RecordingLogger();
    const closers = new Closers(log);
    const closed: string[] = [];
    closers.add(() => closed.push('first'));
    closers.add(() => {
      throw new Error('thrown later');
    });
    closers.add(() => closed.push('second'));
    closers.add(() => Promise.reject(new Error('rejected at first')));
    await rejects(closers.closeAll(), /rejected at first/);
    assert.equal(closed, ['second', 'first']);
    const failures = log.lines.map(({ level, message }) => `${level}: ${message}`);
    assert.is(failures.length, 2);
    assert.match(failures[0]!, /^error: .*rejected at first/);
    assert.match(failures[1]!, /^error: .*thrown later/);
  });
});
