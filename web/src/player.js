// The moment of the run that is shown: it follows the latest one, is paused, or moves through the recording.

const REPLAY_MS = 12_000;

export class Player {
  constructor(onMoment) {
    this.onMoment = onMoment;
    this.count = 0;
    this.index = -1;
    this.following = true;
    this.playing = false;
  }

  // More of the run is known.
  grow(count) {
    this.count = count;
    if (this.following && !this.playing && count - 1 !== this.index) this.moveTo(count - 1);
    else this.onMoment();
  }

  moveTo(index) {
    this.index = Math.max(0, Math.min(this.count - 1, index));
    this.onMoment();
  }

  // Shows one moment and stays there.
  seek(index) {
    this.playing = false;
    this.following = false;
    this.moveTo(index);
  }

  toLatest() {
    this.playing = false;
    this.following = true;
    this.moveTo(this.count - 1);
  }

  toggle() {
    if (this.playing) this.seek(this.index);
    else if (this.following && this.index < this.count - 1) this.toLatest();
    else this.play(this.index >= this.count - 1 ? 0 : this.index);
  }

  // Plays from a moment to the latest one, and follows the run from there.
  play(from) {
    this.playing = true;
    this.following = true;
    this.moveTo(from);
    const began = performance.now();
    const step = (now) => {
      if (!this.playing) return;
      const pace = Math.max(this.count, 24) / REPLAY_MS;
      const index = from + Math.floor((now - began) * pace);
      if (index >= this.count - 1) {
        this.toLatest();
        return;
      }
      if (index > this.index) this.moveTo(index);
      requestAnimationFrame(step);
    };
    requestAnimationFrame(step);
  }
}
