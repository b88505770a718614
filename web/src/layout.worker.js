// Places the users: ForceAtlas2, running in a separate thread until nothing moves.
import iterate from "graphology-layout-forceatlas2/iterate.js";
import { boundsOf } from "./camera.js";

// Numbers per node and per edge, and the position of each number of a node.
const [NODE, EDGE] = [10, 3];
const [X, Y, MASS, CONVERGENCE, SIZE, FIXED] = [0, 1, 6, 7, 8, 9];
const SLICE_MS = 24;
// The most rounds after a change of the graph, and the movement per round at which the layout has settled.
const [MOST_ROUNDS, SETTLED] = [700, 0.0006];
// The distance between discs, as a multiple of their size; with more discs they may overlap.
const [ROOM, MOST_TO_SEPARATE] = [1.75, 3000];
const [FOLLOW, PUSHES] = [0.06, 6];

let [nodes, edges, shown] = [new Float32Array(0), new Float32Array(0), new Float32Array(0)];
// Radii of the discs and the size of the view, both in pixels.
let discs = { radii: new Float32Array(0), width: 1, height: 1 };
let rounds = 0;
let [waiting, paused, scheduled] = [false, false, false];

// Golden-angle spiral: the same even start in every view of a run.
function start(count) {
  const before = nodes.subarray(0, count * NODE);
  nodes = new Float32Array(count * NODE);
  // If users join or leave, the others keep their places.
  nodes.set(before);
  const step = Math.PI * (3 - Math.sqrt(5));
  for (let i = before.length / NODE; i < count; i++) {
    const radius = 10 * Math.sqrt(i + 0.5);
    nodes[i * NODE + X] = radius * Math.cos(i * step);
    nodes[i * NODE + Y] = radius * Math.sin(i * step);
    nodes[i * NODE + MASS] = 1;
    nodes[i * NODE + CONVERGENCE] = 1;
    nodes[i * NODE + SIZE] = 1;
  }
}

// An edge pulls as strongly as its share in the degrees of its ends, so that hubs do not draw all users into one heap.
function setEdges({ k, l, w }) {
  const degree = new Float64Array(nodes.length / NODE);
  for (let e = 0; e < w.length; e++) {
    degree[k[e]] += w[e];
    degree[l[e]] += w[e];
  }
  edges = new Float32Array(w.length * EDGE);
  for (let e = 0; e < w.length; e++) {
    edges[e * EDGE] = k[e] * NODE;
    edges[e * EDGE + 1] = l[e] * NODE;
    edges[e * EDGE + 2] = (8 * w[e]) / Math.sqrt(degree[k[e]] * degree[l[e]]);
  }
}

function settings() {
  const count = nodes.length / NODE;
  return {
    linLogMode: false, outboundAttractionDistribution: false, adjustSizes: false, edgeWeightInfluence: 1,
    scalingRatio: 30, strongGravityMode: true, gravity: 0.12 * Math.sqrt(100 / Math.max(count, 100)),
    slowDown: 1 + Math.log10(Math.max(count, 10)), barnesHutOptimize: count > 300, barnesHutTheta: 0.7,
  };
}

// Pixels per unit when all users are in view.
function scaleOfView(places) {
  const [left, right, top, bottom] = boundsOf(places);
  return Math.min(discs.width / Math.max(right - left, 1e-6), discs.height / Math.max(bottom - top, 1e-6));
}

// Pushes discs that lie over each other apart. Only discs in the same or a next cell can touch.
function separate(places) {
  const count = places.length / 2;
  const unit = ROOM / scaleOfView(places);
  const cell = 2 * unit * discs.radii.reduce((most, radius) => Math.max(most, radius), 0);
  const cells = new Map();
  const key = (column, row) => column * 65536 + row;
  for (let k = 0; k < count; k++) {
    const place = key(Math.floor(places[2 * k] / cell), Math.floor(places[2 * k + 1] / cell));
    if (cells.has(place)) cells.get(place).push(k);
    else cells.set(place, [k]);
  }
  for (let k = 0; k < count; k++) {
    const column = Math.floor(places[2 * k] / cell);
    const row = Math.floor(places[2 * k + 1] / cell);
    for (let near = 0; near < 9; near++) {
      for (const l of cells.get(key(column + (near % 3) - 1, row + Math.floor(near / 3) - 1)) ?? []) {
        if (l > k) pushApart(places, k, l, unit * (discs.radii[k] + discs.radii[l]));
      }
    }
  }
}

