// The view as a link: everything that a reader chose is in the part of the address after #.

export const DEFAULTS = { frame: "last", colour: "accuracy", limit: 0, user: null, x: "updates", theme: "auto", camera: null };
const COLOURS = ["accuracy", "loss", "group"];
const AXES = ["updates", "time", "bits"];
const THEMES = ["auto", "light", "dark"];

const oneOf = (known) => (text) => (known.includes(text) ? text : undefined);
const wholeNumber = (text) => (/^\d+$/.test(text) ? Number(text) : undefined);

const READERS = {
  frame: (text) => (text === "last" ? "last" : wholeNumber(text)),
  colour: oneOf(COLOURS),
  limit: (text) => (Number(text) >= 0 && Number(text) <= 1 ? Number(text) : undefined),
  user: wholeNumber,
  x: oneOf(AXES),
  theme: oneOf(THEMES),
  camera: (text) => {
    const numbers = text.split(",").map(Number);
    return numbers.length === 3 && numbers.every(Number.isFinite) && numbers[2] > 0 ? numbers : undefined;
  },
};

export function readHash(hash) {
  const view = { ...DEFAULTS };
  for (const [name, text] of new URLSearchParams(hash.replace(/^#/, ""))) {
    const value = Object.hasOwn(READERS, name) ? READERS[name](text) : undefined;
    if (value !== undefined) view[name] = value;
  }
  return view;
}

export function writeHash(view) {
  const changed = Object.keys(DEFAULTS).filter((name) => view[name] !== DEFAULTS[name]);
  const parts = changed.map((name) => {
    const value = name === "camera" ? view.camera.map((number) => Number(number.toPrecision(5))).join(",") : view[name];
    return `${name}=${value}`;
  });
  return parts.length ? `#${parts.join("&")}` : "";
}
