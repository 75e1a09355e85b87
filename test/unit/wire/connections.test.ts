/** The table of connections: bounded, one look-up a message, ids never used twice. */
import * as assert from 'uvu/assert';
import { ConnectionTable } from '../../../src/wire/connections.ts';
import { DIALECTS, type Dialect } from '../../../src/wire/dialect.ts';
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
    const newer = { ...first, client: { reportsFailedRetrieve: true, acceptsEmptyEvent: true } };
    const connection = new ConnectionTable(4, [first, newer]).of(identity(1));
    assert.is(connection.context.client, first.client);
    const { id } = connection;
    connection.adopt(newer);
    assert.is(connection.context.client, newer.client);
    assert.is(connection.context.connectionId, id);
  });
});
