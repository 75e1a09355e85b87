/**
 * Every instrument of kvd: name, meter, kind, unit, labels, meaning.
 *
 * Names `lmcache_mp.*` and `lmcache_blend.*` are the reference's, so that existing dashboards work
 * (spec observability 4.4, 4.5, 11); ours start with `kvd.`. A row gives the OpenTelemetry name;
 * the Prometheus name follows from it (`prometheus-name.ts`). The rows stand in `catalogue/`, one
 * file per part of the server; who moves an instrument takes its row from there. docs/metrics.md
 * is written from this list (`npm run docs`).
 */
import { BLEND } from './catalogue/blend.ts';
import { ENGINE } from './catalogue/engine.ts';
import { BUS, HEALTH } from './catalogue/health.ts';
import { KVD } from './catalogue/kvd.ts';
import { L0 } from './catalogue/l0.ts';
import { L1 } from './catalogue/l1.ts';
import { L2 } from './catalogue/l2.ts';
import type { InstrumentSpec } from './instrument.ts';

export interface CatalogueSection {
  readonly title: string;
  readonly instruments: readonly InstrumentSpec[];
}

const section = (title: string, rows: Readonly<Record<string, InstrumentSpec>>) => ({
  title,
  instruments: Object.values(rows),
});

export const CATALOGUE_SECTIONS: readonly CatalogueSection[] = [
  section('Lookups and transfers', ENGINE),
  section('L1', L1),
  section('L2', L2),
  section('Blocks of the engine', L0),
  section('Failures', HEALTH),
  section('Event bus', BUS),
  section('CacheBlend', BLEND),
  section('kvd itself', KVD),
];

export const CATALOGUE: readonly InstrumentSpec[] = CATALOGUE_SECTIONS.flatMap(
  ({ instruments }) => instruments,
);
