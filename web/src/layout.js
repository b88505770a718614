// The layout as the page sees it: positions arrive, graphs and pinned users go out.
import code from "layout-worker-code";

export class Layout {
  constructor(onPlaces) {
    const address = URL.createObjectURL(new Blob([code], { type: "text/javascript" }));
    this.worker = new Worker(address);
    this.settled = false;
    this.held = false;
    this.worker.onmessage = ({ data }) => {
      this.settled = data.settled;
      onPlaces(data.places);
      // The next positions are computed only once these have been shown.
      requestAnimationFrame(() => this.worker.postMessage({ type: "ready" }));
    };
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
