// What the colour of a user means, and the legend that says so.
import { css, groupColour, valueColour, valueGradient } from "./colours.js";
import { el } from "./dom.js";
import { count, decimal, percent } from "./format.js";

export class Colouring {
  constructor(history, frame, by) {
    Object.assign(this, { history, frame, by });
    // One scale for the whole run, so that a user whose colour changes has changed.
    [this.worst, this.best] = by === "loss"
      ? [history.lossRange[1], history.lossRange[0]]
      : [Math.min(0.5, history.accuracyRange[0]), 1];
  }

  colourOf(k) {
    if (this.by === "group") return groupColour(this.history.group(k));
    const value = this.frame.users[this.by][k];
    return valueColour((value - this.worst) / (this.best - this.worst || 1));
  }

  legend() {
    const { history, frame } = this;
    const size = el("div", { className: "how" }, `${count(history.userCount)} users · ${count(frame.total)} edges`);
    const how = el("div", { className: "how" }, "size: confidence · line: weight");
    if (this.by === "group") {
      const chips = (history.info?.groupNames ?? []).map((name, g) =>
        el("span", {}, el("i", { className: "dot", style: { background: css(groupColour(g)) } }), name),
      );
      return [el("div", { className: "groups" }, ...chips), size, how];
    }
    const ends = this.by === "loss"
      ? [`loss ${decimal(this.worst)}`, decimal(this.best)]
      : [percent(this.worst, 0), "100 % right"];
    return [
      el("div", { className: "scale", style: { background: valueGradient() } }),
      el("div", { className: "ends" }, ...ends.map((text) => el("span", {}, text))),
      size,
      how,
    ];
  }
}
