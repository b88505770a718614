// Buttons, sliders, keys: what a reader can do.
import { $ } from "./dom.js";
import { saveJson, savePng, saveSvg } from "./exports.js";
import { showTab } from "./panel.js";

const COLOURINGS = ["accuracy", "loss", "group"];

export function wire(app) {
  const { scene, player } = app;
  $("#play").onclick = () => player.toggle();
  $("#live").onclick = () => player.toLatest();
  $("#slider").oninput = ({ target }) => player.seek(Number(target.value));
  $("#zoom-in").onclick = () => scene.zoomBy(1.4);
  $("#zoom-out").onclick = () => scene.zoomBy(1 / 1.4);
  $("#zoom-fit").onclick = () => scene.fitAll();
  $("#theme").onclick = () => app.toggleTheme();
  $("#share").onclick = () => app.share();
  $("#help-button").onclick = () => $("#help").showModal();
  $("#limit").oninput = ({ target }) => app.choose("limit", Number(target.value));
  $("#search").oninput = ({ target }) => app.find(target.value);
  for (const name of ["colour", "x"]) {
    for (const input of document.querySelectorAll(`input[name=${name}]`)) {
      input.onchange = () => app.choose(name, input.value);
    }
  }
  for (const tab of document.querySelectorAll("[role=tab]")) tab.onclick = () => showTab(tab.dataset.tab);
  wireDownloads(app);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => app.themeChanged());
  addEventListener("keydown", (event) => press(app, event));
  addEventListener("hashchange", () => app.useLink());
}

function wireDownloads(app) {
  const savers = {
    png: () => savePng(app.scene, app.history),
    svg: () => saveSvg(app.scene, app.history),
    json: () => saveJson(app.history, app.frame, app.edges),
  };
  for (const button of document.querySelectorAll("[data-save]")) {
    button.onclick = () => {
      $("#download").open = false;
      if (app.frame) savers[button.dataset.save]();
    };
  }
}

function nextColouring(app) {
  const known = app.history.info?.groups.length ? COLOURINGS : COLOURINGS.slice(0, 2);
  app.choose("colour", known[(known.indexOf(app.view.colour) + 1) % known.length]);
}

function nextUser(app, step) {
  const K = app.history.userCount;
  app.select(app.view.user === null ? 0 : (app.view.user + step + K) % K);
}

const KEYS = {
  " ": ({ player }) => player.toggle(),
  ArrowLeft: ({ player }) => player.seek(player.index - 1),
  ArrowRight: ({ player }) => player.seek(player.index + 1),
  Home: ({ player }) => player.seek(0),
  End: ({ player }) => player.toLatest(),
  "+": ({ scene }) => scene.zoomBy(1.4),
  "=": ({ scene }) => scene.zoomBy(1.4),
  "-": ({ scene }) => scene.zoomBy(1 / 1.4),
  0: ({ scene }) => scene.fitAll(),
  "/": () => $("#search").focus(),
  "[": (app) => nextUser(app, -1),
  "]": (app) => nextUser(app, 1),
  c: nextColouring,
  f: ({ scene }) => scene.layout.hold(!scene.layout.held),
  t: (app) => app.toggleTheme(),
  l: (app) => app.share(),
  "?": () => $("#help").showModal(),
};

// Keys that a focused control uses itself.
function isTaken(event) {
  const { target, key } = event;
  if (target.matches("input[type=search]") || $("#help").open) return true;
  if (target.matches("input") && (key.startsWith("Arrow") || key === "Home" || key === "End" || key === " ")) return true;
  return key === " " && target.matches("button, summary");
}

function press(app, event) {
  if (event.key === "Escape" && !$("#help").open) {
    if (event.target.matches("input[type=search]")) event.target.blur();
    app.select(null);
    return;
  }
  if (event.ctrlKey || event.metaKey || event.altKey || isTaken(event)) return;
  const action = KEYS[event.key.length === 1 ? event.key.toLowerCase() : event.key];
  if (!action || !app.frame) return;
  event.preventDefault();
  action(app);
}
