import fs from 'node:fs';
import path from 'node:path';
import * as assert from 'uvu/assert';
import { FEATURES } from '../../../src/config/flag-spec.ts';
import { convertValue } from '../../../src/config/flag-values.ts';
import { FLAGS } from '../../../src/config/flags.ts';
import { renderFlagTables, renderHelp, renderSettings } from '../../../src/config/help.ts';
import { loadServerConfig } from '../../../src/config/load.ts';
import { suite } from '../../support/suite.ts';

const names = FLAGS.flatMap((flag) => [flag.name, ...(flag.aliases ?? [])]);

suite('flag table', (test) => {
  test('names are unique and well formed', () => {
    assert.is(new Set(names).size, names.length);
    for (const name of names) assert.match(name, /^--[a-z0-9]+(-[a-z0-9]+)*$/);
  });

  test('every default passes the checks of its own row', () => {
    for (const flag of FLAGS) {
      if (flag.default === null) continue;
      const raw = flag.type === 'octal' ? (flag.default as number).toString(8) : flag.default;
      assert.equal(convertValue(flag, raw), { value: flag.default }, flag.name);
    }
  });

  test('numbers have a range, choices a list, and features exist', () => {
    for (const flag of FLAGS) {
      const isNumber = flag.type === 'int' || flag.type === 'float' || flag.type === 'octal';
      if (isNumber) assert.ok(flag.min! < flag.max!, `${flag.name} has no range`);
      if (flag.type === 'choice') assert.ok(flag.choices!.length > 1, flag.name);
      for (const choice of Object.keys(flag.choiceNeeds ?? {})) {
        assert.ok(flag.choices?.includes(choice), `${flag.name}: ${choice}`);
      }
      if (flag.needs) assert.ok(FEATURES[flag.needs]);
      assert.match(flag.help, /\.$/, `${flag.name}: help is not a sentence`);
    }
  });

  test('--help shows every flag', () => {
    const help = renderHelp();
    for (const flag of FLAGS) assert.ok(help.includes(`\n  ${flag.name}`), flag.name);
    for (const line of help.split('\n')) assert.ok(line.length <= 100, line);
  });

  test('docs/operating.md holds the current table', () => {
    const file = path.resolve(import.meta.dirname, '../../../docs/operating.md');
    const text = fs.readFileSync(file, 'utf8');
    const hint = 'run `npm run docs`';
    assert.ok(text.includes(renderFlagTables()), hint);
  });

  test('--check shows every setting with its source and masks secrets', () => {
    const argv = ['--l1-size-gb', '1', '--eviction-policy', 'LRU'];
    const { config } = loadServerConfig(argv, { KVD_PORT: '77' });
    const text = renderSettings(config!.settings);
    assert.match(text, /^--l1-size-gb +1 +flag$/m);
    assert.match(text, /^--port +77 +environment KVD_PORT$/m);
    assert.match(text, /^--chunk-size +256 +default$/m);
  });
});
