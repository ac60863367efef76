// What the reader has chosen, and who wants to know when it changes.

/** The part of the state that belongs to one picture, as it is before anything is open. */
export function emptyPicture() {
  return {
    open: new Set(),
    directions: new Map(), // box -> which way flow runs inside it
    limits: new Map(), // box -> how many of its very many children are drawn
    wanted: new Set(), // boxes drawn beyond that limit
    selected: null,
    focused: null,
    hits: new Set(), // boxes that match the search
    match: null, // the one of them that is looked at
  };
}

export class Store {
  constructor(state) {
    this.state = state;
    this.initial = { ...state };
    this.listeners = [];
  }

  /** The phase on show. */
  get view() {
    return this.state.phase.view;
  }

  /** Its figures. */
  get ledger() {
    return this.state.phase.ledger;
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