function pushApart(places, k, l, apart) {
  let dx = places[2 * l] - places[2 * k];
  const dy = places[2 * l + 1] - places[2 * k + 1];
  let distance = Math.hypot(dx, dy);
  if (distance >= apart) return;
  if (distance < 1e-6) dx = distance = 1e-6;
  const push = (0.4 * (apart - distance)) / distance;
  places[2 * k] -= push * dx;
  places[2 * k + 1] -= push * dy;
  places[2 * l] += push * dx;
  places[2 * l + 1] += push * dy;
}

// Where the discs are shown follows where the forces want them, while discs keep apart.
function follow(rounds) {
  const wanted = positions();
  if (shown.length !== wanted.length) {
    const before = shown.subarray(0, wanted.length);
    shown = wanted.slice();
    shown.set(before);
  }
  const separates = discs.radii.length === shown.length / 2 && discs.radii.length <= MOST_TO_SEPARATE;
  const part = separates ? FOLLOW : 1;
  for (let round = 0; round < rounds; round++) {
    for (let p = 0; p < shown.length; p++) shown[p] += part * (wanted[p] - shown[p]);
    if (separates) for (let again = 0; again < PUSHES; again++) separate(shown);
  }
  for (let k = 0; k < shown.length / 2; k++) {
    if (nodes[k * NODE + FIXED]) shown.set([wanted[2 * k], wanted[2 * k + 1]], 2 * k);
  }
}

function extent() {
  let sum = 0;
  for (let i = 0; i < nodes.length; i += NODE) sum += nodes[i + X] ** 2 + nodes[i + Y] ** 2;
  return Math.sqrt(sum / Math.max(nodes.length / NODE, 1));
}

function positions() {
  const places = new Float32Array((nodes.length / NODE) * 2);
  for (let i = 0, p = 0; i < nodes.length; i += NODE) {
    places[p++] = nodes[i + X];
    places[p++] = nodes[i + Y];
  }
  return places;
}

function movement(before) {
  if (before.length !== shown.length) return Infinity;
  let sum = 0;
  for (let p = 0; p < shown.length; p += 2) sum += Math.hypot(shown[p] - before[p], shown[p + 1] - before[p + 1]);
  return sum / (before.length / 2) / Math.max(extent(), 1e-9);
}

function work() {
  scheduled = false;
  // New users get a place even while the layout is paused.
  const isHeld = paused && shown.length === 2 * (nodes.length / NODE);
  if (isHeld || waiting || rounds >= MOST_ROUNDS || !nodes.length) return;
  const before = shown.slice();
  const options = settings();
  const until = performance.now() + SLICE_MS;
  let done = 0;
  while (!paused && (done === 0 || (performance.now() < until && done < 12))) {
    iterate(options, nodes, edges);
    done++;
  }
  follow(done);
  rounds += done;
  if (done && movement(before) / done < SETTLED) rounds = MOST_ROUNDS;
  waiting = true;
  const places = shown.slice();
  postMessage({ places, settled: rounds >= MOST_ROUNDS }, [places.buffer]);
}

function schedule() {
  if (scheduled) return;
  scheduled = true;
  setTimeout(work, 0);
}

const ACTIONS = {
  nodes: ({ count }) => start(count),
  edges: setEdges,
  discs: (message) => {
    discs = message;
  },
  pin: ({ k, x, y }) => {
    nodes[k * NODE + X] = x;
    nodes[k * NODE + Y] = y;
    nodes[k * NODE + FIXED] = 1;
  },
  unpin: ({ k }) => {
    nodes[k * NODE + FIXED] = 0;
  },
  pause: (message) => {
    paused = message.paused;
  },
};

onmessage = ({ data }) => {
  if (data.type === "ready") {
    waiting = false;
  } else {
    ACTIONS[data.type](data);
    rounds = 0;
  }
  schedule();
};
