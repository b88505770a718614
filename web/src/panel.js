// The panels beside the graph: the run, one user, the peers.
import { css, groupColour } from "./colours.js";
import { $, el } from "./dom.js";
import { bits, count, decimal, percent } from "./format.js";

const FIRST_NEIGHBOURS = 10;
const MOST_NEIGHBOURS = 200;

function tile(label, value, hint = "") {
  return el("div", { className: "tile", title: hint }, el("span", { className: "tile-label" }, label), el("b", {}, value));
}

function bar(share, className = "") {
  const width = `${Math.max(0, Math.min(1, share || 0)) * 100}%`;
  return el("span", { className: `bar ${className}` }, el("span", { className: "bar-fill", style: { width } }));
}

export function runTiles(history, frame) {
  if (!frame) return [tile("users", count(history.userCount || NaN))];
  const K = frame.users.loss.length;
  // On training rows a model learned alone is at its best, so a comparison there would mislead.
  const isFair = history.judgedOn !== "training" && frame.accuracy && history.alone;
  const gain = isFair ? frame.accuracy.mean - mean(history.alone) : NaN;
  const sign = gain >= 0 ? "+" : "−";
  // Several classes and numbers have no accuracy while they are learned, but a loss.
  const judged = frame.accuracy
    ? [
        tile(`${history.judgedOn || "mean"} accuracy`, percent(frame.accuracy.mean), `mean over users${rowsOf(history)}`),
        tile("worst user", percent(frame.accuracy.worst)),
      ]
    : [tile("mean loss", decimal(mean(frame.users.loss)), "mean over users, on training rows")];
  const tiles = [
    ...judged,
    tile("neighbours", decimal(((frame.directed ? 1 : 2) * frame.total) / K), "neighbours of a user, on average"),
    tile("messages", count(frame.messages)),
    tile("sent", bits(history.bitsAt(frame))),
  ];
  if (Number.isFinite(gain)) {
    const points = `${sign}${Math.abs(100 * gain).toFixed(1)} pt`;
    tiles.splice(1, 0, tile("against alone", points, "mean accuracy, against learning alone"));
  }
  return tiles;
}

function rowsOf(history) {
  return history.judgedOn ? ` on ${history.judgedOn} rows` : "";
}

function mean(values) {
  const known = Array.from(values).filter(Number.isFinite);
  return known.reduce((sum, value) => sum + value, 0) / known.length;
}

function accuracyRows(history, frame, k) {
  const rows = [["now", frame.users.accuracy[k], ""]];
  if (history.alone && history.judgedOn !== "training") rows.push(["alone", history.alone[k], "bar-faint"]);
  return rows
    .filter(([, value]) => Number.isFinite(value))
    .map(([label, value, className]) =>
      el("div", { className: "row" }, el("span", {}, label), bar(value, className), el("b", {}, percent(value))),
    );
}

function neighbourRows(history, found, onSelect) {
  const total = found.reduce((sum, { weight }) => sum + weight, 0);
  const heaviest = found[0]?.weight ?? 1;
  return found.slice(0, MOST_NEIGHBOURS).map(({ user, weight }) =>
    el(
      "button",
      { className: "row neighbour", type: "button", onclick: () => onSelect(user), title: `weight ${decimal(weight)}` },
      el(
        "span",
        {},
        history.group(user) === null
          ? null
          : el("i", { className: "dot", style: { background: css(groupColour(history.group(user))) } }),
        history.name(user),
      ),
      bar(weight / heaviest),
      el("b", {}, percent(weight / total)),
    ),
  );
}

function predictorRows(history, frame, k) {
  const { tops, predictors, predictorWeights } = frame.users;
  const rows = [];
  const heaviest = Math.abs(predictorWeights[k * tops]) || 1;
  for (let place = k * tops; place < (k + 1) * tops; place++) {
    const j = predictors[place];
    if (j < 0) continue;
    const weight = predictorWeights[place];
    const name = history.info?.predictors[j] ?? `predictor ${j}`;
    rows.push(
      el(
        "div",
        { className: "row predictor", title: name },
        el("span", {}, name),
        bar(Math.abs(weight) / heaviest, weight < 0 ? "bar-negative" : ""),
        el("b", {}, decimal(weight)),
      ),
    );
  }
  return rows;
}

