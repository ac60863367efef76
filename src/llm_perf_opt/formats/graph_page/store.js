// What the reader has chosen, and who wants to know when it changes.

export class Store {
  constructor(state) {
    this.state = state;
    this.listeners = [];
  }

  /** `listener(state, changed)` is called after a change of one of `keys`. */
  on(keys, listener) {
    this.listeners.push({ keys, listener });
  }

  change(patch) {
    const changed = new Set(Object.keys(patch).filter((key) => patch[key] !== this.state[key]));
    Object.assign(this.state, patch);
    for (const { keys, listener } of this.listeners) {
      if (keys.some((key) => changed.has(key))) listener(this.state, changed);
    }
  }
}
