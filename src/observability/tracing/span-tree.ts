/**
 * The open spans of sessions: one root for each, and children that hang below it.
 *
 *   openRoot ─▶ root ◀── openChild ─▶ child, until closeChild
 *                │
 *                ├─ closeRoot                       nothing is in flight
 *                └─ closeRoot … last work ends      something is: the root ends with the last child
 *
 * A child is found by its key; of several with one key the oldest ends first. What is said of a
 * session before anything has opened it, like work that waits for its turn, counts when it opens.
 *
 * What nobody ends is ended as failed: by age (600 s without news of its session), when there are
 * too many sessions or children, and at the end of the server (spec observability 14.5, 14.8).
 * Every span ends exactly once.
 */
import type { Clock, Timer } from '../../clock.ts';
import { KVD } from '../metrics/catalogue/kvd.ts';
import type { MetricRegistry } from '../metrics/registry.ts';
import type { OpenSpan, SpanAttributes, SpanSink } from './span-sink.ts';

const EXPIRY_SECONDS = 600;
const SWEEP_MS = 60_000;
const SESSION_COUNT_MAX = 10_000;
/** Of one session; an engine has some hundred requests open in all. */
const CHILD_COUNT_MAX = 1024;

export interface SpanTreeOptions {
  readonly sink: SpanSink;
  readonly clock: Clock;
  /** Counts the spans that were never ended. Null: metrics are off. */
  readonly registry: MetricRegistry | null;
  /** `--trace-ids-from-requests`. */
  readonly hasRequestTraceIds?: boolean;
}

export interface ChildStart {
  readonly key: string;
  readonly name: string;
  /** Keys of children that it may hang below; the first open one, else the root. */
  readonly parents?: readonly string[];
  readonly atSeconds: number;
  readonly attributes: SpanAttributes;
}

/** What decides when a session is over. */
class Outlook {
  /** Work that has been announced and has not ended, with or without a span. */
  inFlightCount = 0;
  /** Something is sure to follow. */
  isAwaited = false;
  /** Set: it has been said that the session is over. */
  endSeconds: number | null = null;

  get isIdle(): boolean {
    return this.inFlightCount === 0 && !this.isAwaited;
  }
}

class Session {
  readonly root: OpenSpan;
  readonly outlook: Outlook;
  readonly children = new Map<string, OpenSpan[]>();
  childCount = 0;
  latestSeconds: number;

  constructor(root: OpenSpan, outlook: Outlook, atSeconds: number) {
    this.root = root;
    this.outlook = outlook;
    this.latestSeconds = atSeconds;
  }
}

export class SpanTree {
  readonly #scope: string;
  readonly #rootName: string;
  readonly #options: SpanTreeOptions;
  /** The longest silent first. */
  readonly #sessions = new Map<string, Session>();
  /** Of sessions with work that was announced before anything has opened them. */
  readonly #early = new Map<string, Outlook>();
  readonly #timer: Timer;

  constructor(scope: string, rootName: string, options: SpanTreeOptions) {
    this.#scope = scope;
    this.#rootName = rootName;
    this.#options = options;
    this.#timer = options.clock.every(SWEEP_MS, () => this.#expire());
  }

  /** Nothing when it is open already. */
  openRoot(sessionId: string, atSeconds: number): void {
    this.#use(sessionId, atSeconds) ?? this.#open(sessionId, atSeconds);
  }

  setRootAttributes(sessionId: string, attributes: SpanAttributes): void {
    this.#sessions.get(sessionId)?.root.setAttributes(attributes);
  }

  /** Opens the root, too, if there is none. */
  openChild(sessionId: string, start: ChildStart): void {
    const { key, name, parents = [], atSeconds, attributes } = start;
    const session = this.#use(sessionId, atSeconds) ?? this.#open(sessionId, atSeconds);
    if (session.childCount >= CHILD_COUNT_MAX) this.#failOldest(session, atSeconds);
    const open = parents.map((parent) => session.children.get(parent)?.[0]).find((one) => one);
    const child = this.#start(sessionId, name, open ?? session.root, atSeconds, attributes);
    session.childCount += 1;
    const others = session.children.get(key);
    if (others) others.push(child);
    else session.children.set(key, [child]);
  }

  /** Nothing when no such child is open. */
  closeChild(
    sessionId: string,
    key: string,
    end: { readonly atSeconds: number; readonly attributes: SpanAttributes; error?: string | null },
  ): void {
    const session = this.#use(sessionId, end.atSeconds);
    const child = session && takeChild(session, key);
    if (!child) return;
    child.setAttributes(end.attributes);
    child.end(end.atSeconds, end.error ?? undefined);
  }

  /** A span without length, below the root if there is one. */
  mark(
    sessionId: string,
    name: string,
    at: { readonly atSeconds: number; readonly attributes: SpanAttributes; error?: string },
  ): void {
    const { atSeconds, attributes, error } = at;
    const parent = this.#use(sessionId, atSeconds)?.root ?? null;
    this.#start(sessionId, name, parent, atSeconds, attributes).end(atSeconds, error);
  }

  begin(sessionId: string, atSeconds: number): void {
    this.#use(sessionId, atSeconds);
    const outlook = this.#findOutlook(sessionId) ?? this.#expect(sessionId);
    outlook.inFlightCount += 1;
  }

