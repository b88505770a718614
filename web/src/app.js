// The page: recording, graph, curves and panels, and the view that a reader has chosen.
import { Charts } from "./charts.js";
import { Colouring } from "./colouring.js";
import { UNKNOWN } from "./colours.js";
import { wire } from "./controls.js";
import { $, el } from "./dom.js";
import { bits, count, decimal, percent, seconds } from "./format.js";
import { History } from "./history.js";
import { LogParser } from "./log.js";
import { peerPanel, runTiles, showTab, userPanel } from "./panel.js";
import { Player } from "./player.js";
import { Scene } from "./scene.js";
import { embeddedBytes, LiveSource } from "./source.js";
import { readHash, writeHash } from "./viewstate.js";

const PHASES = {
  local: { text: "everybody learns alone", colour: "--series-3" },
  graph: { text: "learning the graph", colour: "--series-2" },
  models: { text: "learning models", colour: "--series-1" },
  peers: { text: "every peer by its own clock", colour: "--series-1" },
};
// How often a page follows a run: seldom where drawing is slow, which leaves the processor to the run. All that changes
// then changes at once: without a graphics card the least change of a page costs as much as a picture of the graph.
const FOLLOW_EVERY_MS = 250;
const FOLLOW_EVERY_MS_IF_SLOW = 1000;

export class App {
  constructor() {
    this.history = new History();
    this.parser = new LogParser();
    this.view = readHash(location.hash);
    this.connection = "connecting";
    this.edges = null;
    this.applyTheme();
    this.player = new Player(() => this.showMoment());
    this.scene = new Scene($("#stage"), {
      onSelect: (user) => this.select(user),
      onHover: (user) => this.showTooltip(user),
      onMove: () => this.cameraMoved(),
    });
    if (this.view.camera) this.useCamera();
    this.charts = new Charts($("#charts"), (index) => this.player.seek(index));
    this.charts.rebuild(this.history, this.view.x);
    this.followedAt = -Infinity;
    wire(this);
    this.reflectChoices();
    this.open();
  }

  // -- data --

  open() {
    const bytes = embeddedBytes();
    if (bytes) {
      this.connection = "report";
      this.receive(bytes);
    } else {
      this.source = new LiveSource({
        onBytes: (more) => this.receive(more),
        pace: () => this.followEvery,
        onStatus: (status) => {
          this.connection = status;
          this.showStatus();
        },
      });
    }
  }

  receive(bytes) {
    let fresh;
    try {
      fresh = this.parser.push(bytes);
    } catch (error) {
      this.fail(error.message);
      return;
    }
    const isFirst = !this.history.frames.length;
    for (const record of fresh) this.history.add(record);
    if (fresh.some((record) => record.kind === "info")) this.showInfo();
    if (isFirst && this.history.frames.length) this.start();
    this.scheduleFollowing();
  }

  start() {
    $("#message").hidden = true;
    this.player.count = this.history.frames.length;
    if (this.view.frame === "last") this.player.toLatest();
    else this.player.seek(this.view.frame);
    if (this.view.user !== null) this.select(this.view.user);
  }

  fail(message) {
    this.connection = "failed";
    $("#message").textContent = message;
    $("#message").hidden = false;
    this.showStatus();
  }

  get frame() {
    return this.history.frames[this.player.index];
  }

  // -- what is shown --

  showInfo() {
    const { info } = this.history;
    $("#title").textContent = info.title || "dada";
    document.title = info.title ? `${info.title} – dada` : "dada";
    $("#group-choice").hidden = !info.groups.length;
    $("#user-list").replaceChildren(...info.users.slice(0, 2000).map((name) => el("option", { value: name })));
    if (!info.groups.length && this.view.colour === "group") this.view.colour = "accuracy";
    this.reflectChoices();
  }

  showStatus() {
    const pill = $("#status");
    const { stop, progress } = this.history;
    const part = progress && progress.total ? ` ${Math.floor((100 * progress.done) / progress.total)} %` : "";
    let [text, kind] = [`live${part}`, "live"];
    if (this.connection === "failed") [text, kind] = ["not readable", "lost"];
    else if (stop) [text, kind] = [stop.status, ""];
    else if (this.parser.damaged) [text, kind] = ["damaged recording: shown up to its last good record", "lost"];
    else if (this.connection === "report") [text, kind] = ["unfinished recording", ""];
    else if (this.connection === "lost") [text, kind] = ["connection lost, trying again", "lost"];
    else if (this.connection === "connecting") [text, kind] = ["connecting", ""];
    if (pill.title === text) return;
    pill.textContent = text;
    pill.title = text;
    pill.className = `pill ${kind}`;
  }

