/**
 * What every kind of L2 backend promises (src/l2/backend.ts).
 *
 *   l2BackendContract({
 *     name: 'fs',
 *     async makeStore() {
 *       const folder = await mkdtemp(…);
 *       return {
 *         open: () => backendType.open(values, context),
 *         dispose: () => rm(folder, { recursive: true }),
 *       };
 *     },
 *     isPersistent: true,
 *     isShared: true,
 *   });
 *
 * Every test has a store of its own; a test server is shared by using another database or prefix.
 */
import { MIB } from '../../src/units.ts';
import { contractSuite, type Skip } from '../support/contract.ts';
import { defineAbortTests, defineFailureTests } from './l2-backend-failures.ts';
import { housesOf, type L2Store } from './l2-backend-house.ts';
import {
  defineBatchTests,
  defineListTests,
  definePersistenceTest,
  defineSharingTest,
  defineWriterTests,
} from './l2-backend-traffic.ts';
import {
  defineKeyTests,
  defineLargeValueTest,
  defineSizeTests,
  defineValueTests,
} from './l2-backend-values.ts';

export type { L2Store } from './l2-backend-house.ts';

export interface L2BackendContract {
  readonly name: string;
  makeStore(): Promise<L2Store>;
  /** Values outlive the backend that stored them. */
  readonly isPersistent: boolean;
  /** A second backend may be open on the same place at the same time, and sees the same values. */
  readonly isShared: boolean;
  /** Of the largest value; default 16 MiB and a bit. */
  readonly largeSizeBytes?: number;
  readonly skip?: readonly Skip[];
}

export function l2BackendContract(contract: L2BackendContract): void {
  const { name, isPersistent, isShared, largeSizeBytes = 16 * MIB + 4321, skip = [] } = contract;
  const inHouse = housesOf(() => contract.makeStore(), 6 * largeSizeBytes + 32 * MIB);
  contractSuite(`L2 backend: ${name}`, skip, (test) => {
    for (const define of [
      defineValueTests,
      defineSizeTests,
      defineKeyTests,
      defineFailureTests,
      defineAbortTests,
      defineWriterTests,
      defineBatchTests,
      defineListTests,
    ]) {
      define(test, inHouse);
    }
    defineLargeValueTest(test, inHouse, largeSizeBytes);
    if (isPersistent) definePersistenceTest(test, inHouse);
    if (isShared) defineSharingTest(test, inHouse);
  });
}
