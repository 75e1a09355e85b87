import { readFileSync } from 'node:fs';
import path from 'node:path';
import * as assert from 'uvu/assert';
import { blake2b } from '../../../src/l2/blake2b.ts';
import * as text from '../../../src/l2/key-text.ts';
import type { ObjectKey } from '../../../src/l2/object-key.ts';
import fc from '../../support/property.ts';
import { suite } from '../../support/suite.ts';

interface Row {
  readonly key: {
    chunk_hash_hex: string;
    model_name: string;
    kv_rank: number;
    object_group_id: number;
    cache_salt: string;
  };
  readonly [form: string]: unknown;
}

function readRows(name: string): Row[] {
  const folder = path.join(import.meta.dirname, '../../vectors/l2');
  return JSON.parse(readFileSync(path.join(folder, name), 'utf8'));
}

const keyOf = ({ key }: Row): ObjectKey => ({
  chunkHash: new Uint8Array(Buffer.from(key.chunk_hash_hex, 'hex')),
  modelName: key.model_name,
  kvRank: key.kv_rank,
  objectGroupId: key.object_group_id,
  cacheSalt: key.cache_salt,
});

interface Form {
  readonly field: string;
  readonly encode: (key: ObjectKey) => string;
  readonly decode: (text: string) => ObjectKey | null;
  /** What this form cannot tell from another key. */
  readonly losesOf?: (key: ObjectKey) => ObjectKey;
}

const nixl = (hasSalt: boolean, isSharded = false): Pick<Form, 'encode' | 'decode'> => ({
  encode: (key) => text.encodeNixlName(key, { hasSalt, isSharded }),
  decode: (name) => text.decodeNixlName(name, { hasSalt, isSharded }),
});
const row = (layerGroupSize: number): Pick<Form, 'encode' | 'decode'> => ({
  encode: (key) => text.encodeBigtableRow(key, layerGroupSize),
  decode: (name) => text.decodeBigtableRow(name, layerGroupSize),
});
const withSlash = (key: ObjectKey, marker: string): ObjectKey => ({
  ...key,
  modelName: key.modelName.replaceAll(marker, '/'),
});

const FORMS: readonly Form[] = [
  { field: 'native', encode: text.encodeWireKey, decode: text.decodeWireKey },
  {
    field: 'fs_filename',
    encode: text.encodeFileName,
    decode: text.decodeFileName,
    losesOf: (key) => withSlash(key, '-SEP-'),
  },
  { field: 's3_http_path', encode: text.encodeS3Path, decode: text.decodeS3Path },
  { field: 'hfbucket_object', encode: text.encodeHfObject, decode: text.decodeHfObject },
  { field: 'raw_block_key', encode: text.encodeRawBlockKey, decode: text.decodeRawBlockKey },
  {
    field: 'nixl_dynamic_050',
    ...nixl(false),
    losesOf: (key) => ({ ...withSlash(key, '--'), cacheSalt: '' }),
  },
  { field: 'nixl_dynamic_056', ...nixl(true), losesOf: (key) => withSlash(key, '--') },
  {
    field: 'nixl_dynamic_056_sharded',
    ...nixl(true, true),
    losesOf: (key) => withSlash(key, '--'),
  },
  { field: 'bigtable_row_lg0', ...row(0) },
  { field: 'bigtable_row_lg10', ...row(10) },
];

const anyKey: fc.Arbitrary<ObjectKey> = fc.record(
  {
    chunkHash: fc.uint8Array({ minLength: 1, maxLength: 64 }),
    modelName: fc
      .string({ unit: 'binary', maxLength: 40 })
      .map((name) => name.replaceAll('@', '/')),
    kvRank: fc.integer({ min: 0, max: 2 ** 40 - 1 }),
    objectGroupId: fc.integer({ min: 0, max: 100_000 }),
    cacheSalt: fc
      .string({ unit: 'binary', maxLength: 60 })
      .map((salt) => salt.replaceAll(/[@/\\\0]/g, 's')),
  },
  { noNullPrototype: true },
);

suite('key text', (test) => {
  for (const file of ['keys.json', 'keys_056.json']) {
    const rows = readRows(file);
    for (const { field, encode, decode, losesOf } of FORMS) {
      const known = rows.filter((each) => each[field] !== undefined);
      if (known.length === 0) continue;
      test(`${field} of ${file} is written and read as by the reference`, () => {
        for (const each of known) {
          const key = keyOf(each);
          assert.is(encode(key), each[field]);
          assert.equal(decode(each[field] as string), losesOf?.(key) ?? key);
        }
      });
    }
  }

  test('every form gives back any key, but for what it cannot tell apart', () => {
    for (const { encode, decode, losesOf } of FORMS) {
      fc.assert(
        fc.property(anyKey, (key) => {
          const decoded = decode(encode(key));
          if (losesOf) assert.is(decoded && encode(decoded), encode(key));
          else assert.equal(decoded, key);
        }),
        { numRuns: 200 },
      );
    }
  });

  test('the plain name tells `/` from its marker', () => {
    for (const modelName of ['org/x', 'org-SEP-x']) {
      const key = { ...keyOf(readRows('keys.json')[0] as Row), modelName };
      assert.equal(text.decodePlainName(text.encodePlainName(key)), key);
    }
  });

  test('what no encoder has written is nobody’s', () => {
    const foreign = [
      ...['', '@', '@@@', 'm@0x01000100@0@ab', 'm@01000100@0', 'm@01000100@0@ab@s@t'],
      ...['m@1000100@0@ab', 'm@01000100@00@ab', 'm@01000100@0@AB', 'm@01000100@0@abc'],
      ...['m@01000100@-1@ab', 'm@01000100@0@', 'm@01000100@0@ab@', 'm@01000100@0@ab@a/b'],
      ...['m@zz000100@0@ab', 'm@ffffffffffffffff@0@ab', 'm@01000100@0@ab@a\\b', '%@0@0@0'],
      `m@01000100@0@ab@${'s'.repeat(129)}`,
    ];
    for (const name of foreign) assert.is(text.decodeWireKey(name), null, name);
    for (const { field, decode } of FORMS) {
      for (const name of ['', '.', 'lost+found', '.data', '@@@.data', '%', '/%ff', '__.bin']) {
        assert.is(decode(name), null, `${field}: ${name}`);
      }
    }
    assert.is(text.decodeFileName('m@0x01000100@0@ab.tmp'), null);
    assert.is(text.decodeS3Path('/m@01000100@0@ab'), null);
    assert.is(text.decodePlainName('m@0x01000100@0@ab'), null);
  });

  test('slot identities of raw_block are BLAKE2b of their keys', () => {
    for (const each of readRows('keys.json')) {
      const digest = blake2b(Buffer.from(text.encodeRawBlockKey(keyOf(each))), 8);
      const identity = Buffer.from(digest).readBigUInt64LE();
      assert.is(`${identity}`, each['raw_block_slot_identity']);
    }
  });
});
