/** `s3` with a real server. */
import {
  CreateBucketCommand,
  DeleteObjectsCommand,
  GetObjectCommand,
  HeadObjectCommand,
  ListObjectsV2Command,
  PutObjectCommand,
  S3Client,
} from '@aws-sdk/client-s3';
import * as assert from 'uvu/assert';
import { backendType as s3 } from '../../src/l2/adapters/s3.ts';
import type { L2Backend, ListOptions, ListPage } from '../../src/l2/backend.ts';
import { encodeWireKey } from '../../src/l2/key-text.ts';
import { type L2Store, l2BackendContract } from '../contract/l2-backend.ts';
import { openBackend } from '../support/l2-context.ts';
import { l2Key, l2Value } from '../support/l2-objects.ts';
import { type L2Server, S3_CREDENTIALS, S3_DOMAIN, startS3 } from '../support/l2-servers.ts';
import { suite } from '../support/suite.ts';

const never = new AbortController().signal;

const NAME = 'bucket';
const LISTING_LAG_MS = 100;
let server: Promise<L2Server> | null = null;

interface Bucket {
  readonly client: S3Client;
  readonly json: Record<string, unknown>;
}

/** The one bucket, empty: a bucket takes several volumes of the server, which are few. */
async function emptyBucket(): Promise<Bucket> {
  const isFirst = server === null;
  server ??= startS3();
  const { port } = await server;
  const client = new S3Client({
    region: 'eu-test-1',
    endpoint: `http://127.0.0.1:${port}`,
    forcePathStyle: true,
    credentials: S3_CREDENTIALS,
  });
  if (isFirst) await client.send(new CreateBucketCommand({ Bucket: NAME }));
  // A listing right after a write may lack it; two in a row do not.
  for (let emptyCount = 0; emptyCount < 2; ) {
    const { Contents = [] } = await client.send(new ListObjectsV2Command({ Bucket: NAME }));
    emptyCount = Contents.length === 0 ? emptyCount + 1 : 0;
    if (Contents.length === 0) {
      await new Promise((resolve) => setTimeout(resolve, LISTING_LAG_MS));
      continue;
    }
    const Objects = Contents.map(({ Key }) => ({ Key }));
    await client.send(new DeleteObjectsCommand({ Bucket: NAME, Delete: { Objects } }));
  }
  const json = {
    s3_endpoint: `${NAME}.${S3_DOMAIN}:${port}`,
    s3_connect_address: `127.0.0.1:${port}`,
    s3_region: 'eu-test-1',
    disable_tls: true,
    aws_access_key_id: S3_CREDENTIALS.accessKeyId,
    aws_secret_access_key: S3_CREDENTIALS.secretAccessKey,
  };
  return { client, json };
}

async function makeStore(extra: Record<string, unknown>): Promise<L2Store> {
  const { client, json } = await emptyBucket();
  return {
    open: () => openBackend(s3, { ...json, ...extra }),
    plant: async (key, bytes) => {
      const place = { Bucket: NAME, Key: encodeWireKey(key) };
      await client.send(new PutObjectCommand({ ...place, Body: bytes }));
    },
    dispose: async () => client.destroy(),
  };
}

const skip = [
  {
    reason: 'a size that was seen is believed for a minute',
    tests: ['two backends on one store see each other and write one key without harm'],
  },
  {
    reason: 'SeaweedFS takes no name of more than 255 bytes; listing has a test of its own below',
    tests: ['a list names every object once, with key and size'],
  },
];

l2BackendContract({
  name: 's3, virtual-hosted',
  isPersistent: true,
  isShared: true,
  skip,
  makeStore: () => makeStore({}),
});

l2BackendContract({
  name: 's3, path style, with checksums',
  isPersistent: true,
  isShared: true,
  skip,
  makeStore: () => makeStore({ s3_path_style: true, metadata_checksum: true }),
});

function list(backend: L2Backend, options: ListOptions): Promise<ListPage> {
  assert.ok(backend.list);
  return (backend as Required<L2Backend>).list(options);
}

