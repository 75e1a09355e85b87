/** `resp`: one Redis under both servers; without a prefix `valkey` has the same names. */
import { backendType as resp } from '../../src/l2/adapters/resp.ts';
import { backendType as valkey } from '../../src/l2/adapters/valkey.ts';
import { openBackend } from '../../test/support/l2-context.ts';
import { startRedis } from '../../test/support/l2-servers.ts';
import { type Check, checkBothWays } from './both-ways.ts';
import { ReferenceAdapter } from './reference-adapter.ts';

export async function run(python: string, release: string, check: Check): Promise<void> {
  const server = await startRedis();
  const address = { host: '127.0.0.1', port: server.port };
  const theirs = await ReferenceAdapter.start(python, release, { type: 'resp', ...address });
  const kinds = {
    resp: await openBackend(resp, address),
    valkey: await openBackend(valkey, { startup_nodes: `${address.host}:${address.port}` }),
  };
  try {
    for (const [type, ours] of Object.entries(kinds)) {
      // The reference takes the size of the first value of a batch for that of all.
      for (const sizeBytes of [4096, 1000, 1 << 20]) {
        const title = `${release} resp, kvd ${type}, ${sizeBytes} B`;
        const can = { hasSalts: true, canDelete: true, sizes: [sizeBytes] };
        await checkBothWays({ title, ours, theirs, ...can }, check);
      }
    }
  } finally {
    await theirs.end();
    for (const backend of Object.values(kinds)) await backend.close();
    await server.stop();
  }
}
