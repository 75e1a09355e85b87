/**
 * `s3`: one bucket under both servers.
 *
 * The reference can only connect to the host name of the bucket. `127.1` is such a name, of the
 * bucket `127` in the domain `1`, and an address of this machine at the same time.
 */
import { CreateBucketCommand, S3Client } from '@aws-sdk/client-s3';
import { backendType as s3 } from '../../src/l2/adapters/s3.ts';
import { openBackend } from '../../test/support/l2-context.ts';
import { S3_CREDENTIALS, startS3 } from '../../test/support/l2-servers.ts';
import { type Check, checkBothWays } from './both-ways.ts';
import { ReferenceAdapter } from './reference-adapter.ts';

const BUCKET = '127';
export const DOMAIN = '1';

/**
 * Makes the bucket of a server that `startS3(DOMAIN)` has started; what the adapters of both sides
 * have in common, and the name under which the reference can reach it.
 */
export async function openSharedBucket(port: number) {
  const client = new S3Client({
    region: 'eu-test-1',
    // A host in the domain of the server would be taken for a bucket of it.
    endpoint: `http://localhost:${port}`,
    forcePathStyle: true,
    credentials: S3_CREDENTIALS,
  });
  await client.send(new CreateBucketCommand({ Bucket: BUCKET }));
  client.destroy();
  const json = {
    s3_region: 'eu-test-1',
    disable_tls: true,
    aws_access_key_id: S3_CREDENTIALS.accessKeyId,
    aws_secret_access_key: S3_CREDENTIALS.secretAccessKey,
  };
  return {
    ours: { ...json, s3_endpoint: `${BUCKET}.localhost:${port}`, s3_path_style: true },
    theirs: { ...json, type: 's3', s3_endpoint: `${BUCKET}.${DOMAIN}:${port}` },
  };
}

export async function run(python: string, release: string, check: Check): Promise<void> {
  const server = await startS3(DOMAIN);
  try {
    const specs = await openSharedBucket(server.port);
    const theirs = await ReferenceAdapter.start(python, release, specs.theirs);
    const ours = await openBackend(s3, { ...specs.ours, metadata_checksum: true });
    try {
      const title = `${release} s3`;
      const can = { hasSalts: true, canDelete: true, remembersSizes: true };
      await checkBothWays({ title, ours, theirs, ...can }, check);
    } finally {
      await theirs.end();
      await ours.close();
    }
  } finally {
    await server.stop();
  }
}