suite('s3 with a real server', (test) => {
  test('wrong credentials are an error that names no secret, and no miss', async () => {
    const { client, json } = await emptyBucket();
    const backend = await openBackend(s3, { ...json, aws_secret_access_key: 'wrong-word' });
    const [stored] = await backend.store([{ key: l2Key(1), bytes: l2Value(100, 1) }], never);
    const [size] = await backend.lookup([l2Key(1)], never);
    assert.instance(stored, Error);
    assert.instance(size, Error);
    assert.not.match(`${stored} ${size} ${JSON.stringify(backend.status())}`, /wrong-word/);
    await backend.close();
    client.destroy();
  });

  test('a checksum lies in the metadata, and a value that does not fit it is deleted', async () => {
    const { client, json } = await emptyBucket();
    const backend = await openBackend(s3, { ...json, metadata_checksum: true });
    const object = { key: l2Key(1), bytes: l2Value(9 << 20, 1) };
    const target = { key: l2Key(1), bytes: new Uint8Array(9 << 20) };
    const place = { Bucket: NAME, Key: encodeWireKey(l2Key(1)) };
    assert.equal(await backend.store([object], never), ['stored']);
    const { Metadata } = await client.send(new HeadObjectCommand(place));
    assert.match(Metadata?.['kvd-crc32'] ?? '', /^[0-9a-f]{8}$/);
    assert.equal(await backend.load([target], never), ['loaded']);
    const damaged = Uint8Array.from(object.bytes);
    damaged[damaged.length - 5] = 255 - (damaged[damaged.length - 5] ?? 0);
    await client.send(new PutObjectCommand({ ...place, Body: damaged, Metadata }));
    const [loaded] = await backend.load([target], never);
    assert.match(`${loaded}`, /checksum/);
    assert.equal(await backend.lookup([l2Key(1)], never), [null]);
    // Whoever stores without a checksum is believed.
    await client.send(new PutObjectCommand({ ...place, Body: object.bytes }));
    assert.equal(await backend.load([target], never), ['loaded']);
    await backend.close();
    client.destroy();
  });

  test('values are plain objects with the content type of the peer', async () => {
    const { client, json } = await emptyBucket();
    const backend = await openBackend(s3, json);
    await backend.store([{ key: l2Key(1), bytes: l2Value(1000, 1) }], never);
    const place = { Bucket: NAME, Key: encodeWireKey(l2Key(1)) };
    const { Body, ContentType, Metadata } = await client.send(new GetObjectCommand(place));
    assert.is(ContentType, 'application/octet-stream');
    assert.equal(Metadata, {});
    assert.equal(await Body?.transformToByteArray(), l2Value(1000, 1));
    await backend.close();
    client.destroy();
  });

  test('a list names every object once, page by page, and leaves foreign names out', async () => {
    const { client, json } = await emptyBucket();
    const backend = await openBackend(s3, json);
    const salted = { cacheSalt: 'tenant-a', modelName: 'other/model' };
    const keys = [l2Key(1), l2Key(2), l2Key(3), l2Key(1, salted), l2Key(2, salted)];
    await backend.store(
      keys.map((key, i) => ({ key, bytes: l2Value(100 + i, i) })),
      never,
    );
    for (const Key of ['readme.txt', 'a@b@c', 'org/model-8B@xyz@0@00']) {
      await client.send(new PutObjectCommand({ Bucket: NAME, Key, Body: 'x' }));
    }
    const listAll = async (modelName: string | null): Promise<string[]> => {
      const found: string[] = [];
      let token: string | null = null;
      do {
        const page: ListPage = await list(backend, {
          modelName,
          pageSize: 2,
          token,
          signal: never,
        });
        for (const { key, sizeBytes } of page.objects) {
          found.push(`${encodeWireKey(key)} ${sizeBytes}`);
        }
        token = page.nextToken;
      } while (token !== null);
      return found.sort();
    };
    const expected = keys.map((key, i) => `${encodeWireKey(key)} ${100 + i}`).sort();
    assert.equal(await listAll(null), expected);
    assert.equal(
      await listAll('other/model'),
      expected.filter((text) => text.startsWith('other/model')),
    );
    await backend.close();
    client.destroy();
  });

  test('a size is believed until the load that finds nothing', async () => {
    const { client, json } = await emptyBucket();
    const one = await openBackend(s3, json);
    const other = await openBackend(s3, json);
    const object = { key: l2Key(1), bytes: l2Value(100, 1) };
    assert.equal(await one.store([object], never), ['stored']);
    assert.equal(await other.load([{ ...object, bytes: new Uint8Array(100) }], never), ['loaded']);
    assert.equal(await other.delete([l2Key(1)], never), ['deleted']);
    assert.equal(await one.lookup([l2Key(1)], never), [100]);
    assert.equal(await one.load([{ ...object, bytes: new Uint8Array(100) }], never), ['missing']);
    assert.equal(await one.lookup([l2Key(1)], never), [null]);
    await one.close();
    await other.close();
    client.destroy();
  });

  test.after(async () => {
    await (await server)?.stop();
  });
});
