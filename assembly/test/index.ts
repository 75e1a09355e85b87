/** Every `test_*` function; test/core/assembly.test.ts runs each in an instance of its own. */
export * from './hash-index';
export * from './object-life';
