// The names of users on the graph: inside a disc if it fits, below it if there are few discs, and as a tag for
// the user in focus.
import { css, isLight } from "./colours.js";
import { el } from "./dom.js";

const MOST_NAMES = 160;
const MOST_NAMES_BELOW = 60;
// A letter is about this part of its height wide.
const WIDTH = 0.6;
const [LARGEST, SMALLEST] = [12, 6.5];

// What is to be written, and where: `kind` is "inside", "below" or "tag".
export function labelsOf({ nodes, places, camera, users, focus, selected, nodeZoom, fitScale, theme }) {
  const { radius, after, strength } = nodes;
  const isClose = camera.scale > 3 * (fitScale ?? 1);
  const everybody = radius.length <= MOST_NAMES || isClose;
  if (!everybody && focus === null) return [];
  const below = radius.length <= MOST_NAMES_BELOW || isClose;
  const ink = css(theme.ink.map((channel) => Math.round(channel * 255)));
  const labels = [];
  for (let k = 0; k < radius.length; k++) {
    const inFocus = k === focus || k === selected;
    if (!inFocus && (!everybody || strength[k] === 0)) continue;
    const size = radius[k] * nodeZoom;
    const [x, y] = camera.toScreen(places[2 * k], places[2 * k + 1]);
    if (x < 0 || y < 0 || x > camera.width || y > camera.height) continue;
    const name = users[k];
    const letter = Math.min(LARGEST, 0.95 * size, (1.8 * size) / (WIDTH * name.length));
    if (letter >= SMALLEST) {
      const isDarkOnLight = isLight([after[4 * k], after[4 * k + 1], after[4 * k + 2]]);
      labels.push({ kind: "inside", name, x, y, letter, colour: isDarkOnLight ? "#10151c" : "#ffffff" });
    } else if (inFocus) {
      labels.push({ kind: "tag", name, x, y: y - size - 14, letter: 12, colour: ink });
    } else if (below) {
      labels.push({ kind: "below", name, x, y: y + size + 8, letter: 10.5, colour: ink });
    }
  }
  return labels;
}

export function drawLabels(context, labels, paper) {
  const family = getComputedStyle(document.body).fontFamily;
  context.textAlign = "center";
  context.textBaseline = "middle";
  for (const { kind, name, x, y, letter, colour } of labels) {
    context.font = `${kind === "tag" ? 600 : 500} ${letter}px ${family}`;
    context.fillStyle = colour;
    if (kind === "tag") {
      const width = context.measureText(name).width + 12;
      context.beginPath();
      context.roundRect(x - width / 2, y - 10, width, 20, 6);
      context.fill();
      context.fillStyle = paper;
    } else if (kind === "below") {
      // Over edges a name reads by the paper around its letters.
      context.strokeStyle = paper;
      context.lineWidth = 3;
      context.lineJoin = "round";
      context.strokeText(name, x, y);
    }
    context.fillText(name, x, y + 0.5);
  }
}

// Tags on the page are elements: a small one that moves is cheap, a canvas as large as the graph over the graph is not.
export class Tags {
  constructor(box) {
    this.box = box;
    this.elements = [];
  }

  show(tags) {
    while (this.elements.length > tags.length) this.elements.pop().remove();
    tags.forEach(({ name, x, y }, i) => {
      if (!this.elements[i]) {
        this.elements[i] = el("div", { className: "tag", "aria-hidden": "true" });
        this.box.append(this.elements[i]);
      }
      const element = this.elements[i];
      if (element.textContent !== name) element.textContent = name;
      element.style.transform = `translate(${x}px, ${y}px) translate(-50%, -50%)`;
    });
  }
}
