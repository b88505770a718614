// When pictures are drawn, and how many edges each shows. A picture starts only when the previous one is finished, so
// a slow machine is never overloaded. If drawing is slow, fewer and thinner edges are drawn during motion, and without
// user input pictures are less frequent, to leave the processor to the run.

const [SLOW_MS, FAST_MS] = [42, 24];
const [REST_MS, LOOK_AGAIN_MS, LONGEST_PAUSE_MS] = [200, 4, 1000];
const [FEWEST_EDGES, FIRST_EDGES, FIRST_EDGES_IF_SLOW] = [1500, 12_000, 3000];

// The number of edges that keeps motion smooth, and whether they are thin.
export class EdgeBudget {
  // `isSlow`: whether drawing is known to be slow before the first picture.
  constructor(isSlow = false) {
    this.edges = isSlow ? FIRST_EDGES_IF_SLOW : FIRST_EDGES;
    this.strain = isSlow ? 3 : 0;
  }

  // One slow picture may have had another reason; several in a row have not.
  get isStrained() {
    return this.strain >= 2;
  }

  // Thin edges are faster, but few edges are fast enough as they are.
  isThinAmong(all) {
    return this.isStrained && all > FEWEST_EDGES;
  }

  // Takes the time of a picture of `shown` out of `all` edges.
  note(tookMs, shown, all) {
    if (tookMs > SLOW_MS) {
      this.edges = Math.max(FEWEST_EDGES, shown * Math.max(0.3, (0.8 * SLOW_MS) / tookMs));
      this.strain = Math.min(3, this.strain + 1);
    } else if (tookMs < FAST_MS) {
      if (shown < all) this.edges = Math.max(this.edges, 1.25 * shown);
      else this.strain = Math.max(0, this.strain - 0.05);
    }
  }

  of(all) {
    return Math.min(all, Math.floor(this.edges));
  }
}

export class DrawingLoop {
  // `draw(isAtRest)` starts a picture and returns the number of edges shown, of all edges, and whether it has full
  // quality; `isDone()` returns whether it is finished; `isTouched()` whether the viewer is dragging something.
  constructor({ draw, isDone, isTouched, isSlow = false, clock = window }) {
    Object.assign(this, { draw, isDone, isTouched, clock });
    this.budget = new EdgeBudget(isSlow);
    this.wanted = false;
    this.running = false;
    this.began = null;
    this.pauseUntil = 0;
    this.timer = null;
  }

  // Whether a picture is being drawn, or requested.
  get isBusy() {
    return this.running || this.wanted;
  }

  // Requests a picture.
  request() {
    this.wanted = true;
    this.wake();
  }

  wake() {
    if (this.running) return;
    this.running = true;
    this.clock.clearTimeout(this.timer);
    this.clock.requestAnimationFrame((now) => this.tick(now));
  }

  tick(now) {
    if (this.began !== null && !this.isDone()) {
      // A picture that missed its frame is followed by the next one at once, not only at a frame of the screen.
      this.clock.setTimeout(() => this.tick(this.clock.performance.now()), LOOK_AGAIN_MS);
      return;
    }
    if (this.began !== null) this.finish(now);
    if (this.wanted && (now >= this.pauseUntil || this.isTouched())) this.begin(now, false);
    else if (this.wanted) this.sleep(this.pauseUntil - now, () => this.wake());
    else if (!this.picture.isWhole) this.sleep(REST_MS, () => this.rest());
    else this.running = false;
  }

  begin(now, isAtRest) {
    this.wanted = false;
    this.running = true;
    this.began = now;
    this.isAtRest = isAtRest;
    this.picture = this.draw(isAtRest);
    this.clock.requestAnimationFrame((next) => this.tick(next));
  }

  finish(now) {
    const took = now - this.began;
    this.began = null;
    // The time of a picture at rest does not predict that of motion.
    if (!this.isAtRest) this.budget.note(took, this.picture.shown, this.picture.all);
    this.pauseUntil = took > SLOW_MS ? now + Math.min(3 * took, LONGEST_PAUSE_MS) : 0;
  }

  sleep(milliseconds, then) {
    this.running = false;
    this.timer = this.clock.setTimeout(then, milliseconds);
  }

  // Nothing has moved for a moment: draw every edge, unless the viewer is still touching the page.
  rest() {
    if (this.isTouched()) {
      this.sleep(REST_MS, () => this.rest());
      return;
    }
    this.running = true;
    this.clock.requestAnimationFrame((now) => this.begin(now, true));
  }
}
