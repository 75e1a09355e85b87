/** Version and commit of this build: package.json, and a constant that `build.mjs` may define. */
import manifest from '../../package.json' with { type: 'json' };

declare const KVD_COMMIT: string | undefined;

export const VERSION: string = manifest.version;

/** Short commit id; '' when unknown (a run from the sources). */
export const COMMIT: string = typeof KVD_COMMIT === 'string' ? KVD_COMMIT : '';
