/** Sections of the reference's recorded behaviour, test/vectors/policies.json (storage.md 17). */
import { readFileSync } from 'node:fs';

const file = new URL('../vectors/policies.json', import.meta.url);
const { sections } = JSON.parse(readFileSync(file, 'utf8')) as {
  sections: Record<string, unknown>;
};

export function policyVectors<T>(section: string): T {
  const content = sections[section];
  if (content === undefined) throw new Error(`policies.json has no section ${section}`);
  return content as T;
}
