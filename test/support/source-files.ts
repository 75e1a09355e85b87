/**
 * The source files of this repository as the tidy test wants them: lines, code without comments
 * and strings, imports, functions.
 *
 * No parser: functions are found by indentation, which the formatter makes reliable. A block ends
 * at the next line that starts with `}` at the depth of its head.
 */
import fs from 'node:fs';
import path from 'node:path';

export const ROOT = path.resolve(import.meta.dirname, '..', '..');
const CODE_FOLDERS = ['src', 'assembly', 'shim', 'test', 'bench', 'scripts'];
const CODE_FILES = /\.(ts|mjs|c|h)$/;

export interface Source {
  /** Relative to the root, with `/`. */
  readonly file: string;
  readonly text: string;
  readonly lines: readonly string[];
  /** The lines with comments and the insides of strings blanked. */
  readonly code: readonly string[];
}

export interface Block {
  /** 1-based. */
  readonly line: number;
  readonly lineCount: number;
  readonly head: string;
}

export function listFiles(folder: string): string[] {
  const absolute = path.join(ROOT, folder);
  if (!fs.existsSync(absolute)) return [];
  return fs
    .readdirSync(absolute, { recursive: true, withFileTypes: true })
    .filter((entry) => entry.isFile())
    .map((entry) => path.relative(ROOT, path.join(entry.parentPath, entry.name)));
}

export function readSources(): Source[] {
  const files = CODE_FOLDERS.flatMap(listFiles).filter((file) => CODE_FILES.test(file));
  return [...files, 'build.mjs'].map((file) => {
    const text = fs.readFileSync(path.join(ROOT, file), 'utf8');
    return { file, text, lines: text.split('\n'), code: blank(text).split('\n') };
  });
}

const COMMENT = /\/\*[\s\S]*?\*\/|\/\/[^\n]*/;
const STRING = /'(?:\\.|[^'\\\n])*'|"(?:\\.|[^"\\\n])*"|`(?:\\.|[^`\\])*`/;
/** A `/` after one of these characters starts a regular expression and is no division. */
const REGEX = /(?<=[(,=:&|?[]\s*)\/(?![*/])(?:\\.|\[(?:\\.|[^\]\\\n])*\]|[^/\\\n])+\//;
const NO_CODE = new RegExp([COMMENT, REGEX, STRING].map(({ source }) => source).join('|'), 'g');

/** Comments and string contents become spaces, so that words in them are not taken for code. */
function blank(text: string): string {
  const spaces = (part: string): string => part.replaceAll(/[^\n]/g, ' ');
  return text.replaceAll(NO_CODE, (part) =>
    part.startsWith('/') ? spaces(part) : part[0] + spaces(part.slice(1, -1)) + part[0],
  );
}

export function importsOf({ text }: Source): string[] {
  const patterns = [
    /(?:^|\n)\s*(?:import|export)\b[^;'"]*?from\s*'([^']+)'/g,
    /\bimport\(\s*'([^']+)'/g,
    /(?:^|\n)import\s+'([^']+)'/g,
  ];
  return patterns.flatMap((pattern) => [...text.matchAll(pattern)].map((match) => match[1] ?? ''));
}

const depthOf = (line = ''): number => line.length - line.trimStart().length;
const CONTROL = /^\s*(?:\}\s*)?(?:if|else|for|while|switch|do|try|catch|finally|case|default)\b/;

/** The first line of the statement that ends in `{` on line `index`. */
function findHead(code: readonly string[], index: number, isC: boolean): number {
  const line = code[index] ?? '';
  let first = index;
  if (isC) {
    // A parameter list goes on with any depth until the `{`.
    while (first > 0 && depthOf(code[first]) > 0 && !/[;}]/.test(code[first - 1] ?? '')) first -= 1;
  } else if (/^\s*\)/.test(line)) {
    // `): Result {` closes a parameter list that began on a line of the same depth.
    const isInside = (text = ''): boolean => text.trim() === '' || depthOf(text) > depthOf(line);
    first -= 1;
    while (first > 0 && isInside(code[first])) first -= 1;
  }
  return first;
}

/** Functions, methods and callbacks with a body. */
export function findFunctions({ file, code }: Source): Block[] {
  const isC = /\.(c|h)$/.test(file);
  const blocks: Block[] = [];
  for (const [index, line] of code.entries()) {
    if (!/\{\s*$/.test(line)) continue;
    const first = findHead(code, index, isC);
    const head = code[first] ?? '';
    const hasParameters = /\)[^()=]*\{\s*$/.test(line) && !CONTROL.test(head);
    const isFunction = isC
      ? hasParameters && depthOf(head) === 0
      : /=>\s*\{\s*$/.test(line) || (hasParameters && !/^\s*class\b/.test(head));
    if (!isFunction) continue;
    const end = `${' '.repeat(depthOf(head))}}`;
    let last = index + 1;
    while (last < code.length && !code[last]?.startsWith(end)) last += 1;
    blocks.push({ line: first + 1, lineCount: last - first + 1, head: head.trim() });
  }
  return blocks;
}
