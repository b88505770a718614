// What is drawn of the edges: how dark each is, and how one graph fades into the next.

// Weight that counts as heavy: 97 % of the edges are lighter.
export function heavyWeight(w) {
  if (!w.length) return 1;
  const step = Math.max(1, Math.floor(w.length / 20000));
  const sample = Float32Array.from({ length: Math.ceil(w.length / step) }, (_, i) => w[i * step]).sort();
  return sample[Math.floor(0.97 * (sample.length - 1))] || 1;
}

// Opacity of each edge. The more edges there are, the fainter each is drawn; those below the limit, a share of a heavy
// weight, are left out.
export function inkOf(w, limit) {
  const heavy = heavyWeight(w);
  const darkest = Math.min(0.85, Math.max(0.1, 14 / Math.sqrt(w.length || 1)));
  const ink = new Float32Array(w.length);
  for (let e = 0; e < w.length; e++) {
    const share = Math.min(1, w[e] / heavy);
    ink[e] = share < limit ? 0 : 0.02 + darkest * share ** 0.75;
  }
  return ink;
}

// Two graphs in one list: the ends of every edge of either, and its opacity in the first and in the second. Both are
// ordered by k, then l.
export function blend(before, after) {
  const most = before.ink.length + after.ink.length;
  const ends = new Uint32Array(2 * most);
  const ink = new Float32Array(2 * most);
  let [i, j, size] = [0, 0, 0];
  while (i < before.ink.length || j < after.ink.length) {
    let order = 0;
    if (i === before.ink.length) order = 1;
    else if (j === after.ink.length) order = -1;
    else order = before.k[i] - after.k[j] || before.l[i] - after.l[j];
    const from = order <= 0 ? before.ink[i] : 0;
    const to = order >= 0 ? after.ink[j] : 0;
    if (from > 0 || to > 0) {
      ends[2 * size] = order <= 0 ? before.k[i] : after.k[j];
      ends[2 * size + 1] = order <= 0 ? before.l[i] : after.l[j];
      ink[2 * size] = from;
      ink[2 * size + 1] = to;
      size++;
    }
    if (order <= 0) i++;
    if (order >= 0) j++;
  }
  return { ends: ends.slice(0, 2 * size), ink: ink.slice(0, 2 * size), marked: new Uint8Array(size) };
}

// The blended list as it looks at this moment, to fade on from.
export function frozen({ ends, ink, marked }, mixing) {
  const size = marked.length;
  const k = new Uint32Array(size);
  const l = new Uint32Array(size);
  const now = new Float32Array(size);
  for (let e = 0; e < size; e++) {
    k[e] = ends[2 * e];
    l[e] = ends[2 * e + 1];
    now[e] = ink[2 * e] + mixing * (ink[2 * e + 1] - ink[2 * e]);
  }
  return { k, l, ink: now };
}

const SHELVES = 64;

// The same edges with marked ones first and darker before fainter ones, so that the first few show most. Sorted by
// shelves of similar darkness, which takes one pass.
export function darkestFirst({ ends, ink, marked }) {
  const size = marked.length;
  const shelf = new Uint8Array(size);
  const starts = new Uint32Array(SHELVES + 1);
  for (let e = 0; e < size; e++) {
    const darkness = Math.min(1, Math.max(ink[2 * e], ink[2 * e + 1]));
    shelf[e] = marked[e] ? 0 : 1 + Math.floor((1 - darkness) * (SHELVES - 2));
    starts[shelf[e] + 1]++;
  }
  for (let i = 1; i <= SHELVES; i++) starts[i] += starts[i - 1];
  const sorted = { ends: new Uint32Array(2 * size), ink: new Float32Array(2 * size), marked: new Uint8Array(size) };
  for (let e = 0; e < size; e++) {
    const to = starts[shelf[e]]++;
    sorted.marked[to] = marked[e];
    sorted.ends[2 * to] = ends[2 * e];
    sorted.ends[2 * to + 1] = ends[2 * e + 1];
    sorted.ink[2 * to] = ink[2 * e];
    sorted.ink[2 * to + 1] = ink[2 * e + 1];
  }
  return sorted;
}