  showMoment() {
    const { frame, player } = this;
    if (!frame) return;
    this.edges = this.history.edgesAt(player.index);
    this.showGraph();
    this.showPanels();
    this.charts.setMark(frame);
    this.showPlayer();
    this.remember();
  }

  showGraph() {
    const { frame, history, view, edges } = this;
    const K = frame.users.loss.length;
    const base = Math.max(2.2, Math.min(14, 0.3 * Math.sqrt(this.scene.camera.room / Math.max(K, 1))));
    const radii = Float32Array.from(frame.users.confidence, (confidence) => base * Math.sqrt(0.25 + 0.75 * confidence));
    const peers = history.peersAt(frame.at);
    const colour = view.colour === "accuracy" && !frame.accuracy ? "loss" : view.colour;
    $("#accuracy-choice").hidden = !frame.accuracy;
    const colouring = new Colouring(history, frame, colour, document.documentElement.dataset.theme);
    const colours = Array.from({ length: K }, (_, k) => (peers && !peers.up[k] ? UNKNOWN : colouring.colourOf(k)));
    const names = Array.from({ length: K }, (_, k) => history.name(k));
    this.scene.show({ edges, directed: frame.directed, limit: view.limit, colours, radii, names });
    const summary = `Collaboration graph of ${K} users and ${edges.w.length} edges after ${frame.updates} updates`;
    this.scene.canvas.setAttribute("aria-label", summary);
    $("#legend").replaceChildren(...colouring.legend(colours.includes(UNKNOWN)));
  }

  showPanels() {
    const { history, frame, view } = this;
    $("#tiles").replaceChildren(...runTiles(history, frame));
    const panel = $("#panel-user");
    const hint = el("p", { className: "empty" }, "Click a user in the graph, or find one by name.");
    const top = panel.scrollTop;
    const parts = view.user === null ? [hint] : userPanel(history, frame, this.edges, view.user, (k) => this.select(k));
    panel.replaceChildren(...parts);
    panel.scrollTop = top;
    const peers = history.peersAt(frame.at);
    $("[data-tab=peers]").hidden = !peers;
    if (peers) $("#panel-peers").replaceChildren(...peerPanel(history, peers, (k) => this.select(k)));
    $("#notes").textContent = history.notes.length ? history.notes[history.notes.length - 1].text : "";
  }

  showPlayer() {
    const { player, history, frame } = this;
    const slider = $("#slider");
    slider.max = String(player.count - 1);
    slider.value = String(player.index);
    const phase = PHASES[frame.phase]?.text ?? frame.phase;
    const text = `${count(frame.updates)} updates · ${seconds(frame.at)} · ${bits(history.bitsAt(frame))} · ${phase}`;
    const dot = el("i", { className: "dot", style: { background: `var(${PHASES[frame.phase]?.colour ?? "--faint"})` } });
    $("#moment").replaceChildren(text.slice(0, -phase.length), dot, phase);
    slider.setAttribute("aria-valuetext", text);
    $("#play").textContent = player.playing ? "❚❚" : "▶";
    $("#play").setAttribute("aria-label", player.playing ? "Pause" : "Play");
    const atEnd = player.following && !player.playing;
    $("#live").classList.toggle("on", atEnd);
    $("#live").textContent = history.stop || this.connection === "report" ? "Latest" : "Live";
    this.showPhases();
  }

  showPhases() {
    const { frames } = this.history;
    if (frames.length === this.phasesOf) return;
    this.phasesOf = frames.length;
    const style = getComputedStyle(document.documentElement);
    const stops = [];
    const last = Math.max(frames.length - 1, 1);
    for (let i = 0; i < frames.length; i++) {
      const isNew = i === 0 || frames[i].phase !== frames[i - 1].phase;
      if (!isNew) continue;
      const colour = style.getPropertyValue(PHASES[frames[i].phase]?.colour ?? "--faint");
      const at = (100 * i) / last;
      if (stops.length) stops.push(`${stops[stops.length - 1].split(" ")[0]} ${at}%`);
      stops.push(`${colour} ${at}%`);
    }
    stops.push(`${stops[stops.length - 1].split(" ")[0]} 100%`);
    $("#phases").style.background = `linear-gradient(to right, ${stops.join(", ")})`;
  }

