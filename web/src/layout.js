// The layout as the page sees it: positions arrive, graphs and pinned users go out.
import code from "layout-worker-code";

export class Layout {
  constructor(onPlaces) {
    const address = URL.createObjectURL(new Blob([code], { type: "text/javascript" }));
    this.worker = new Worker(address);
    this.settled = false;
    this.held = false;
    this.waiting = false;
    this.worker.onmessage = ({ data }) => {
      this.settled = data.settled;
      this.waiting = true;
      onPlaces(data.places);
    };
  }

  // The latest places have been drawn: only now are the next ones computed.
  shown() {
    if (!this.waiting) return;
    this.waiting = false;
    this.worker.postMessage({ type: "ready" });
  }

  // Keeps the users where they are, or lets them move again.
  hold(held) {
    this.held = held;
    this.send("pause", { paused: held });
  }

  send(type, message = {}) {
    this.settled = false;
    this.worker.postMessage({ type, ...message });
  }
}
