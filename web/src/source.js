// Where the bytes of the recording come from: the server, for as long as it writes, or the page itself.

// A report carries its recording. Returns the bytes, or null on a page of the server.
export function embeddedBytes() {
  const holder = document.getElementById("recording");
  if (!holder) return null;
  const text = atob(holder.textContent.trim());
  return Uint8Array.from(text, (letter) => letter.charCodeAt(0));
}

// Follows a growing recording. The server reports its length; the page fetches what is missing, at its own pace, so
// a viewer that falls behind or loses its connection resumes where it was. `pace()` returns the least time between two
// fetches, in milliseconds.
export class LiveSource {
  constructor({ onBytes, onStatus, pace }) {
    this.callbacks = { onBytes, onStatus };
    this.pace = pace;
    this.fetchedAt = -Infinity;
    this.offset = 0;
    this.size = 0;
    this.run = null;
    this.fetching = false;
    this.stream = new EventSource("events");
    this.stream.onmessage = ({ data }) => this.follow(JSON.parse(data));
    this.stream.onerror = () => onStatus("lost");
    this.stream.onopen = () => onStatus("connected");
  }

  follow({ run, size }) {
    // Another recording has taken the place of this one.
    if (this.run !== null && (this.run !== run || size < this.offset)) {
      location.reload();
      return;
    }
    this.run = run;
    this.size = size;
    if (this.fetching) return;
    this.fetching = true;
    setTimeout(() => this.fetchRest(), this.fetchedAt + this.pace() - performance.now());
  }

  async fetchRest() {
    this.fetchedAt = performance.now();
    try {
      while (this.offset < this.size) {
        const response = await fetch(`log?from=${this.offset}`);
        if (!response.ok) throw new Error(`the server answered ${response.status}`);
        const bytes = new Uint8Array(await response.arrayBuffer());
        if (!bytes.length) break;
        this.offset += bytes.length;
        this.callbacks.onBytes(bytes);
      }
    } catch {
      // The next event of the stream, which reconnects by itself, starts another attempt.
      this.callbacks.onStatus("lost");
    } finally {
      this.fetching = false;
    }
  }
}
