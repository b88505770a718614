// How many edges are drawn while something moves: as many as leave the movement smooth. At rest, all of them.

const SLOW_MS = 42;
const FAST_MS = 24;
const FEWEST = 1500;
const FIRST = 12_000;

export class Pace {
  constructor() {
    this.edges = FIRST;
    this.last = null;
  }

  // Tells that a picture of a movement is drawn now, of `count` edges if there were time; returns how many to draw.
  step(now, count) {
    const passed = this.last === null ? null : now - this.last;
    this.last = now;
    if (passed !== null) {
      const shown = Math.min(this.edges, count);
      if (passed > SLOW_MS) this.edges = Math.max(FEWEST, shown * Math.max(0.3, (0.8 * SLOW_MS) / passed));
      else if (passed < FAST_MS) this.edges = Math.max(this.edges, Math.min(this.edges * 1.25, 2 * count));
    }
    return Math.min(count, Math.floor(this.edges));
  }

  // The movement is over; how long its end took says nothing about the next one.
  rest() {
    this.last = null;
  }
}
