import assert from "node:assert/strict";
import { test } from "node:test";
import { DEFAULTS, readHash, writeHash } from "../src/viewstate.js";

test("a view survives the way through a link", () => {
  const view = { frame: 12, colour: "group", limit: 0.25, user: 7, x: "bits", theme: "dark", camera: [1.5, -2, 0.75] };
  assert.deepEqual(readHash(writeHash(view)), view);
  assert.equal(writeHash(DEFAULTS), "");
});

test("nonsense in a link is left out", () => {
  assert.deepEqual(readHash("#frame=-1&colour=pink&limit=7&user=x&camera=1,2&__proto__=1"), DEFAULTS);
});
