/** `kvd version` */
import { COMMIT, VERSION } from '../config/version.ts';

export async function run(): Promise<number> {
  const commit = COMMIT === '' ? '' : ` (${COMMIT})`;
  process.stdout.write(`kvd ${VERSION}${commit}, node ${process.version}\n`);
  return 0;
}
