// A run as far as it is known: its description, its curves, and the graph at any moment.

const NO_EDGES = { k: new Uint32Array(0), l: new Uint32Array(0), w: new Float32Array(0) };

// Edges after changes; both are ordered by k, then l, and a change to weight 0 removes an edge.
export function applyChanges(edges, changes) {
  const n = edges.w.length;
  const m = changes.w.length;
  const k = new Uint32Array(n + m);
  const l = new Uint32Array(n + m);
  const w = new Float32Array(n + m);
  let i = 0;
  let j = 0;
  let size = 0;
  while (i < n || j < m) {
    let order = i === n ? 1 : j === m ? -1 : edges.k[i] - changes.k[j] || edges.l[i] - changes.l[j];
    if (order < 0) {
      k[size] = edges.k[i];
      l[size] = edges.l[i];
      w[size++] = edges.w[i++];
      continue;
    }
    if (order === 0) i++;
    if (changes.w[j] > 0) {
      k[size] = changes.k[j];
      l[size] = changes.l[j];
      w[size++] = changes.w[j];
    }
    j++;
  }
  return { k: k.slice(0, size), l: l.slice(0, size), w: w.slice(0, size) };
}

export function percentile(values, share) {
  const known = Float64Array.from(values).filter(Number.isFinite).sort();
  if (!known.length) return NaN;
  const place = share * (known.length - 1);
  const low = Math.floor(place);
  const high = Math.ceil(place);
  return known[low] + (place - low) * (known[high] - known[low]);
}

export function summary(values) {
  let sum = 0;
  let count = 0;
  let worst = Infinity;
  for (const value of values) {
    if (!Number.isFinite(value)) continue;
    sum += value;
    count++;
    if (value < worst) worst = value;
  }
  return count ? { mean: sum / count, tenth: percentile(values, 0.1), worst } : null;
}

function total(values) {
  let sum = 0;
  for (const value of values) sum += value;
  return sum;
}

export class History {
  constructor() {
    this.info = null;
    this.phases = [];
    this.points = [];
    this.frames = [];
    this.peers = [];
    this.notes = [];
    this.progress = null;
    this.stop = null;
    this.lossRange = [Infinity, -Infinity];
    this.accuracyRange = [Infinity, 1];
    this.pendingEdges = null;
    this.cache = { index: -1, edges: NO_EDGES };
  }

  get userCount() {
    return this.frames.length ? this.frames[this.lastIndex].users.loss.length : this.info?.users.length || 0;
  }

  get lastIndex() {
    return this.frames.length - 1;
  }

  get duration() {
    const last = [this.frames, this.points, this.peers].map((list) => (list.length ? list[list.length - 1].at : 0));
    return Math.max(this.stop?.at ?? 0, ...last);
  }

  add(record) {
    if (record.kind === "edges") this.pendingEdges = record;
    else if (record.kind === "users") this.addFrame(record);
    else if (record.kind === "point") this.points.push(record);
    else if (record.kind === "phase") this.phases.push(record);
    else if (record.kind === "peers") this.peers.push(record);
    else if (record.kind === "note") this.notes.push(record);
    else this[record.kind] = record;
  }

  addFrame(users) {
    const changes = this.pendingEdges;
    if (!changes) return;
    this.pendingEdges = null;
    const spread = summary(users.accuracy);
    this.frames.push({
      at: users.at, updates: users.updates, phase: changes.phase, directed: changes.directed,
      total: changes.total, changes, users, accuracy: spread,
      messages: total(users.messages), bits: total(users.bits),
    });
    const [low, high] = this.lossRange;
    this.lossRange = [Math.min(low, percentile(users.loss, 0.02)), Math.max(high, percentile(users.loss, 0.98))];
    if (spread) this.accuracyRange[0] = Math.min(this.accuracyRange[0], percentile(users.accuracy, 0.02));
  }

  name(k) {
    return this.info?.users[k] ?? String(k);
  }

  group(k) {
    const groups = this.info?.groups;
    return groups?.length ? groups[k] : null;
  }

  // Accuracy of each user when it learned alone: as reported, or at the end of the phase of local learning.
  get alone() {
    if (this.info?.alone.length) return this.info.alone;
    for (let i = this.frames.length - 1; i >= 0; i--) {
      if (this.frames[i].phase === "local" && this.frames[i].accuracy) return this.frames[i].users.accuracy;
    }
    return null;
  }

  // The samples on which accuracies were measured, if the run reports them.
  get judgedOn() {
    if (this.points.some((point) => point.test)) return "test";
    return this.points.some((point) => point.train) ? "training" : "";
  }

  // Bits sent so far: as users count them, or more where a later point knows of other messages, such as those of trees.
  bitsAt(frame) {
    const reached = this.points.filter((point) => point.updates <= frame.updates);
    return Math.max(frame.bits, ...reached.map((point) => point.bits ?? 0));
  }

  edgesAt(index) {
    let from = index;
    while (from > this.cache.index && !this.frames[from].changes.whole) from--;
    let edges;
    if (this.cache.index >= 0 && this.cache.index <= index && from <= this.cache.index) {
      edges = this.cache.edges;
      from = this.cache.index + 1;
    } else {
      while (!this.frames[from].changes.whole) from--;
      edges = NO_EDGES;
    }
    for (let i = from; i <= index; i++) {
      const { changes } = this.frames[i];
      edges = applyChanges(changes.whole ? NO_EDGES : edges, changes);
    }
    this.cache = { index, edges };
    return edges;
  }

  // Who user k learns from in the given graph, heaviest first.
  neighbours(edges, k, directed) {
    const found = [];
    for (let e = 0; e < edges.w.length; e++) {
      if (edges.k[e] === k) found.push({ user: edges.l[e], weight: edges.w[e] });
      else if (!directed && edges.l[e] === k) found.push({ user: edges.k[e], weight: edges.w[e] });
    }
    return found.sort((a, b) => b.weight - a.weight || a.user - b.user);
  }

  peersAt(at) {
    let found = null;
    for (const record of this.peers) {
      if (record.at > at && found) break;
      found = record;
    }
    return found;
  }
}
