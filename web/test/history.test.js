import assert from "node:assert/strict";
import { test } from "node:test";
import { applyChanges, History, percentile } from "../src/history.js";

const list = (...edges) => ({
  k: Uint16Array.from(edges, (edge) => edge[0]),
  l: Uint16Array.from(edges, (edge) => edge[1]),
  w: Float32Array.from(edges, (edge) => edge[2]),
});
const triples = ({ k, l, w }) => [...w].map((weight, e) => [k[e], l[e], weight]);

function add(history, at, whole, ...edges) {
  const { k, l, w } = list(...edges);
  history.add({ kind: "edges", at, updates: at, phase: "models", whole, directed: false, total: w.length, k, l, w });
  const two = Float32Array.of(0.5, 1);
  history.add({
    kind: "users", at, updates: at, tops: 0, confidence: two, loss: two, accuracy: two,
    predictors: new Int32Array(0), predictorWeights: new Float32Array(0), messages: new Float64Array(2), bits: two,
  });
}

test("changes add, alter and remove edges and keep the order", () => {
  const after = applyChanges(list([0, 1, 1], [0, 3, 1], [2, 3, 1]), list([0, 2, 4], [0, 3, 0], [2, 3, 2], [3, 4, 1]));
  assert.deepEqual(triples(after), [[0, 1, 1], [0, 2, 4], [2, 3, 2], [3, 4, 1]]);
});

test("the graph of any moment is the same, in whatever order moments are visited", () => {
  const history = new History();
  add(history, 0, true, [0, 1, 1]);
  add(history, 1, false, [0, 2, 1]);
  add(history, 2, false, [0, 1, 0]);
  add(history, 3, true, [1, 2, 5]);
  add(history, 4, false, [0, 1, 2]);
  const expected = [
    [[0, 1, 1]], [[0, 1, 1], [0, 2, 1]], [[0, 2, 1]], [[1, 2, 5]], [[0, 1, 2], [1, 2, 5]],
  ];
  for (const order of [[0, 1, 2, 3, 4], [4, 3, 2, 1, 0], [2, 4, 1, 1, 3, 0]]) {
    for (const i of order) assert.deepEqual(triples(history.edgesAt(i)), expected[i]);
  }
});

test("neighbours of a user, heaviest first; in a directed graph only those it learns from", () => {
  const history = new History();
  const edges = list([0, 1, 1], [0, 2, 3], [2, 1, 2]);
  assert.deepEqual(history.neighbours(edges, 1, false).map((one) => one.user), [2, 0]);
  assert.deepEqual(history.neighbours(edges, 1, true), []);
});

test("percentiles leave out what is unknown", () => {
  assert.equal(percentile([NaN, 1, 3, 2], 0.5), 2);
  assert.ok(Number.isNaN(percentile([], 0.5)));
});

test("a last point with more messages than users counted gives the bits, and the slider goes back before it", () => {
  const history = new History();
  add(history, 0, true, [0, 1, 1]);
  add(history, 1, true, [0, 1, 1]);
  for (const [updates, bits] of [[0, 0], [1, 1.5], [1, 40]]) history.add({ kind: "point", at: updates, updates, bits });
  assert.deepEqual(history.frames.map((frame) => history.bitsAt(frame)), [1.5, 40]);
});
