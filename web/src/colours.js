// Colours that colour-blind readers can distinguish: Okabe and Ito's for groups; for values, from orange to blue over a
// pale middle, so that hue and lightness both separate good from bad.

export const GROUP_COLOURS = [
  [0, 114, 178], [230, 159, 0], [0, 158, 115], [204, 121, 167], [86, 180, 233], [213, 94, 0], [148, 103, 189], [128, 128, 128],
];
// Both ends contrast with the page: dark on light, and bright on dark.
const VALUE_STOPS = {
  light: [[0, [178, 63, 12]], [0.25, [232, 138, 62]], [0.5, [243, 223, 176]], [0.75, [92, 165, 214]], [1, [8, 81, 156]]],
  dark: [[0, [214, 84, 24]], [0.25, [238, 150, 78]], [0.5, [244, 228, 190]], [0.75, [128, 190, 232]], [1, [38, 128, 214]]],
};
export const UNKNOWN = [150, 156, 166];

// The colour of a value between 0, worst, and 1, best.
export function valueColour(share, theme) {
  const stops = VALUE_STOPS[theme];
  if (!Number.isFinite(share)) return UNKNOWN;
  const value = Math.min(1, Math.max(0, share));
  for (let i = 1; i < stops.length; i++) {
    const [end, to] = stops[i];
    if (value > end) continue;
    const [begin, from] = stops[i - 1];
    const part = (value - begin) / (end - begin);
    return from.map((channel, c) => Math.round(channel + part * (to[c] - channel)));
  }
  return UNKNOWN;
}

export function groupColour(group) {
  return group === null || group < 0 ? UNKNOWN : GROUP_COLOURS[group % GROUP_COLOURS.length];
}

export function css([red, green, blue], alpha = 1) {
  return alpha === 1 ? `rgb(${red},${green},${blue})` : `rgba(${red},${green},${blue},${alpha})`;
}

export function valueGradient(theme) {
  return `linear-gradient(to right, ${VALUE_STOPS[theme].map(([at, colour]) => `${css(colour)} ${at * 100}%`).join(", ")})`;
}

// Whether dark letters read better than light ones on a colour.
export function isLight([red, green, blue]) {
  return 0.299 * red + 0.587 * green + 0.114 * blue > 150;
}
