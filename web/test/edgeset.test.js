import assert from "node:assert/strict";
import { test } from "node:test";
import { blend, darkestFirst, frozen, inkOf } from "../src/edgeset.js";

const edges = (...list) => ({ k: list.map(([k]) => k), l: list.map(([, l]) => l), ink: list.map(([, , ink]) => ink) });

test("two graphs are blended into one list in which old edges fade and new ones appear", () => {
  const both = blend(edges([0, 1, 0.5], [1, 2, 0.25]), edges([0, 1, 0.75], [0, 2, 1]));
  assert.deepEqual([...both.ends], [0, 1, 0, 2, 1, 2]);
  assert.deepEqual([...both.ink], [0.5, 0.75, 0, 1, 0.25, 0]);
  assert.deepEqual([...frozen(both, 0.5).ink], [0.625, 0.5, 0.125]);
});

test("heavier edges are darker, and those below the limit are left out", () => {
  const ink = inkOf(Float32Array.of(0.1, 0.5, 1, 1, 1), 0.2);
  assert.equal(ink[0], 0);
  assert.ok(ink[1] > 0 && ink[1] < ink[2]);
});

test("marked edges come first, then darker ones, and none is lost", () => {
  const both = blend(edges(), edges([0, 1, 0.1], [0, 2, 0.9], [0, 3, 0.5], [1, 2, 0.05]));
  both.marked[3] = 1;
  const sorted = darkestFirst(both);
  assert.deepEqual([...sorted.ends], [1, 2, 0, 2, 0, 3, 0, 1]);
  assert.deepEqual([...sorted.marked], [1, 0, 0, 0]);
});
