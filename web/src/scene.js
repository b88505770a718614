// The graph on the screen: layout, camera, pointer, and one of the two renderers.
import { Camera } from "./camera.js";
import { css } from "./colours.js";
import { blend, darkestFirst, frozen, inkOf } from "./edgeset.js";
import { Layout } from "./layout.js";
import { drawLabels, labelsOf, Tags } from "./names.js";
import { DrawingLoop } from "./pace.js";
import { CanvasRenderer } from "./renderer.canvas.js";
import { WebGLRenderer } from "./renderer.webgl.js";

const FADE_MS = 350;
const CLICK_PX = 5;
const TOUCH_MS = 400;
const FITTING_MS = 80;

function channels(value) {
  const hex = value.trim().replace("#", "");
  return [0, 2, 4].map((at) => parseInt(hex.slice(at, at + 2), 16) / 255);
}

// A canvas that has given one kind of context never gives another, so the fallback gets a fresh one.
function makeRenderer(canvas) {
  const forced = new URLSearchParams(location.search).get("renderer");
  const renderer = forced === "canvas" ? null : WebGLRenderer.make(canvas);
  if (renderer) return renderer;
  const fresh = canvas.cloneNode();
  canvas.replaceWith(fresh);
  return CanvasRenderer.make(fresh);
}

export class Scene {
  constructor(box, { onSelect, onHover, onMove }) {
    this.box = box;
    this.callbacks = { onSelect, onHover, onMove };
    this.renderer = makeRenderer(box.querySelector("canvas.graph"));
    this.canvas = this.renderer.canvas;
    this.names = box.querySelector("canvas.names");
    this.tags = new Tags(box);
    this.camera = new Camera();
    this.places = new Float32Array(0);
    this.edges = blend({ ink: [] }, { ink: [] });
    this.nodes = null;
    this.users = [];
    this.selected = null;
    this.hovered = null;
    this.fadeStart = -Infinity;
    this.drawn = 0;
    this.touchedAt = -Infinity;
    this.pointers = new Map();
    this.loop = new DrawingLoop({
      draw: (isAtRest) => this.draw(isAtRest),
      isDone: () => this.renderer.isDone(),
      isTouched: () => this.isTouched,
      isSlow: this.renderer.isSoftware,
    });
    this.layout = new Layout((places) => this.movedTo(places));
    this.watchSize();
    this.listen();
    this.canvas.addEventListener("webglcontextlost", (event) => event.preventDefault());
    this.canvas.addEventListener("webglcontextrestored", () => {
      this.renderer.prepare();
      this.uploadAll();
    });
    this.readTheme();
  }

  get isTouched() {
    return this.pointers.size > 0 || performance.now() - this.touchedAt < TOUCH_MS;
  }

  get mixing() {
    return Math.min(1, (performance.now() - this.fadeStart) / FADE_MS);
  }

  get focus() {
    return this.hovered ?? this.selected;
  }

  readTheme() {
    const style = getComputedStyle(document.documentElement);
    const read = (name) => channels(style.getPropertyValue(name));
    this.theme = { paper: read("--graph"), ink: read("--ink"), edge: read("--edge"), accent: read("--accent") };
    this.invalidate();
  }

  // Shows a graph. `colours` has three channels per user, `radii` one number.
  show({ edges, directed, limit, colours, radii, names }) {
    if (radii.length !== this.users.length) this.start(radii.length);
    this.users = names;
    this.directed = directed;
    this.shown = edges;
    const after = { k: edges.k, l: edges.l, ink: inkOf(edges.w, limit) };
    const mixing = this.mixing;
    const before = frozen(this.edges, mixing);
    this.edges = blend(before, after);
    this.nodes = this.blendNodes(colours, radii, mixing);
    // Where drawing is slow and nobody is at work with the graph, one picture of the new one does.
    this.fadeStart = this.loop.budget.isStrained && !this.isTouched ? -Infinity : performance.now();
    this.layout.send("discs", { radii: this.nodes.radius, width: this.camera.width, height: this.camera.height });
    this.layout.send("edges", { k: edges.k, l: edges.l, w: edges.w });
    this.mark();
  }

  start(count) {
    this.nodes = null;
    this.edges = blend({ ink: [] }, { ink: [] });
    this.layout.send("nodes", { count });
  }

