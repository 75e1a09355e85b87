/** What a rehearsal asks for, how it ends, and that it is in nobody's way */
import * as assert from 'uvu/assert';
import { systemClock } from '../../../src/clock.ts';
import type { OperationName } from '../../../src/engine/api.ts';
import { WithheldReplyError } from '../../../src/errors.ts';
import { Rehearsal, type RehearsalHouse } from '../../../src/wire/rehearsal.ts';
import { RecordingLogger } from '../../support/recording-logger.ts';
import { suite } from '../../support/suite.ts';
import { type Answers, openWireHouse } from '../../support/wire-house.ts';

const OPERATIONS: readonly OperationName[] = [
  'REGISTER_KV_CACHE_ENGINE_DRIVEN_CONTEXT',
  'LOOKUP',
  'QUERY_PREFETCH_STATUS',
  'PREPARE_STORE',
  'COMMIT_STORE',
  'PREPARE_RETRIEVE',
  'COMMIT_RETRIEVE',
  'FREE_LOOKUP_LOCKS',
  'END_SESSION',
  'PING',
];
const REPLIES: Partial<Record<OperationName, unknown>> = {
  REGISTER_KV_CACHE_ENGINE_DRIVEN_CONTEXT: { shmName: 'rehearsal', poolSizeBytes: 4096 },
  QUERY_PREFETCH_STATUS: 1,
  PREPARE_STORE: { context: {} },
  COMMIT_STORE: true,
  PREPARE_RETRIEVE: { success: true, data: new Uint8Array(0), context: {} },
  COMMIT_RETRIEVE: true,
  PING: true,
};

/** A stage with a door, which calls `onRequest` for each request that comes through. */
class Stage {
  readonly log = new RecordingLogger();
  readonly asked: OperationName[] = [];
  openCount = 0;
  closedCount = 0;
  endCount = 0;
  readonly #hasSlots: boolean;
  readonly #onRequest: (name: OperationName) => void;
  #ended = () => {};

  constructor(options: { hasSlots?: boolean; onRequest?: (name: OperationName) => void } = {}) {
    this.#hasSlots = options.hasSlots ?? true;
    this.#onRequest = options.onRequest ?? (() => {});
  }

  begin(openHouse = () => this.#open()): { rehearsal: Rehearsal; over: Promise<void> } {
    const over = new Promise<void>((resolve) => {
      this.#ended = resolve;
    });
    const { log } = this;
    const watched = Object.assign(Object.create(log), {
      debug: (message: string) => {
        log.debug(message);
        this.#ended();
      },
    });
    const options = {
      openHouse,
      dialect: 'auto',
      onEnd: () => {
        assert.is(this.closedCount, this.openCount, 'a house is open');
        this.endCount += 1;
      },
      clock: systemClock,
      log: watched,
    } as const;
    return { rehearsal: new Rehearsal(options), over };
  }

  async #open(): Promise<RehearsalHouse> {
    this.openCount += 1;
    const askedBefore = this.asked.length;
    const answers: Answers = {};
    for (const name of OPERATIONS) {
      answers[name] = () => {
        this.asked.push(name);
        this.#onRequest(name);
        return REPLIES[name];
      };
    }
    const id = `${this.openCount}-${Math.trunc(performance.now())}`;
    const endpoint = `inproc://kvd-rehearsal-test-${id}`;
    const house = await openWireHouse(answers, { endpoints: [endpoint] });
    return {
      endpoint,
      chunkSizeTokens: 16,
      hasSlots: this.#hasSlots,
      servedCount: () => this.asked.length - askedBefore,
      close: async () => {
        await house.close();
        this.closedCount += 1;
      },
    };
  }
}

suite('rehearsal', (test) => {
  test('plays all that a prompt goes through, in two houses one after the other', async () => {
    const stage = new Stage();
    const { over } = stage.begin();
    await over;
    assert.is(stage.openCount, 2);
    assert.is(stage.closedCount, 2);
    assert.is(stage.endCount, 1);
    assert.equal(new Set(stage.asked), new Set(OPERATIONS));
    const { level, message } = stage.log.lines[0]!;
    const count = stage.asked.length;
    assert.ok(`${level}: ${message}`.startsWith(`debug: rehearsal: ${count} of ${count} requests`));
  });

  test('asks for no slots where none are given', async () => {
    const stage = new Stage({ hasSlots: false });
    await stage.begin().over;
    const asked = new Set(stage.asked);
    for (const name of OPERATIONS) {
      assert.is(asked.has(name), !/^(REGISTER|PREPARE|COMMIT)/.test(name), name);
    }
  });

  test('lets the event loop turn between any two of its requests', async () => {
    let turn = 0;
    let isOver = false;
    const count = () => {
      turn += 1;
      if (!isOver) setImmediate(count);
    };
    const turns: number[] = [];
    const stage = new Stage({ onRequest: () => void turns.push(turn) });
    setImmediate(count);
    await stage.begin().over;
    isOver = true;
    assert.is(new Set(turns).size, stage.asked.length);
  });

  test('is stopped behind the request that runs, and closes its house', async () => {
    let stopping: Promise<void> | undefined;
    const stage = new Stage({
      onRequest: () => {
        if (stage.asked.length === 5) stopping = begun.rehearsal.stop();
      },
    });
    const begun = stage.begin();
    await begun.over;
    await stopping;
    assert.is(stage.asked.length, 5);
    assert.is(stage.openCount, 1);
    assert.is(stage.closedCount, 1);
    assert.is(stage.endCount, 0);
  });

  test('never begins when it is stopped before', async () => {
    const stage = new Stage();
    await stage.begin().rehearsal.stop();
    assert.is(stage.openCount, 0);
  });

  test('that cannot have a house is given up', async () => {
    const stage = new Stage();
    const { rehearsal, over } = stage.begin(() => Promise.reject(new Error('no memory')));
    await over;
    await rehearsal.stop();
    assert.match(stage.log.lines[0]!.message, /given up, .*no memory/);
    assert.is(stage.endCount, 1);
  });

  test('that cannot reach its house is given up, and closes it', async () => {
    const stage = new Stage();
    let closedCount = 0;
    const house: RehearsalHouse = {
      endpoint: 'nowhere',
      chunkSizeTokens: 16,
      hasSlots: true,
      servedCount: () => 0,
      close: async () => {
        closedCount += 1;
      },
    };
    await stage.begin(async () => house).over;
    assert.is(closedCount, 1);
    assert.match(stage.log.lines[0]!.message, /given up/);
  });

  test('that gets no reply is given up, and closes its house', async () => {
    const stage = new Stage({
      onRequest: () => {
        if (stage.asked.length === 3) throw new WithheldReplyError('ERR_INTERNAL', 'no reply');
      },
    });
    await stage.begin().over;
    assert.is(stage.asked.length, 3);
    assert.is(stage.closedCount, 1);
    assert.match(stage.log.lines[0]!.message, /given up/);
  });
});
