/** When a process that stood still is noticed, and how long what arrives counts as late. */
import * as assert from 'uvu/assert';
import { STALL_MS, StallWatch } from '../../../src/engine/stall-watch.ts';
import { RecordingLogger } from '../../support/recording-logger.ts';
import { suite } from '../../support/suite.ts';
import { VirtualClock } from '../../support/virtual-clock.ts';

function open(clock = new VirtualClock()) {
  const log = new RecordingLogger();
  const door = { isDry: true };
  const watch = new StallWatch({ clock, log, isIntakeDry: () => door.isDry });
  const isLate = () => watch.stalledMs(watch.mark()) > 0;
  return { clock, log, door, watch, isLate };
}

suite('stall watch', (test) => {
  for (const startMs of [0, 2 ** 31, 2 ** 52]) {
    test(`a gap of ${STALL_MS} ms is one, less is none (clock at ${startMs})`, () => {
      const { clock, watch, isLate } = open(new VirtualClock(startMs));
      const mark = watch.mark();
      clock.standStill(STALL_MS - 1);
      assert.equal([watch.stalledMs(mark), isLate()], [0, false]);
      clock.standStill(STALL_MS);
      assert.equal([watch.stalledMs(mark), isLate()], [STALL_MS, true]);
      assert.is(watch.stallCount, 1);
    });
  }

  test('an idle server does not stand still', () => {
    const { clock, log, watch } = open();
    const mark = watch.mark();
    clock.advance(3_600_000);
    assert.is(watch.stalledMs(mark), 0);
    assert.is(watch.stallCount, 0);
    assert.equal(log.lines, []);
  });

  test('it is noticed by whatever comes first, and told once', () => {
    const asked = open();
    const mark = asked.watch.mark();
    asked.clock.standStill(60_000);
    assert.is(asked.watch.stalledMs(mark), 60_000, 'before any tick');
    const ticked = open();
    ticked.clock.standStill(60_000);
    ticked.clock.advance(0);
    for (const { log, clock } of [asked, ticked]) {
      clock.advance(10_000);
      assert.is(log.lines.length, 1);
      assert.ok(log.has(/stood still for 60\.0 s/));
    }
  });

  test('what arrives is late for a second at least, and until the door is dry', () => {
    const { clock, door, isLate } = open();
    door.isDry = false;
    clock.standStill(STALL_MS);
    clock.advance(0);
    clock.advance(5_000);
    assert.is(isLate(), true, 'the door still reads');
    door.isDry = true;
    clock.advance(1_000);
    assert.is(isLate(), false);

    clock.standStill(STALL_MS);
    clock.advance(999);
    assert.is(isLate(), true, 'the kernel may still hold some');
    clock.advance(1_001);
    assert.is(isLate(), false);
  });

  test('what was late stays late when what arrives is in time again', () => {
    const { clock, watch } = open();
    const before = watch.mark();
    clock.standStill(STALL_MS);
    const unread = watch.mark();
    clock.advance(2_000);
    const after = watch.mark();
    assert.equal(
      [before, unread, after].map((mark) => watch.stalledMs(mark)),
      [STALL_MS, STALL_MS, 0],
    );
    clock.standStill(STALL_MS);
    assert.is(watch.stalledMs(after), STALL_MS, 'a second time');
    clock.advance(0);
    clock.standStill(2 * STALL_MS);
    const late = watch.mark();
    assert.equal(
      [before, after, late].map((mark) => watch.stalledMs(mark)),
      [4 * STALL_MS, 3 * STALL_MS, 3 * STALL_MS],
      'may have been sent before both',
    );
  });

  test('a door that is never dry is believed to be busy in the end', () => {
    const { clock, door, isLate } = open();
    door.isDry = false;
    clock.standStill(STALL_MS);
    clock.advance(29_000);
    assert.is(isLate(), true);
    clock.advance(2_000);
    assert.is(isLate(), false);
  });

  test('nothing ticks any more when it is closed', () => {
    const { clock, watch } = open();
    watch.close();
    clock.advance(60_000);
    assert.is(watch.stallCount, 0);
  });
});
