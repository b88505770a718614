import assert from "node:assert/strict";
import { test } from "node:test";
import { GROUP_COLOURS, UNKNOWN, valueColour } from "../src/colours.js";

// How colours look without one kind of cones: Machado, Oliveira and Fernandes (2009), severity 1, on linear light.
const EYES = {
  usual: [[1, 0, 0], [0, 1, 0], [0, 0, 1]],
  protanopia: [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]],
  deuteranopia: [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.01182, 0.04294, 0.968881]],
  tritanopia: [[1.255528, -0.076749, -0.178779], [-0.078411, 0.930809, 0.147602], [0.004733, 0.691367, 0.3039]],
};

const linear = (channel) => (channel <= 10.31475 ? channel / 3294.6 : ((channel / 255 + 0.055) / 1.055) ** 2.4);

function lab(colour, eye) {
  const light = colour.map(linear);
  const [r, g, b] = eye.map((row) => Math.min(1, Math.max(0, row.reduce((sum, part, c) => sum + part * light[c], 0))));
  const xyz = [
    (0.4124 * r + 0.3576 * g + 0.1805 * b) / 0.9505,
    0.2126 * r + 0.7152 * g + 0.0722 * b,
    (0.0193 * r + 0.1192 * g + 0.9505 * b) / 1.089,
  ];
  const [x, y, z] = xyz.map((part) => (part > 0.008856 ? Math.cbrt(part) : 7.787 * part + 16 / 116));
  return [116 * y - 16, 500 * (x - y), 200 * (y - z)];
}

const apart = (one, two, eye) => Math.hypot(...lab(one, eye).map((part, c) => part - lab(two, eye)[c]));

test("every eye distinguishes the colours of the first six groups", () => {
  for (const [name, eye] of Object.entries(EYES)) {
    for (const [i, one] of GROUP_COLOURS.slice(0, 6).entries()) {
      for (const two of GROUP_COLOURS.slice(i + 1, 6)) {
        assert.ok(apart(one, two, eye) > 10, `${name}: ${one} and ${two}, ${apart(one, two, eye).toFixed(1)}`);
      }
    }
  }
});

test("every eye distinguishes good and bad values, in either theme", () => {
  for (const theme of ["light", "dark"]) {
    for (const [name, eye] of Object.entries(EYES)) {
      for (let i = 0; i < 4; i++) {
        const [one, two] = [valueColour(i / 4, theme), valueColour((i + 1) / 4, theme)];
        assert.ok(apart(one, two, eye) > 10, `${name}, ${theme}: ${one} and ${two}`);
      }
      assert.ok(apart(valueColour(0, theme), valueColour(1, theme), eye) > 40, `${name}, ${theme}: the ends`);
    }
  }
});

test("a value that is not known has no colour of the scale", () => {
  assert.equal(valueColour(NaN, "light"), UNKNOWN);
  assert.deepEqual(valueColour(-1, "dark"), valueColour(0, "dark"));
});
