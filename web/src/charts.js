// The curves of a run.
import uPlot from "uplot";
import { bits, count, decimal, percent, seconds, short } from "./format.js";

const AXES = {
  updates: { label: "model updates", value: (item) => item.updates, format: (value) => short(value), exact: count },
  time: { label: "time", value: (item) => item.at, format: (value) => `${decimal(value)} s`, exact: seconds },
  bits: { label: "bits sent", value: (item) => item.bits, format: bits, exact: bits },
};
const SERIES_COLOURS = ["--series-1", "--series-2", "--series-3"];
const HEIGHT = 150;
// Lines of other methods differ by their dashes; a key below the chart names them, where it hides no curve.
const DASHES = [[3, 3], [8, 3], [1, 3], [8, 3, 1, 3]];

// One row per distinct x, in ascending order; where several items share an x, the last one counts.
export function columns(items, x, series) {
  const table = [[], ...series.map(() => [])];
  for (const item of items) {
    const place = AXES[x].value(item);
    const last = table[0].length - 1;
    if (!Number.isFinite(place) || (last >= 0 && place < table[0][last])) continue;
    const row = last >= 0 && place === table[0][last] ? last : last + 1;
    table[0][row] = place;
    series.forEach(({ value }, s) => {
      const number = value(item);
      table[s + 1][row] = Number.isFinite(number) ? number : null;
    });
  }
  return table;
}

function variable(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(name).trim();
}

// Four ticks at even distances on a logarithmic axis, each a number with one digit.
function logarithmicTicks(low, high) {
  const ticks = [0.12, 0.38, 0.63, 0.88].map((part) => Number((low * (high / low) ** part).toPrecision(1)));
  return [...new Set(ticks)].filter((tick) => tick >= low && tick <= high);
}

function rate(frames) {
  return frames.map((frame, i) => {
    const before = frames[Math.max(0, i - 3)];
    const passed = frame.at - before.at;
    return { ...frame, rate: passed > 0 ? (frame.messages - before.messages) / passed : NaN };
  });
}

// What each chart shows. Accuracies come with snapshots and with trace points: shown are those of which there are more.
const CHARTS = [
  {
    title: "Accuracy",
    height: 200,
    titleOf: (history) => (history.judgedOn ? `Accuracy on ${history.judgedOn} rows` : "Accuracy"),
    format: (value) => percent(value, 0),
    exact: (value) => percent(value),
    baselines: true,
    items: (history) => {
      const frames = history.frames.filter((frame) => frame.accuracy);
      if (frames.length >= history.points.length) return frames;
      return history.points.map((point) => ({ ...point, accuracy: point.test ?? point.train }));
    },
    series: [
      { label: "mean", value: (item) => item.accuracy?.mean },
      { label: "10 % of users below", value: (item) => item.accuracy?.tenth },
      { label: "worst user", value: (item) => item.accuracy?.worst },
    ],
  },
  {
    title: "Objective",
    format: short,
    exact: decimal,
    items: (history) => history.points,
    series: [{ label: "objective", value: (item) => item.objective }],
  },
  {
    title: "Gap",
    format: short,
    exact: decimal,
    logarithmic: true,
    items: (history) => history.points,
    series: [{ label: "gap", value: (item) => (item.gap > 0 ? item.gap : NaN) }],
  },
  {
    title: "Neighbours per user",
    format: short,
    exact: decimal,
    items: (history) => history.frames,
    series: [
      {
        label: "mean",
        value: (frame) => ((frame.directed ? 1 : 2) * frame.total) / frame.users.loss.length,
      },
    ],
  },
  {
    title: "Messages per second",
    format: short,
    exact: short,
    items: (history) => rate(history.frames),
    series: [{ label: "messages/s", value: (item) => item.rate }],
  },
];

// Other methods from the best to the worst, as their lines lie from top to bottom.
function baselineLines(history) {
  const lines = Object.entries(history.info?.baselines ?? {}).map(([name, value]) => ({ name, value }));
  lines.sort((a, b) => b.value - a.value);
  return lines.map((line, i) => ({ ...line, dash: DASHES[i % DASHES.length] }));
}

function keyOf({ name, value, dash }) {
  const part = document.createElement("span");
  const sample = `<svg width="26" height="8" aria-hidden="true"><path d="M0 4h26" stroke="currentColor" stroke-dasharray="${dash}"/></svg>`;
  part.innerHTML = sample;
  part.append(` ${name} ${percent(value)}`);
  return part;
}

export class Charts {
  constructor(box, onSeek) {
    this.box = box;
    this.onSeek = onSeek;
    this.x = "updates";
    this.mark = null;
    this.plots = [];
    this.sync = uPlot.sync("run");
    this.watcher = new ResizeObserver(() => this.resize());
    this.watcher.observe(box);
  }

  // Charts take their colours from the page, so a new theme needs new charts.
  rebuild(history, x) {
    this.x = x;
    this.history = history;
    for (const { plot } of this.plots) plot.destroy();
    this.box.replaceChildren();
    this.plots = CHARTS.map((chart) => this.build(chart));
    this.update(history);
  }

