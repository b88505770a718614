// Downloads: the graph as a picture, the data as JSON.
import { css } from "./colours.js";
import { save } from "./dom.js";
import { drawLabels, labelsOf } from "./names.js";

function fileName(history, suffix) {
  const title = (history.info?.title || "dada").toLowerCase().replace(/[^a-z0-9]+/g, "-").replace(/^-|-$/g, "");
  return `${title || "dada"}.${suffix}`;
}

const paint = (channels) => css(channels.map((channel) => Math.round(channel * 255)));

export function savePng(scene, history) {
  const { canvas, ratio, theme } = scene;
  const copy = document.createElement("canvas");
  Object.assign(copy, { width: canvas.width, height: canvas.height });
  const context = copy.getContext("2d");
  context.fillStyle = paint(theme.paper);
  context.fillRect(0, 0, copy.width, copy.height);
  scene.render(scene.edges.marked.length);
  context.drawImage(canvas, 0, 0);
  context.scale(ratio, ratio);
  drawLabels(context, labelsOf(scene), paint(theme.paper));
  copy.toBlob((blob) => save(fileName(history, "png"), blob), "image/png");
}

const escaped = (text) => text.replace(/[&<>"]/g, (letter) => `&#${letter.charCodeAt(0)};`);

export function svgOf(scene) {
  const { camera, edges, nodes, theme, users, nodeZoom } = scene;
  const fixed = (number) => number.toFixed(2);
  const at = (k) => camera.toScreen(scene.places[2 * k], scene.places[2 * k + 1]).map(fixed);
  const lines = [];
  for (let e = 0; e < edges.marked.length; e++) {
    const opacity = edges.ink[2 * e + 1];
    if (!(opacity > 0)) continue;
    const [x1, y1] = at(edges.ends[2 * e]);
    const [x2, y2] = at(edges.ends[2 * e + 1]);
    lines.push(`<path d="M${x1} ${y1}L${x2} ${y2}" opacity="${fixed(opacity)}"/>`);
  }
  const discs = Array.from(nodes.radius, (radius, k) => {
    const [x, y] = at(k);
    const colour = css([nodes.after[4 * k], nodes.after[4 * k + 1], nodes.after[4 * k + 2]]);
    return `<circle cx="${x}" cy="${y}" r="${fixed(radius * nodeZoom)}" fill="${colour}"><title>${escaped(users[k])}</title></circle>`;
  });
  const names = labelsOf(scene).map(({ name, x, y, letter, colour, kind }) => {
    const fill = kind === "inside" ? colour : paint(theme.ink);
    return `<text x="${fixed(x)}" y="${fixed(y)}" font-size="${fixed(letter)}" fill="${fill}">${escaped(name)}</text>`;
  });
  const { width, height } = camera;
  return [
    `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 ${fixed(width)} ${fixed(height)}">`,
    `<rect width="100%" height="100%" fill="${paint(theme.paper)}"/>`,
    `<g stroke="${paint(theme.edge)}" stroke-width="1">${lines.join("")}</g>`,
    `<g stroke="${paint(theme.paper)}" stroke-width="1.2">${discs.join("")}</g>`,
    `<g font-family="sans-serif" text-anchor="middle" dominant-baseline="central">${names.join("")}</g>`,
    "</svg>",
  ].join("\n");
}

export function saveSvg(scene, history) {
  save(fileName(history, "svg"), new Blob([svgOf(scene)], { type: "image/svg+xml" }));
}

// The shown moment and the curves, in words that explain themselves.
export function jsonOf(history, frame, edges) {
  const known = (value) => (Number.isFinite(value) ? value : null);
  const users = Array.from({ length: frame.users.loss.length }, (_, k) => ({
    name: history.name(k),
    group: history.group(k),
    confidence: known(frame.users.confidence[k]),
    loss: known(frame.users.loss[k]),
    accuracy: known(frame.users.accuracy[k]),
    messages: known(frame.users.messages[k]),
    bits: known(frame.users.bits[k]),
  }));
  const links = Array.from(edges.w, (weight, e) => ({ source: edges.k[e], target: edges.l[e], weight }));
  const { at, updates, phase, directed } = frame;
  const curves = history.points.map(({ kind, ...point }) => point);
  return { title: history.info?.title ?? "", time_s: at, updates, phase, directed, users, edges: links, curves };
}

export function saveJson(history, frame, edges) {
  const text = JSON.stringify(jsonOf(history, frame, edges), null, 1);
  save(fileName(history, "json"), new Blob([text], { type: "application/json" }));
}
