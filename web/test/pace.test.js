import assert from "node:assert/strict";
import { test } from "node:test";
import { DrawingLoop, EdgeBudget } from "../src/pace.js";

// A window whose time only moves in the test: a screen of 60 pictures a second.
class Clock {
  now = 0;
  frames = [];
  timers = [];
  performance = { now: () => this.now };
  requestAnimationFrame(call) {
    this.frames.push(call);
  }
  setTimeout(call, wait) {
    this.timers.push({ call, at: this.now + wait });
    return this.timers[this.timers.length - 1];
  }
  clearTimeout(timer) {
    this.timers = this.timers.filter((one) => one !== timer);
  }
  run(until, each = () => {}) {
    while (this.now < until) {
      this.now += 16;
      const due = this.timers.filter((timer) => timer.at <= this.now);
      this.timers = this.timers.filter((timer) => timer.at > this.now);
      for (const { call } of due) call();
      for (const call of this.frames.splice(0)) call(this.now);
      each();
    }
  }
}

// A loop on a machine where a picture takes a fixed time per thousand edges.
function machine(msPerThousand, all, touched) {
  const clock = new Clock();
  const seen = { pictures: [], readyAt: 0 };
  const loop = new DrawingLoop({
    clock,
    isTouched: () => touched,
    isDone: () => clock.now >= seen.readyAt,
    draw: (isAtRest) => {
      const edges = isAtRest ? all : loop.budget.of(all);
      seen.readyAt = clock.now + (msPerThousand * edges) / 1000;
      seen.pictures.push({ at: clock.now, edges, isAtRest });
      return { shown: edges, all, isWhole: edges === all && (isAtRest || !loop.budget.isThinAmong(all)) };
    },
  });
  return { clock, loop, seen };
}

test("a fast machine soon draws all edges of every picture", () => {
  const { clock, loop, seen } = machine(0.1, 50_000, true);
  clock.run(1000, () => loop.request());
  assert.equal(seen.pictures.at(-1).edges, 50_000);
  assert.ok(seen.pictures.length > 55);
});

test("a slow machine draws fewer edges while something moves", () => {
  const { clock, loop, seen } = machine(10, 50_000, true);
  clock.run(3000, () => loop.request());
  const moving = seen.pictures.filter(({ at }) => at > 1000 && at <= 3000);
  assert.ok(moving.length > 2 * 20, `${moving.length} pictures in two seconds`);
  assert.ok(moving.every(({ edges }) => edges < 8_000));
});

test("at rest every edge is drawn, once", () => {
  let touched = true;
  const { clock, loop, seen } = machine(10, 50_000, true);
  loop.isTouched = () => touched;
  clock.run(1000, () => loop.request());
  touched = false;
  clock.run(5000);
  const atRest = seen.pictures.filter(({ isAtRest }) => isAtRest);
  assert.deepEqual(atRest.map(({ edges }) => edges), [50_000]);
});

test("a viewer who touches without moving sees every edge after release", () => {
  let touched = true;
  const { clock, loop, seen } = machine(10, 50_000, true);
  loop.isTouched = () => touched;
  clock.run(1000, () => loop.request());
  clock.run(3000);
  assert.ok(!seen.pictures.some(({ isAtRest }) => isAtRest));
  touched = false;
  clock.run(5000);
  assert.equal(seen.pictures.at(-1).edges, 50_000);
  assert.equal(loop.isBusy, false);
});

test("however often a picture is asked for during a pause, one timer waits", () => {
  const { clock, loop } = machine(30, 50_000, false);
  clock.run(5000, () => {
    loop.request();
    assert.ok(clock.timers.length <= 2, "one that waits, and one that looks whether the picture is done");
  });
});

test("where nobody touches the page, slow pictures leave the machine to others", () => {
  const { clock, loop, seen } = machine(30, 50_000, false);
  clock.run(10_000, () => loop.request());
  const busy = seen.pictures.reduce((sum, { edges }) => sum + (30 * edges) / 1000, 0);
  assert.ok(busy < 0.4 * 10_000, `${busy} ms of 10 s`);
});

test("no picture is begun before the last one is finished", () => {
  const { clock, loop, seen } = machine(40, 50_000, true);
  clock.run(2000, () => loop.request());
  seen.pictures.slice(1).forEach(({ at }, i) => {
    assert.ok(at >= seen.pictures[i].at + (40 * seen.pictures[i].edges) / 1000);
  });
});

test("edges are thin after several slow pictures in a row, not after one, and whole again at rest", () => {
  const budget = new EdgeBudget();
  budget.note(100, 2000, 2000);
  assert.equal(budget.isStrained, false);
  budget.note(100, 2000, 2000);
  assert.equal(budget.isStrained, true);
  assert.deepEqual([budget.isThinAmong(2000), budget.isThinAmong(500)], [true, false]);
  for (let i = 0; i < 60; i++) budget.note(16, 2000, 2000);
  assert.equal(budget.isStrained, false);
  const { clock, loop, seen } = machine(100, 2000, false);
  clock.run(2000, () => loop.request());
  assert.equal(loop.budget.isStrained, true);
  clock.run(4000);
  assert.deepEqual([seen.pictures.at(-1).isAtRest, loop.isBusy], [true, false]);
});

test("where drawing is known to be slow, the first movement is already light", () => {
  assert.deepEqual([new EdgeBudget().isStrained, new EdgeBudget(true).isStrained], [false, true]);
  assert.ok(new EdgeBudget(true).of(1e5) < new EdgeBudget().of(1e5));
});

test("the number of edges never falls below a useful minimum", () => {
  const budget = new EdgeBudget();
  for (let i = 0; i < 50; i++) budget.note(5000, budget.of(1e5), 1e5);
  assert.equal(budget.of(1e5), 1500);
});