  build(chart) {
    const figure = document.createElement("figure");
    figure.className = "chart";
    const caption = document.createElement("figcaption");
    const title = Object.assign(document.createElement("span"), { textContent: chart.title, className: "chart-title" });
    const legend = Object.assign(document.createElement("span"), { className: "chart-legend" });
    caption.append(title, legend);
    const holder = document.createElement("div");
    const key = Object.assign(document.createElement("p"), { className: "chart-key" });
    figure.append(caption, holder, key);
    this.box.append(figure);
    const colours = SERIES_COLOURS.map(variable);
    const axis = { stroke: variable("--faint"), grid: { stroke: variable("--line"), width: 1 }, ticks: { show: false } };
    const font = `11px ${getComputedStyle(document.body).fontFamily}`;
    const plot = new uPlot(
      {
        width: Math.max(holder.clientWidth, 120),
        height: chart.height ?? HEIGHT,
        padding: [8, 16, 0, 0],
        legend: { show: false },
        cursor: { sync: { key: "run" }, drag: { x: false, y: false }, points: { size: 6 } },
        scales: {
          x: { time: false },
          y: { distr: chart.logarithmic ? 3 : 1, range: this.rangeOf(chart) },
        },
        axes: [
          { ...axis, font, size: 26, gap: 3, space: 64, values: (_, ticks) => ticks.map((tick) => this.xText(tick)) },
          {
            ...axis, font, size: 46, gap: 3, space: 28,
            splits: chart.logarithmic ? (_, __, low, high) => logarithmicTicks(low, high) : undefined,
            filter: (_, ticks) => ticks,
            values: (_, ticks) => ticks.map((tick) => (tick === null ? "" : chart.format(tick))),
          },
        ],
        series: [
          {},
          ...chart.series.map(({ label }, s) => ({
            label, stroke: colours[s], width: s === 0 ? 2 : 1.4, dash: s === 2 ? [4, 3] : undefined, points: { show: false },
            spanGaps: true,
          })),
        ],
        hooks: {
          draw: [(self) => this.drawMarks(self, chart)],
          setCursor: [(self) => this.describe(self, chart, legend)],
          ready: [(self) => self.over.addEventListener("click", () => this.click(self))],
        },
      },
      [[], ...chart.series.map(() => [])],
      holder,
    );
    return { plot, chart, title, legend, key, figure };
  }

  xText(tick) {
    return tick === null ? "" : AXES[this.x].format(tick);
  }

  // Baselines belong into view too.
  rangeOf(chart) {
    return (_, low, high) => {
      if (low === null || high === null || !Number.isFinite(low)) return chart.logarithmic ? [0.1, 1] : [0, 1];
      if (chart.logarithmic) return [low / 1.4, high * 1.4];
      const values = chart.baselines ? baselineLines(this.history).map((line) => line.value) : [];
      const [least, most] = [Math.min(low, ...values), Math.max(high, ...values)];
      const room = 0.08 * (most - least || Math.abs(most) || 1);
      return [least - room, most + room];
    };
  }

  update(history) {
    this.history = history;
    for (const { plot, chart, title, legend, key, figure } of this.plots) {
      title.textContent = chart.titleOf?.(history) ?? chart.title;
      key.replaceChildren(...(chart.baselines ? baselineLines(history).map(keyOf) : []));
      const table = columns(chart.items(history), this.x, chart.series);
      // A network of peers has no objective that anybody could know: what is never known is left out.
      const isKnown = table.slice(1).some((column) => column.some((value) => value !== null));
      figure.hidden = !isKnown && history.frames.length > 0;
      plot.setData(table);
      this.describe(plot, chart, legend);
    }
  }

  // The moment that the graph shows, as a line in every chart.
  setMark(item) {
    this.mark = item;
    for (const { plot } of this.plots) plot.redraw(false, false);
  }

  drawMarks(plot, chart) {
    const { ctx, bbox } = plot;
    ctx.save();
    ctx.beginPath();
    ctx.rect(bbox.left, bbox.top, bbox.width, bbox.height);
    ctx.clip();
    if (chart.baselines) this.drawBaselines(plot);
    if (this.mark) {
      const x = Math.round(plot.valToPos(AXES[this.x].value(this.mark), "x", true));
      ctx.strokeStyle = variable("--ink");
      ctx.globalAlpha = 0.55;
      ctx.lineWidth = devicePixelRatio;
      ctx.beginPath();
      ctx.moveTo(x, bbox.top);
      ctx.lineTo(x, bbox.top + bbox.height);
      ctx.stroke();
    }
    ctx.restore();
  }

  drawBaselines(plot) {
    const { ctx, bbox } = plot;
    ctx.lineWidth = devicePixelRatio;
    ctx.strokeStyle = variable("--faint");
    for (const { value, dash } of baselineLines(this.history)) {
      const y = Math.round(plot.valToPos(value, "y", true));
      ctx.setLineDash(dash.map((length) => length * devicePixelRatio));
      ctx.beginPath();
      ctx.moveTo(bbox.left, y);
      ctx.lineTo(bbox.left + bbox.width, y);
      ctx.stroke();
    }
    ctx.setLineDash([]);
  }

  describe(plot, chart, legend) {
    const { data } = plot;
    const at = plot.cursor.idx ?? data[0].length - 1;
    legend.replaceChildren(
      ...chart.series.map(({ label }, s) => {
        const part = document.createElement("span");
        const dot = Object.assign(document.createElement("i"), { className: `dot dot-${s + 1}` });
        const value = data[s + 1][at];
        const name = chart.series.length > 1 ? `${label} ` : "";
        part.append(dot, name, Object.assign(document.createElement("b"), { textContent: chart.exact(value ?? NaN) }));
        return part;
      }),
    );
  }

  click(plot) {
    const at = plot.cursor.idx;
    if (at === null || at === undefined) return;
    const wanted = plot.data[0][at];
    const { frames } = this.history;
    const { value } = AXES[this.x];
    let best = 0;
    frames.forEach((frame, i) => {
      if (Math.abs(value(frame) - wanted) <= Math.abs(value(frames[best]) - wanted)) best = i;
    });
    if (frames.length) this.onSeek(best);
  }

  resize() {
    for (const { plot, chart } of this.plots) {
      const width = plot.root.parentElement.clientWidth;
      if (width && Math.abs(width - plot.width) > 1) plot.setSize({ width, height: chart.height ?? HEIGHT });
    }
  }
}
