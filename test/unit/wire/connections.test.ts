/** The table of connections: bounded, one look-up a message, ids never used twice. */
import * as assert from 'uvu/assert';
import { ConnectionTable } from '../../../src/wire/connections.ts';
import {
  DIALECTS,
  type Dialect,
  dialectNamed,
  offeredDialects,
} from '../../../src/wire/dialect.ts';
import { NEW_CLIENT } from '../../support/client-traits.ts';
import { suite } from '../../support/suite.ts';

const identity = (index: number) => Buffer.from(`client ${index}`);

suite('connection table', (test) => {
  test('knows a client again', () => {
    const table = new ConnectionTable(10, DIALECTS);
    const first = table.of(identity(1));
    assert.is(table.of(identity(1)), first);
    assert.is.not(table.of(identity(2)), first);
    assert.is(table.count, 2);
  });

  test('holds no more than its bound, and forgets those not heard from', () => {
    const table = new ConnectionTable(10, DIALECTS);
    const faithful = table.of(identity(0));
    const forgotten = table.of(identity(1));
    for (let index = 2; index < 1000; index += 1) {
      table.of(identity(index));
      assert.is(table.of(identity(0)), faithful);
      assert.ok(table.count <= 10);
    }
    assert.is.not(table.of(identity(1)), forgotten);
  });

  test('says who was forgotten, each once', () => {
    const forgotten: number[] = [];
    const table = new ConnectionTable(4, DIALECTS, ({ id }) => forgotten.push(id));
    for (let index = 0; index < 20; index += 1) table.of(identity(index));
    assert.is(table.count + forgotten.length, 20);
    assert.is(new Set(forgotten).size, forgotten.length);
    assert.ok(forgotten.length >= 16);
  });

  test('counts clients by the dialect that they are treated as', () => {
    const table = new ConnectionTable(10, DIALECTS);
    const [a, b] = [table.of(identity(1)), table.of(identity(2))];
    table.of(identity(3));
    a.narrow(offeredDialects('A'));
    b.narrow(DIALECTS.slice(1));
    b.adopt(dialectNamed('B'));
    assert.equal(table.countByDialect(), { A: 1, B: 1, C: 0, undetermined: 1 });
    const pinned = new ConnectionTable(10, offeredDialects('C'));
    pinned.of(identity(1));
    assert.equal(pinned.countByDialect(), { A: 0, B: 0, C: 1, undetermined: 0 });
  });

  test('never gives an id twice, not even to a client that comes back', () => {
    const table = new ConnectionTable(4, DIALECTS);
    const ids = new Set<number>();
    for (let round = 0; round < 3; round += 1) {
      for (let index = 0; index < 50; index += 1) {
        const { id } = table.of(identity(index));
        assert.not.ok(ids.has(id), `id ${id}`);
        ids.add(id);
      }
    }
  });

  test('gives a client the traits of the dialect that it speaks', () => {
    const [first] = DIALECTS as [Dialect];
    const newer = { ...first, client: NEW_CLIENT };
    const connection = new ConnectionTable(4, [first, newer]).of(identity(1));
    assert.is(connection.context.client, first.client);
    const { id } = connection;
    connection.adopt(newer);
    assert.is(connection.context.client, newer.client);
    assert.is(connection.context.connectionId, id);
  });
});
