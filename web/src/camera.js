// Where the viewer looks: the middle of the view in the layout's units, and pixels per unit.

// Margins around the graph when all users are in view, in pixels: controls are above it, a legend below, and buttons
// to its right.
const [LEFT, RIGHT, ABOVE, BELOW] = [34, 64, 68, 64];
// A few users are shown together in the middle: the side of the graph grows with the root of their number.
const SIDE_PER_USER = 140;

// The smallest rectangle that holds all places: left, right, top, bottom.
export function boundsOf(places) {
  const bounds = [Infinity, -Infinity, Infinity, -Infinity];
  for (let p = 0; p < places.length; p += 2) {
    bounds[0] = Math.min(bounds[0], places[p]);
    bounds[1] = Math.max(bounds[1], places[p]);
    bounds[2] = Math.min(bounds[2], places[p + 1]);
    bounds[3] = Math.max(bounds[3], places[p + 1]);
  }
  return bounds;
}

export class Camera {
  constructor() {
    this.x = 0;
    this.y = 0;
    this.scale = 1;
    this.width = 1;
    this.height = 1;
    // Until the viewer moves it, the camera keeps everybody in view.
    this.free = false;
  }

  // Pixels in which everybody is shown.
  get room() {
    return Math.max(1, this.width - LEFT - RIGHT) * Math.max(1, this.height - ABOVE - BELOW);
  }

  toScreen(x, y) {
    return [(x - this.x) * this.scale + this.width / 2, (y - this.y) * this.scale + this.height / 2];
  }

  toWorld(px, py) {
    return [(px - this.width / 2) / this.scale + this.x, (py - this.height / 2) / this.scale + this.y];
  }

  pan(dx, dy) {
    this.free = true;
    this.x -= dx / this.scale;
    this.y -= dy / this.scale;
  }

  // Zooms so that the point under the pointer stays where it is.
  zoom(factor, px = this.width / 2, py = this.height / 2) {
    this.free = true;
    const [x, y] = this.toWorld(px, py);
    this.scale *= factor;
    const [nowX, nowY] = this.toWorld(px, py);
    this.x += x - nowX;
    this.y += y - nowY;
  }

  // Moves a part of the way towards showing all places; returns whether there is some way left.
  fit(places, part) {
    const [left, right, top, bottom] = boundsOf(places);
    if (!(right >= left)) return false;
    const scale = Math.min(
      (this.width - LEFT - RIGHT) / Math.max(right - left, 1e-6),
      (this.height - ABOVE - BELOW) / Math.max(bottom - top, 1e-6),
      (SIDE_PER_USER * Math.sqrt(places.length / 2)) / Math.max(right - left, bottom - top, 1e-6),
      60,
    );
    const unit = 1 / Math.max(scale, 1e-6);
    const wanted = [
      (left + right) / 2 - ((LEFT - RIGHT) / 2) * unit,
      (top + bottom) / 2 - ((ABOVE - BELOW) / 2) * unit,
      1 / unit,
    ];
    const way = Math.abs(Math.log(wanted[2] / this.scale)) +
      (Math.abs(wanted[0] - this.x) + Math.abs(wanted[1] - this.y)) * this.scale / this.width;
    this.x += part * (wanted[0] - this.x);
    this.y += part * (wanted[1] - this.y);
    this.scale *= (wanted[2] / this.scale) ** part;
    return way > 0.002;
  }
}
