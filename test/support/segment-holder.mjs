// Makes the segments in argv[2…] (one page each) and maps those that do not begin with '-', prints
// "ready", and then waits to be killed. Run as a child by process-owner.test.ts.
import fs from 'node:fs';
import { Shim } from '../../src/device/shim.ts';

const shim = Shim.load();
for (const word of process.argv.slice(2)) {
  const name = word.replace(/^-/, '').replace('PID', process.pid);
  fs.writeFileSync(`/dev/shm${name}`, new Uint8Array(4096), { flag: 'wx', mode: 0o600 });
  if (word === name || !word.startsWith('-')) await shim.openSegment(name, 4096);
}
console.log('ready');
process.stdin.on('data', () => process.exit(0));
