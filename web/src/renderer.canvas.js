// Draws the same scene without a graphics card. Edges of similar opacity share one path, which is what makes it bearable.

const SHADES = 12;

function rgb(channels) {
  return channels.map((channel) => Math.round(channel * 255)).join(",");
}

export class CanvasRenderer {
  static make(canvas) {
    return new CanvasRenderer(canvas);
  }

  constructor(canvas) {
    this.kind = "canvas";
    this.canvas = canvas;
    this.context = canvas.getContext("2d");
    this.places = new Float32Array(0);
    this.nodes = { before: [], after: [], radius: [], strength: [] };
    this.edges = { ends: [], ink: [], marked: [] };
  }

  setPlaces(places) {
    this.places = places;
  }

  setNodes(nodes) {
    this.nodes = nodes;
  }

  setEdges(edges) {
    this.edges = edges;
  }

  draw(view) {
    const { context, canvas } = this;
    context.setTransform(1, 0, 0, 1, 0, 0);
    context.clearRect(0, 0, canvas.width, canvas.height);
    context.setTransform(view.ratio, 0, 0, view.ratio, 0, 0);
    this.drawEdges(view);
    this.drawNodes(view);
  }

  get isSoftware() {
    return true;
  }

  // A canvas draws at once.
  isDone() {
    return true;
  }

  at(k, camera) {
    return camera.toScreen(this.places[2 * k], this.places[2 * k + 1]);
  }

  drawEdges({ camera, mixing, theme, others, edgeCount }) {
    const { ends, ink, marked } = this.edges;
    const paths = new Map();
    for (let e = 0; e < Math.min(edgeCount, marked.length); e++) {
      let opacity = ink[2 * e] + mixing * (ink[2 * e + 1] - ink[2 * e]);
      opacity = marked[e] ? Math.min(0.25 + opacity * 1.6, 0.95) : opacity * others;
      const shade = Math.ceil(opacity * SHADES);
      if (opacity < 0.004) continue;
      const key = marked[e] ? -shade : shade;
      if (!paths.has(key)) paths.set(key, new Path2D());
      paths.get(key).moveTo(...this.at(ends[2 * e], camera));
      paths.get(key).lineTo(...this.at(ends[2 * e + 1], camera));
    }
    for (const [key, path] of [...paths].sort(([a], [b]) => b - a)) {
      const opacity = Math.abs(key) / SHADES;
      this.context.lineWidth = 0.6 + opacity;
      this.context.strokeStyle = `rgba(${rgb(key < 0 ? theme.accent : theme.edge)},${opacity})`;
      this.context.stroke(path);
    }
  }

  drawNodes({ camera, mixing, theme, nodeZoom }) {
    const { context } = this;
    const { before, after, radius, strength } = this.nodes;
    for (let k = 0; k < radius.length; k++) {
      const [x, y] = this.at(k, camera);
      const channel = (c) => Math.round(before[4 * k + c] + mixing * (after[4 * k + c] - before[4 * k + c]));
      context.globalAlpha = strength[k] ? 1 : 0.22;
      context.beginPath();
      context.arc(x, y, radius[k] * nodeZoom, 0, 2 * Math.PI);
      context.fillStyle = `rgb(${channel(0)},${channel(1)},${channel(2)})`;
      context.fill();
      context.lineWidth = strength[k] === 2 ? 2.4 : 1.2;
      context.strokeStyle = `rgb(${rgb(strength[k] === 2 ? theme.ink : theme.paper)})`;
      context.stroke();
    }
    context.globalAlpha = 1;
  }
}