  blendNodes(colours, radii, mixing) {
    const after = new Uint8Array(4 * radii.length);
    for (let k = 0; k < radii.length; k++) {
      after.set(colours[k], 4 * k);
      after[4 * k + 3] = 255;
    }
    const before = after.slice();
    if (this.nodes) {
      const { before: from, after: to } = this.nodes;
      for (let i = 0; i < before.length; i++) before[i] = from[i] + mixing * (to[i] - from[i]);
    }
    return { before, after, radius: Float32Array.from(radii), strength: new Uint8Array(radii.length) };
  }

  select(user) {
    this.selected = user;
    this.mark();
  }

  // Brings out the user in focus with those it learns from.
  mark() {
    if (!this.nodes) return;
    const { focus, nodes, edges } = this;
    nodes.strength.fill(focus === null ? 1 : 0);
    edges.marked.fill(0);
    if (focus !== null) {
      for (let e = 0; e < edges.marked.length; e++) {
        const [k, l] = [edges.ends[2 * e], edges.ends[2 * e + 1]];
        const isItsOwn = k === focus || (l === focus && !this.directed);
        if (!isItsOwn || edges.ink[2 * e + 1] === 0) continue;
        edges.marked[e] = 1;
        nodes.strength[k] = nodes.strength[l] = 1;
      }
      nodes.strength[focus] = 2;
    }
    if (this.selected !== null) nodes.strength[this.selected] = 2;
    this.uploadAll();
  }

  uploadAll() {
    if (!this.nodes) return;
    this.renderer.setNodes(this.nodes);
    this.renderer.setEdges(darkestFirst(this.edges));
    this.renderer.setPlaces(this.places);
    this.invalidate();
  }

  movedTo(places) {
    if (this.dragged !== undefined && this.dragged !== null) places.set(this.dragPlace, 2 * this.dragged);
    this.places = places;
    this.renderer.setPlaces(places);
    this.invalidate();
  }

  invalidate() {
    this.loop.request();
  }

  // Whether all that there is to see is on the screen.
  get isAtRest() {
    return !this.loop.isBusy && this.mixing === 1 && Boolean(this.loop.picture?.isWhole);
  }

  // Begins a picture, see `DrawingLoop`.
  draw(isAtRest) {
    const all = this.edges.marked.length;
    if (!this.nodes || !this.places.length) return { shown: all, all, isWhole: true };
    if (!this.camera.free) {
      const moving = this.camera.fit(this.places, this.fittingPart());
      this.fitScale = this.camera.scale;
      if (moving) this.invalidate();
    }
    if (this.mixing < 1) this.invalidate();
    const { budget } = this.loop;
    const shown = isAtRest ? all : budget.of(all);
    const isThin = !isAtRest && budget.isThinAmong(all);
    this.render(shown, isThin);
    this.drawNames();
    // Where drawing is slow the layout rests while somebody moves something, which then moves smoothly.
    if (!(this.isTouched && budget.isStrained)) this.layout.shown();
    this.shownEdges = shown;
    this.drawn++;
    if (this.drawn === 1) performance.mark("first-graph");
    return { shown, all, isWhole: shown === all && !isThin };
  }

  // Draws `edgeCount` edges, the darkest first, and all users. The picture can be read until the browser shows it.
  render(edgeCount, isThin = false) {
    const { mixing, nodeZoom, ratio, camera, theme } = this;
    const others = this.focus === null ? 1 : 0.18;
    this.renderer.draw({ camera, ratio, mixing, theme, nodeZoom, others, edgeCount, isThin });
  }

  // How far the camera moves towards its aim in this picture: the same way per second at any pace.
  fittingPart() {
    const now = performance.now();
    const passed = this.drawn ? now - this.drawnAt : Infinity;
    this.drawnAt = now;
    return 1 - Math.exp(-passed / FITTING_MS);
  }

  get nodeZoom() {
    const zoom = this.fitScale ? this.camera.scale / this.fitScale : 1;
    return Math.min(5, Math.max(0.6, Math.sqrt(zoom)));
  }

  drawNames() {
    const all = labelsOf(this);
    this.tags.show(all.filter(({ kind }) => kind === "tag"));
    const labels = all.filter(({ kind }) => kind !== "tag");
    // To clear what is clear costs time all the same.
    if (!labels.length && !this.hasNames) return;
    this.hasNames = labels.length > 0;
    this.names.hidden = !this.hasNames;
    const context = this.names.getContext("2d");
    context.setTransform(this.ratio, 0, 0, this.ratio, 0, 0);
    context.clearRect(0, 0, this.camera.width, this.camera.height);
    drawLabels(context, labels, css(this.theme.paper.map((channel) => Math.round(channel * 255))));
  }