  /** Ends the root, too, if it waits for this. */
  finish(sessionId: string, atSeconds: number): void {
    const session = this.#use(sessionId, atSeconds);
    const outlook = this.#findOutlook(sessionId);
    if (!outlook) return;
    outlook.inFlightCount = Math.max(0, outlook.inFlightCount - 1);
    if (session) this.#closeIfOver(sessionId, session);
    else if (outlook.isIdle) this.#early.delete(sessionId);
  }

  /** The root is not ended before `isAwaited` is taken back. After `begin`. */
  await(sessionId: string, isAwaited: boolean): void {
    const outlook = this.#findOutlook(sessionId);
    if (outlook) outlook.isAwaited = isAwaited;
  }

  closeRoot(sessionId: string, atSeconds: number): void {
    const session = this.#use(sessionId, atSeconds);
    const outlook = this.#findOutlook(sessionId);
    if (outlook) outlook.endSeconds = atSeconds;
    if (session) this.#closeIfOver(sessionId, session);
  }

  /** Ends everything that is open. */
  close(): void {
    this.#timer.cancel();
    const nowSeconds = this.#options.clock.wallMs() / 1000;
    for (const session of this.#sessions.values()) {
      this.#endAll(session, nowSeconds, 'the server stopped');
    }
    this.#sessions.clear();
  }

  #findOutlook(sessionId: string): Outlook | undefined {
    return this.#sessions.get(sessionId)?.outlook ?? this.#early.get(sessionId);
  }

  /** The oldest is forgotten when there are too many. */
  #expect(sessionId: string): Outlook {
    for (const oldest of this.#early.keys()) {
      if (this.#early.size >= SESSION_COUNT_MAX) this.#early.delete(oldest);
      break;
    }
    const outlook = new Outlook();
    this.#early.set(sessionId, outlook);
    return outlook;
  }

  #closeIfOver(sessionId: string, session: Session): void {
    const { isIdle, endSeconds } = session.outlook;
    if (!isIdle || endSeconds === null) return;
    this.#sessions.delete(sessionId);
    const atSeconds = Math.max(endSeconds, session.latestSeconds);
    this.#endChildren(session, atSeconds, 'not ended');
    session.root.end(atSeconds);
  }

  #use(sessionId: string, atSeconds: number): Session | null {
    const session = this.#sessions.get(sessionId);
    if (!session) return null;
    session.latestSeconds = Math.max(session.latestSeconds, atSeconds);
    this.#sessions.delete(sessionId);
    this.#sessions.set(sessionId, session);
    return session;
  }

  #open(sessionId: string, atSeconds: number): Session {
    if (this.#sessions.size >= SESSION_COUNT_MAX) {
      for (const [silent, session] of this.#sessions) {
        this.#giveUp(silent, session, atSeconds, 'too many sessions are open');
        break;
      }
    }
    const root = this.#start(sessionId, this.#rootName, null, atSeconds, {});
    const session = new Session(root, this.#early.get(sessionId) ?? new Outlook(), atSeconds);
    this.#early.delete(sessionId);
    this.#sessions.set(sessionId, session);
    return session;
  }

  #start(
    sessionId: string,
    name: string,
    parent: OpenSpan | null,
    startSeconds: number,
    attributes: SpanAttributes,
  ): OpenSpan {
    const { sink, hasRequestTraceIds } = this.#options;
    return sink.startSpan({
      ...{ scope: this.#scope, name, parent, startSeconds },
      attributes: { session_id: sessionId, ...attributes },
      ...(hasRequestTraceIds && sessionId !== '' && { traceSeed: sessionId }),
    });
  }

  #expire(): void {
    const nowSeconds = this.#options.clock.wallMs() / 1000;
    for (const [sessionId, session] of this.#sessions) {
      if (nowSeconds - session.latestSeconds < EXPIRY_SECONDS) continue;
      this.#giveUp(sessionId, session, nowSeconds, `no end within ${EXPIRY_SECONDS} s`);
    }
  }

  #giveUp(sessionId: string, session: Session, atSeconds: number, error: string): void {
    this.#sessions.delete(sessionId);
    const spanCount = this.#endAll(session, atSeconds, error);
    this.#options.registry?.counter(KVD.expiredPending).add(spanCount, 'span');
  }

  /** Returns the number of spans. */
  #endAll(session: Session, atSeconds: number, error: string): number {
    const endSeconds = Math.max(atSeconds, session.latestSeconds);
    const childCount = this.#endChildren(session, endSeconds, error);
    session.root.end(endSeconds, error);
    return 1 + childCount;
  }

  #failOldest(session: Session, atSeconds: number): void {
    for (const key of session.children.keys()) {
      takeChild(session, key)?.end(atSeconds, 'too many spans of a session are open');
      this.#options.registry?.counter(KVD.expiredPending).add(1, 'span');
      return;
    }
  }

  #endChildren(session: Session, atSeconds: number, error: string): number {
    const open = [...session.children.values()].flat();
    session.children.clear();
    for (const child of open) child.end(atSeconds, error);
    return open.length;
  }
}

function takeChild(session: Session, key: string): OpenSpan | undefined {
  const list = session.children.get(key);
  const child = list?.shift();
  if (list?.length === 0) session.children.delete(key);
  if (child) session.childCount -= 1;
  return child;
}
