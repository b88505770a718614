import assert from "node:assert/strict";
import { test } from "node:test";
import { Camera } from "../src/camera.js";
import { labelsOf } from "../src/names.js";

function scene(names, { radius = 12, ...given } = {}) {
  const camera = Object.assign(new Camera(), { width: 1000, height: 1000 });
  const count = names.length;
  return {
    camera, users: names, focus: null, selected: null, nodeZoom: 1, fitScale: 1,
    theme: { ink: [0, 0, 0] },
    places: new Float32Array(2 * count),
    nodes: {
      radius: new Float32Array(count).fill(radius),
      after: new Uint8Array(4 * count),
      strength: new Uint8Array(count).fill(1),
    },
    ...given,
  };
}

test("a name is in its disc, in smaller letters if needed, or below it", () => {
  const [short, longer, longest] = labelsOf(scene(["7", "ann12", "somebody else"]));
  assert.equal(short.kind, "inside");
  assert.equal(longer.kind, "inside");
  assert.ok(longer.letter < short.letter);
  assert.equal(longest.kind, "below");
});

test("of many users only the one in focus is named, and all of them close up", () => {
  const names = Array.from({ length: 500 }, (_, k) => `user number ${k}`);
  assert.deepEqual(labelsOf(scene(names)), []);
  assert.deepEqual(labelsOf(scene(names, { focus: 3 })).map(({ kind, name }) => [kind, name]), [["tag", "user number 3"]]);
  const close = Object.assign(new Camera(), { width: 1000, height: 1000, scale: 4 });
  assert.equal(labelsOf(scene(names, { camera: close })).length, 500);
});

test("with somebody in focus, those who have nothing to do with it are not named", () => {
  const shown = scene(["a", "b", "c"], { focus: 0 });
  shown.nodes.strength.set([2, 1, 0]);
  assert.deepEqual(labelsOf(shown).map(({ name }) => name), ["a", "b"]);
});

test("nobody outside the view is named", () => {
  const shown = scene(["a", "b"]);
  shown.places.set([0, 0, 5000, 0]);
  assert.deepEqual(labelsOf(shown).map(({ name }) => name), ["a"]);
});
