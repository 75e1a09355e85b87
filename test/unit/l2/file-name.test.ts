import * as assert from 'uvu/assert';
import {
  fileNameOf,
  isShortName,
  keyFileOf,
  keyOfFileName,
  keyOfShortName,
} from '../../../src/l2/file-name.ts';
import { encodeFileName } from '../../../src/l2/key-text.ts';
import type { ObjectKey } from '../../../src/l2/object-key.ts';
import { l2Key } from '../../support/l2-objects.ts';
import fc from '../../support/property.ts';
import { suite } from '../../support/suite.ts';

const keyOf = (rest: Partial<ObjectKey>): ObjectKey => l2Key(1, rest);

suite('file name', (test) => {
  test('is the one of the reference wherever a file system can hold it', () => {
    const fixedBytes = Buffer.byteLength(encodeFileName(keyOf({ modelName: '' })));
    const longest = keyOf({ modelName: 'm'.repeat(255 - fixedBytes) });
    assert.equal(fileNameOf(longest), { name: encodeFileName(longest), plainName: null });
    const tooLong = keyOf({ modelName: 'm'.repeat(256 - fixedBytes) });
    assert.ok(isShortName(fileNameOf(tooLong).name));
  });

  test('counts bytes, not characters', () => {
    assert.ok(isShortName(fileNameOf(keyOf({ modelName: '漢'.repeat(60) })).name));
  });

  test('long models with long salts have names of their own', () => {
    const modelName = `org/${'m'.repeat(137)}`;
    const names = ['a', 'b'].map((end) => {
      const { name, plainName } = fileNameOf(keyOf({ modelName, cacheSalt: 's'.repeat(63) + end }));
      assert.ok(isShortName(name));
      assert.ok(plainName?.startsWith(modelName));
      return name;
    });
    assert.is.not(names[0], names[1]);
  });

  test('a model that holds the marker for `/` shares no name with the one that holds `/`', () => {
    for (const rest of ['', 'x'.repeat(300)]) {
      const slash = fileNameOf(keyOf({ modelName: `org/${rest}` }));
      const marker = fileNameOf(keyOf({ modelName: `org-SEP-${rest}` }));
      assert.is.not(slash.name, marker.name);
    }
  });

  test('no two keys share a name, and each name leads back to its key', () => {
    const part = fc.constantFrom('/', '-SEP-', '-SEP', '-', 'S', '\0', '~', '.', 'm'.repeat(120));
    const anyModel = fc.array(part, { maxLength: 5 }).map((parts) => parts.join(''));
    const anyKey = fc.record({ modelName: anyModel, cacheSalt: fc.constantFrom('', 'x', 'y') });
    fc.assert(
      fc.property(anyKey, anyKey, (one, other) => {
        const [first, second] = [keyOf(one), keyOf(other)].map(fileNameOf);
        const isSame = one.modelName === other.modelName && one.cacheSalt === other.cacheSalt;
        assert.is(first?.name === second?.name, isSame);
        const { name, plainName } = fileNameOf(keyOf(one));
        const key = plainName === null ? keyOfFileName(name) : keyOfShortName(name, plainName);
        assert.equal(key, keyOf(one));
        assert.ok(Buffer.byteLength(name) <= 255);
      }),
    );
  });

  test('a sibling that belongs to another name says nothing', () => {
    const [one, other] = ['a-SEP-', 'b-SEP-'].map((modelName) => fileNameOf(keyOf({ modelName })));
    assert.ok(one && other);
    assert.is(keyOfShortName(one.name, other.plainName ?? ''), null);
    assert.is(keyOfShortName(one.name, ''), null);
    assert.is(keyFileOf(one.name), one.name.replace('.data', '.key'));
  });
});
