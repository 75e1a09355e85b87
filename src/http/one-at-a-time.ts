/** Runs one heavy operation after the other; how many wait is bounded by the request limit. */
export class OneAtATime {
  #last: Promise<unknown> = Promise.resolve();

  run<T>(operation: () => Promise<T>): Promise<T> {
    const result = this.#last.then(operation);
    // The next one starts after this one, also when this one failed; its caller sees the error.
    this.#last = result.catch(() => {});
    return result;
  }
}