  showTooltip(user) {
    const tip = $("#tooltip");
    // The panel already shows the chosen user.
    tip.hidden = user === null || user === this.view.user || !this.frame;
    if (tip.hidden) return;
    const [x, y] = this.scene.screenPlace(user);
    const found = this.history.neighbours(this.edges, user, this.frame.directed);
    const accuracy = this.frame.users.accuracy[user];
    const parts = [`${count(found.length)} neighbours`, `loss ${decimal(this.frame.users.loss[user])}`];
    if (Number.isFinite(accuracy)) parts.unshift(percent(accuracy));
    tip.replaceChildren(el("b", {}, this.history.name(user)), ` · ${parts.join(" · ")}`);
    const { width } = this.scene.camera;
    tip.style.left = `${Math.max(110, Math.min(width - 110, x))}px`;
    tip.style.top = `${Math.max(44, y)}px`;
  }

  get followEvery() {
    return this.scene.loop.budget.isStrained ? FOLLOW_EVERY_MS_IF_SLOW : FOLLOW_EVERY_MS;
  }

  scheduleFollowing() {
    if (this.followTimer) return;
    const wait = Math.max(0, this.followedAt + this.followEvery - performance.now());
    this.followTimer = setTimeout(() => {
      this.followTimer = null;
      this.followedAt = performance.now();
      const { length } = this.history.frames;
      if (length && length !== this.player.count) this.player.grow(length);
      this.charts.update(this.history);
      this.showStatus();
    }, wait);
  }

  // -- choices --

  select(user) {
    this.view.user = user !== null && user < this.history.userCount ? user : null;
    this.scene.select(this.view.user);
    this.showTooltip(this.scene.hovered);
    if (this.frame) this.showPanels();
    showTab(this.view.user === null ? "run" : "user");
    this.remember();
  }

  find(name) {
    const K = this.history.userCount;
    for (let k = 0; k < K; k++) {
      if (this.history.name(k) === name) {
        this.select(k);
        return true;
      }
    }
    return false;
  }

  choose(name, value) {
    this.view[name] = value;
    this.reflectChoices();
    if (name === "x") {
      this.charts.rebuild(this.history, value);
      if (this.frame) this.charts.setMark(this.frame);
    } else if (this.frame) {
      this.showGraph();
    }
    this.remember();
  }

  reflectChoices() {
    for (const name of ["colour", "x"]) {
      const input = $(`input[name=${name}][value=${this.view[name]}]`);
      if (input) input.checked = true;
    }
    $("#limit").value = String(this.view.limit);
  }

  applyTheme() {
    const dark = matchMedia("(prefers-color-scheme: dark)").matches;
    const wanted = this.view.theme === "auto" ? (dark ? "dark" : "light") : this.view.theme;
    document.documentElement.dataset.theme = wanted;
    return wanted;
  }

  themeChanged() {
    this.applyTheme();
    this.phasesOf = null;
    this.scene.readTheme();
    this.charts.rebuild(this.history, this.view.x);
    if (this.frame) this.showMoment();
    this.remember();
  }

  toggleTheme() {
    this.view.theme = document.documentElement.dataset.theme === "dark" ? "light" : "dark";
    this.themeChanged();
  }

  useCamera() {
    const [x, y, scale] = this.view.camera;
    Object.assign(this.scene.camera, { x, y, scale, free: true });
    this.scene.fitScale = scale;
  }

  cameraMoved() {
    const { x, y, scale, free } = this.scene.camera;
    this.view.camera = free ? [x, y, scale] : null;
    this.remember();
  }

  // The address was changed by hand, or a link to another view was followed.
  useLink() {
    this.view = readHash(location.hash);
    this.themeChanged();
    this.reflectChoices();
    this.select(this.view.user);
    if (this.view.camera) this.useCamera();
    if (this.view.frame === "last") this.player.toLatest();
    else this.player.seek(this.view.frame);
  }

  remember() {
    const { player } = this;
    this.view.frame = player.following ? "last" : player.index;
    clearTimeout(this.hashTimer);
    this.hashTimer = setTimeout(() => history.replaceState(null, "", location.pathname + location.search + writeHash(this.view)), 150);
  }

  async share() {
    const link = location.href.split("#")[0] + writeHash(this.view);
    const button = $("#share");
    try {
      await navigator.clipboard.writeText(link);
      button.textContent = "Copied";
    } catch {
      // Without the right to the clipboard the link is in the address bar.
      history.replaceState(null, "", link);
      button.textContent = "In the address bar";
    }
    setTimeout(() => { button.textContent = "Copy link"; }, 1600);
  }
}
