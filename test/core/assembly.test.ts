/**
 * The tests that run inside WASM: every `test_*` function that assembly/test/index.ts exports, each
 * in a fresh instance, compiled as the release and as the debug core.
 */
import * as assert from 'uvu/assert';
import { compileAssembly, startCompiled } from '../support/compile-assembly.ts';
import { suite } from '../support/suite.ts';

interface TestModule {
  readonly memory: { readonly buffer: ArrayBuffer };
  readonly [name: string]: unknown;
}

for (const target of ['release', 'debug']) {
  suite(`core inside WASM (${target})`, (test) => {
    const wasm = compileAssembly('assembly/test/index.ts', target);
    const names = Object.keys(startCompiled<TestModule>(wasm)).filter((name) =>
      name.startsWith('test_'),
    );
    assert.ok(names.length > 0, 'assembly/test/index.ts exports no test');
    for (const name of names) {
      const title = name.slice('test_'.length).replaceAll('_', ' ');
      test(title, () => {
        const fresh = startCompiled<TestModule>(wasm);
        (fresh[name] as () => void)();
      });
    }
  });
}