function section(title, rows, empty) {
  return el("section", {}, el("h3", {}, title), ...(rows.length ? rows : [el("p", { className: "empty" }, empty)]));
}

export function userPanel(history, frame, edges, k, onSelect) {
  const moreIsOpen = Boolean($("#panel-user .more")?.open);
  const found = history.neighbours(edges, k, frame.directed);
  const group = history.group(k);
  const groupName = group === null ? null : history.info.groupNames[group] ?? `group ${group}`;
  const degree = found.reduce((sum, { weight }) => sum + weight, 0);
  const chip = groupName && el(
    "span",
    { className: "chip" },
    el("i", { className: "dot", style: { background: css(groupColour(group)) } }),
    groupName,
  );
  const rows = neighbourRows(history, found, onSelect);
  const neighbours = section("Who it learns from", rows.slice(0, FIRST_NEIGHBOURS), "Nobody yet: it learns alone.");
  if (found.length > FIRST_NEIGHBOURS) {
    const summary = el("summary", { className: "empty" }, `and ${found.length - FIRST_NEIGHBOURS} lighter ones`);
    neighbours.append(el("details", { className: "more", open: moreIsOpen }, summary, ...rows.slice(FIRST_NEIGHBOURS)));
  }
  return [
    el("header", { className: "user-head" }, el("h2", {}, `User ${history.name(k)}`), chip),
    section(`Accuracy${rowsOf(history)}`, accuracyRows(history, frame, k), "Unknown: the run has no rows of two classes to judge on."),
    el(
      "div",
      { className: "tiles" },
      tile("neighbours", count(found.length)),
      tile("degree", decimal(degree), "sum of its weights"),
      tile("confidence", decimal(frame.users.confidence[k]), "its number of samples, as a part of the largest"),
      tile("loss", decimal(frame.users.loss[k])),
      tile("messages", count(frame.users.messages[k])),
      tile("sent", bits(frame.users.bits[k])),
    ),
    neighbours,
    section("Most used predictors", predictorRows(history, frame, k), "None yet: its model is still zero."),
  ];
}

export function peerPanel(history, record, onSelect) {
  const K = record.up.length;
  const up = record.up.reduce((sum, value) => sum + value, 0);
  const known = Array.from(record.rttMs).filter(Number.isFinite).sort((a, b) => a - b);
  const sum = (values) => values.reduce((total, value) => total + value, 0);
  const order = Array.from({ length: K }, (_, k) => k).sort((a, b) => record.up[a] - record.up[b] || a - b);
  const rows = order.map((k) =>
    el(
      "tr",
      {},
      el("td", {}, el("button", { type: "button", className: "link", onclick: () => onSelect(k) }, history.name(k))),
      el("td", { className: record.up[k] ? "up" : "down" }, record.up[k] ? "● up" : "○ down"),
      el("td", {}, count(record.restarts[k])),
      el("td", {}, Number.isFinite(record.rttMs[k]) ? `${decimal(record.rttMs[k])} ms` : "–"),
      el("td", {}, count(record.refused[k])),
    ),
  );
  const head = ["peer", "state", "restarts", "round trip", "refused"].map((name) => el("th", { scope: "col" }, name));
  return [
    el(
      "div",
      { className: "tiles two" },
      tile("up", `${count(up)} of ${count(K)}`),
      tile("restarts", count(sum(record.restarts))),
      tile("round trip", known.length ? `${decimal(known[known.length >> 1])} ms` : "–", "median over peers"),
      tile("refused", count(sum(record.refused)), "messages that a peer did not accept"),
    ),
    el("p", { className: "hint" }, "Scroll sideways for all columns."),
    el("div", { className: "scroll" }, el("table", { className: "peers" }, el("thead", {}, el("tr", {}, ...head)), el("tbody", {}, ...rows))),
  ];
}

export function showTab(name) {
  for (const tab of document.querySelectorAll("[role=tab]")) {
    const chosen = tab.dataset.tab === name;
    tab.setAttribute("aria-selected", String(chosen));
    tab.tabIndex = chosen ? 0 : -1;
    $(`#panel-${tab.dataset.tab}`).hidden = !chosen;
  }
}