  watchSize() {
    const resize = () => {
      const { width, height } = this.box.getBoundingClientRect();
      if (!width || !height) return;
      this.ratio = Math.min(window.devicePixelRatio || 1, 2);
      Object.assign(this.camera, { width, height });
      for (const canvas of [this.canvas, this.names]) {
        canvas.width = Math.round(width * this.ratio);
        canvas.height = Math.round(height * this.ratio);
      }
      this.invalidate();
    };
    new ResizeObserver(resize).observe(this.box);
    resize();
  }

  userAt(px, py) {
    if (!this.nodes) return null;
    let best = null;
    let least = Infinity;
    const zoom = this.nodeZoom;
    for (let k = 0; k < this.nodes.radius.length; k++) {
      const [x, y] = this.camera.toScreen(this.places[2 * k], this.places[2 * k + 1]);
      const distance = Math.hypot(x - px, y - py);
      const reach = Math.max(this.nodes.radius[k] * zoom, 5) + 3;
      if (distance < reach && distance < least) [best, least] = [k, distance];
    }
    return best;
  }

  screenPlace(k) {
    return this.camera.toScreen(this.places[2 * k], this.places[2 * k + 1]);
  }

  zoomBy(factor, px, py) {
    this.touchedAt = performance.now();
    this.camera.zoom(factor, px, py);
    this.callbacks.onMove();
    this.invalidate();
  }

  fitAll() {
    this.camera.free = false;
    this.callbacks.onMove();
    this.invalidate();
  }

  hover(user) {
    if (user === this.hovered) return;
    this.touchedAt = performance.now();
    this.hovered = user;
    this.canvas.style.cursor = user === null ? "grab" : "pointer";
    this.mark();
    this.callbacks.onHover(user);
  }

  listen() {
    const { box, pointers } = this;
    let way = 0;
    let pinch = 0;
    const local = (event) => {
      const { left, top } = box.getBoundingClientRect();
      return [event.clientX - left, event.clientY - top];
    };
    const apart = () => {
      const [[ax, ay], [bx, by]] = [...pointers.values()];
      return [Math.hypot(ax - bx, ay - by), (ax + bx) / 2, (ay + by) / 2];
    };
    box.addEventListener("pointerdown", (event) => {
      if (!event.target.closest("canvas") || event.button > 0) return;
      box.setPointerCapture(event.pointerId);
      pointers.set(event.pointerId, local(event));
      way = 0;
      if (pointers.size === 2) [pinch] = apart();
      this.dragged = pointers.size === 1 ? this.userAt(...local(event)) : null;
    });
    box.addEventListener("pointermove", (event) => {
      const [x, y] = local(event);
      const before = pointers.get(event.pointerId);
      if (!before) {
        this.hover(event.target.closest("canvas") ? this.userAt(x, y) : null);
        return;
      }
      pointers.set(event.pointerId, [x, y]);
      way += Math.hypot(x - before[0], y - before[1]);
      if (pointers.size === 2) {
        const [distance, middleX, middleY] = apart();
        this.zoomBy(distance / pinch, middleX, middleY);
        pinch = distance;
      } else if (this.dragged !== null && way > CLICK_PX) {
        this.dragUser(x, y);
      } else if (way > CLICK_PX) {
        this.camera.pan(x - before[0], y - before[1]);
        this.callbacks.onMove();
        this.invalidate();
      }
    });
    const end = (event) => {
      if (!pointers.delete(event.pointerId)) return;
      if (way <= CLICK_PX && event.type === "pointerup") this.callbacks.onSelect(this.userAt(...local(event)));
      if (this.dragged !== null && way > CLICK_PX) this.layout.send("unpin", { k: this.dragged });
      this.dragged = null;
    };
    box.addEventListener("pointerup", end);
    box.addEventListener("pointercancel", end);
    box.addEventListener("pointerleave", () => this.hover(null));
    box.addEventListener(
      "wheel",
      (event) => {
        if (!event.target.closest("canvas")) return;
        event.preventDefault();
        this.zoomBy(Math.exp(-event.deltaY * (event.ctrlKey ? 0.01 : 0.0015)), ...local(event));
      },
      { passive: false },
    );
    box.addEventListener("dblclick", (event) => {
      if (event.target.closest("canvas")) this.zoomBy(1.8, ...local(event));
    });
  }

  dragUser(px, py) {
    this.camera.free = true;
    this.dragPlace = this.camera.toWorld(px, py);
    this.places.set(this.dragPlace, 2 * this.dragged);
    this.renderer.setPlaces(this.places);
    this.layout.send("pin", { k: this.dragged, x: this.dragPlace[0], y: this.dragPlace[1] });
    this.invalidate();
  }
}
