// The meaning of a user's colour, and its legend.
import { css, groupColour, UNKNOWN, valueColour, valueGradient } from "./colours.js";
import { el } from "./dom.js";
import { count, decimal, percent } from "./format.js";

export class Colouring {
  constructor(history, frame, by, theme) {
    Object.assign(this, { history, frame, by, theme });
    // One scale for the whole run, so that a user whose colour changes has changed.
    [this.worst, this.best] = by === "loss"
      ? [history.lossRange[1], history.lossRange[0]]
      : [Math.min(0.5, history.accuracyRange[0]), 1];
  }

  colourOf(k) {
    if (this.by === "group") return groupColour(this.history.group(k));
    const value = this.frame.users[this.by][k];
    return valueColour((value - this.worst) / (this.best - this.worst || 1), this.theme);
  }

  // `hasGrey`: whether some users have no colour of their own.
  legend(hasGrey) {
    const { history, frame } = this;
    const size = el("span", { className: "how" }, `${count(frame.users.loss.length)} users · ${count(frame.total)} edges`);
    const how = el("span", { className: "how wide" }, "size: confidence · line: weight");
    const grey = hasGrey ? [chip(UNKNOWN, history.peers.length ? "down or unknown" : "unknown")] : [];
    if (this.by === "group") {
      const chips = (history.info?.groupNames ?? []).map((name, g) => chip(groupColour(g), name));
      return [...chips, ...grey, size, how];
    }
    const ends = this.by === "loss"
      ? [`loss ${decimal(this.worst)}`, decimal(this.best)]
      : [percent(this.worst, 0), "100 % right"];
    const [worst, best] = ends.map((text) => el("span", {}, text));
    return [worst, el("span", { className: "scale", style: { background: valueGradient(this.theme) } }), best, ...grey, size, how];
  }
}

function chip(colour, text) {
  return el("span", { className: "chip-plain" }, el("i", { className: "dot", style: { background: css(colour) } }), text);
}
