// Draws the graph on the graphics card. All data are in textures, which the corners of lines and discs read, so a
// moving layout costs one small upload per picture, however many edges there are. All lines are one list of triangles,
// and so are all discs: instances of four corners each are slow on many cards, and slowest without a card.

const TEXTURE_WIDTH = 1024;

const COMMON = `#version 300 es
uniform highp sampler2D places;
uniform vec3 camera;  // middle, pixels per unit
uniform vec2 view;    // width and height in pixels
uniform float mixing;
ivec2 texel(int item) { return ivec2(item % ${TEXTURE_WIDTH}, item / ${TEXTURE_WIDTH}); }
vec2 toPixels(int user) { return (texelFetch(places, texel(user), 0).rg - camera.xy) * camera.z; }
vec4 toClip(vec2 pixels) { return vec4(pixels.x * 2.0 / view.x, -pixels.y * 2.0 / view.y, 0.0, 1.0); }
`;

const EDGE_VERTEX = `${COMMON}
uniform highp sampler2D items;  // ends, the first one a half more for edges of the chosen user; opacity before and after
uniform float ratio;
uniform vec3 colour;
uniform vec3 accent;
uniform float others;           // how visible unmarked edges are
uniform bool thin;              // lines of one pixel, instead of two triangles each
out vec4 paint;
out float side;
void main() {
  vec4 edge = texelFetch(items, texel(thin ? gl_VertexID >> 1 : gl_VertexID >> 2), 0);
  float marked = fract(edge.x) * 2.0;
  vec2 a = toPixels(int(edge.x));
  vec2 b = toPixels(int(edge.y));
  float opacity = mix(edge.z, edge.w, mixing);
  opacity = mix(opacity * others, min(0.25 + opacity * 1.6, 0.95), marked);
  vec2 along = b - a;
  vec2 across = normalize(vec2(-along.y, along.x) + vec2(1e-6, 0.0));
  float width = (0.5 + 0.55 * sqrt(opacity) + 0.5 * marked) * ratio;
  float sign = (gl_VertexID & 1) == 0 ? -1.0 : 1.0;
  bool isFirst = (gl_VertexID & (thin ? 1 : 2)) == 0;
  float away = thin ? 0.0 : sign * (width + 0.5);
  vec2 corner = (isFirst ? a : b) + across * away;
  side = away / width;
  paint = vec4(mix(colour, accent, marked), opacity);
  gl_Position = opacity < 0.004 ? vec4(2.0, 2.0, 2.0, 1.0) : toClip(corner);
}`;

const EDGE_FRAGMENT = `#version 300 es
precision mediump float;
in vec4 paint;
in float side;
out vec4 result;
void main() {
  float alpha = paint.a * clamp(1.6 - abs(side) * 1.1, 0.0, 1.0);
  result = vec4(paint.rgb * alpha, alpha);
}`;

const NODE_VERTEX = `${COMMON}
uniform highp usampler2D items;  // colour before and after, radius, strength: 0 faded, 1 normal, 2 outlined
uniform float zoom;
out vec4 paint;
out vec2 offset;
flat out float size;
flat out float outline;
vec4 colourOf(uint packed) { return vec4(uvec4(packed, packed >> 8, packed >> 16, packed >> 24) & 255u) / 255.0; }
void main() {
  int user = gl_VertexID >> 2;
  uvec4 node = texelFetch(items, texel(user), 0);
  size = uintBitsToFloat(node.z) * zoom * (node.w == 2u ? 1.15 : 1.0) + 1.5;
  vec2 corner = vec2((gl_VertexID & 1) == 0 ? -1.0 : 1.0, (gl_VertexID & 2) == 0 ? -1.0 : 1.0);
  offset = corner * (size + 1.0);
  paint = mix(colourOf(node.x), colourOf(node.y), mixing);
  paint.a *= node.w == 0u ? 0.22 : 1.0;
  outline = node.w == 2u ? 1.0 : 0.0;
  gl_Position = toClip(toPixels(user) + offset);
}`;

const NODE_FRAGMENT = `#version 300 es
precision mediump float;
in vec4 paint;
in vec2 offset;
flat in float size;
flat in float outline;
uniform vec3 paper;
uniform vec3 rim;
out vec4 result;
void main() {
  float distance = length(offset);
  float inside = clamp(size - distance + 0.5, 0.0, 1.0);
  float border = mix(1.4, 2.6, outline);
  float core = clamp(size - border - distance + 0.5, 0.0, 1.0);
  vec3 colour = mix(mix(paper, rim, outline), paint.rgb, core);
  float alpha = inside * paint.a;
  result = vec4(colour * alpha, alpha);
}`;

function program(gl, vertex, fragment) {
  const result = gl.createProgram();
  for (const [type, source] of [[gl.VERTEX_SHADER, vertex], [gl.FRAGMENT_SHADER, fragment]]) {
    const shader = gl.createShader(type);
    gl.shaderSource(shader, source);
    gl.compileShader(shader);
    gl.attachShader(result, shader);
  }
  gl.linkProgram(result);
  if (!gl.getProgramParameter(result, gl.LINK_STATUS) && !gl.isContextLost()) {
    throw new Error(`shader: ${gl.getProgramInfoLog(result)}`);
  }
  const uniforms = {};
  const count = gl.getProgramParameter(result, gl.ACTIVE_UNIFORMS) ?? 0;
  for (let i = 0; i < count; i++) {
    const { name } = gl.getActiveUniform(result, i);
    uniforms[name] = gl.getUniformLocation(result, name);
  }
  return { handle: result, uniforms };
}

// Rows of a texture for `count` texels.
const rowsFor = (count) => Math.max(1, Math.ceil(count / TEXTURE_WIDTH));

export class WebGLRenderer {
  static make(canvas) {
    const gl = canvas.getContext("webgl2", { antialias: false, alpha: false });
    return gl ? new WebGLRenderer(canvas, gl) : null;
  }

  constructor(canvas, gl) {
    this.kind = "webgl";
    this.canvas = canvas;
    this.gl = gl;
    this.edgeCount = 0;
    this.nodeCount = 0;
    this.prepare();
  }

  // Whether there is no graphics card, and the processor draws.
  get isSoftware() {
    const names = this.gl.getExtension("WEBGL_debug_renderer_info");
    const name = names ? this.gl.getParameter(names.UNMASKED_RENDERER_WEBGL) : "";
    return /swiftshader|llvmpipe|software|basic render/i.test(name);
  }

  prepare() {
    const { gl } = this;
    this.edges = program(gl, EDGE_VERTEX, EDGE_FRAGMENT);
    this.nodes = program(gl, NODE_VERTEX, NODE_FRAGMENT);
    [this.placeTexture, this.edgeTexture, this.nodeTexture] = [0, 1, 2].map(() => this.makeTexture());
    this.corners = gl.createBuffer();
    this.cornersFor = 0;
    gl.enable(gl.BLEND);
    gl.blendFunc(gl.ONE, gl.ONE_MINUS_SRC_ALPHA);
    this.fence = null;
  }

  makeTexture() {
    const { gl } = this;
    const texture = gl.createTexture();
    gl.bindTexture(gl.TEXTURE_2D, texture);
    for (const name of [gl.TEXTURE_MIN_FILTER, gl.TEXTURE_MAG_FILTER]) gl.texParameteri(gl.TEXTURE_2D, name, gl.NEAREST);
    return texture;
  }

  // Two triangles for each of `count` items, whose corners are numbered 4 i to 4 i + 3.
  needCorners(count) {
    if (count <= this.cornersFor) return;
    const { gl } = this;
    this.cornersFor = 2 * count;
    const corners = new Uint32Array(6 * this.cornersFor);
    for (let i = 0; i < this.cornersFor; i++) {
      corners.set([4 * i, 4 * i + 1, 4 * i + 2, 4 * i + 2, 4 * i + 1, 4 * i + 3], 6 * i);
    }
    gl.bindBuffer(gl.ELEMENT_ARRAY_BUFFER, this.corners);
    gl.bufferData(gl.ELEMENT_ARRAY_BUFFER, corners, gl.STATIC_DRAW);
  }

  upload(texture, [inner, format, type], data, count) {
    const { gl } = this;
    gl.bindTexture(gl.TEXTURE_2D, texture);
    gl.texImage2D(gl.TEXTURE_2D, 0, inner, TEXTURE_WIDTH, rowsFor(count), 0, format, type, data);
  }

  setPlaces(places) {
    const { gl } = this;
    const count = places.length / 2;
    const padded = new Float32Array(TEXTURE_WIDTH * rowsFor(count) * 2);
    padded.set(places);
    this.upload(this.placeTexture, [gl.RG32F, gl.RG, gl.FLOAT], padded, count);
  }

  setNodes({ before, after, radius, strength }) {
    const { gl } = this;
    const count = radius.length;
    const data = new Uint32Array(TEXTURE_WIDTH * rowsFor(count) * 4);
    const columns = [new Uint32Array(before.buffer), new Uint32Array(after.buffer), new Uint32Array(radius.buffer), strength];
    for (let k = 0; k < count; k++) for (let c = 0; c < 4; c++) data[4 * k + c] = columns[c][k];
    this.nodeCount = count;
    this.needCorners(count);
    this.upload(this.nodeTexture, [gl.RGBA32UI, gl.RGBA_INTEGER, gl.UNSIGNED_INT], data, count);
  }

  setEdges({ ends, ink, marked }) {
    const { gl } = this;
    const count = marked.length;
    const data = new Float32Array(TEXTURE_WIDTH * rowsFor(count) * 4);
    for (let e = 0; e < count; e++) {
      data[4 * e] = ends[2 * e] + 0.5 * marked[e];
      data[4 * e + 1] = ends[2 * e + 1];
      data[4 * e + 2] = ink[2 * e];
      data[4 * e + 3] = ink[2 * e + 1];
    }
    this.edgeCount = count;
    this.needCorners(count);
    this.upload(this.edgeTexture, [gl.RGBA32F, gl.RGBA, gl.FLOAT], data, count);
  }

  draw(view) {
    const { gl } = this;
    const { width, height } = this.canvas;
    gl.viewport(0, 0, width, height);
    gl.clearColor(...view.theme.paper, 1);
    gl.clear(gl.COLOR_BUFFER_BIT);
    gl.bindBuffer(gl.ELEMENT_ARRAY_BUFFER, this.corners);
    this.use(this.edges, this.edgeTexture, view);
    gl.uniform3fv(this.edges.uniforms.colour, view.theme.edge);
    gl.uniform3fv(this.edges.uniforms.accent, view.theme.accent);
    gl.uniform1f(this.edges.uniforms.others, view.others);
    gl.uniform1f(this.edges.uniforms.ratio, view.ratio);
    const count = Math.min(view.edgeCount, this.edgeCount);
    gl.uniform1i(this.edges.uniforms.thin, view.isThin ? 1 : 0);
    if (view.isThin) gl.drawArrays(gl.LINES, 0, 2 * count);
    else gl.drawElements(gl.TRIANGLES, 6 * count, gl.UNSIGNED_INT, 0);
    this.use(this.nodes, this.nodeTexture, view);
    gl.uniform3fv(this.nodes.uniforms.paper, view.theme.paper);
    gl.uniform3fv(this.nodes.uniforms.rim, view.theme.ink);
    gl.uniform1f(this.nodes.uniforms.zoom, view.nodeZoom * view.ratio);
    gl.drawElements(gl.TRIANGLES, 6 * this.nodeCount, gl.UNSIGNED_INT, 0);
    if (this.fence) gl.deleteSync(this.fence);
    this.fence = gl.fenceSync(gl.SYNC_GPU_COMMANDS_COMPLETE, 0);
    gl.flush();
  }

  // Whether the last picture is finished, which the graphics card reports with a delay.
  isDone() {
    const { gl, fence } = this;
    return !fence || gl.isContextLost() || gl.getSyncParameter(fence, gl.SYNC_STATUS) === gl.SIGNALED;
  }

  use({ handle, uniforms }, items, { camera, ratio, mixing }) {
    const { gl, canvas } = this;
    gl.useProgram(handle);
    [this.placeTexture, items].forEach((texture, unit) => {
      gl.activeTexture(gl.TEXTURE0 + unit);
      gl.bindTexture(gl.TEXTURE_2D, texture);
    });
    gl.uniform1i(uniforms.places, 0);
    gl.uniform1i(uniforms.items, 1);
    gl.uniform3f(uniforms.camera, camera.x, camera.y, camera.scale * ratio);
    gl.uniform2f(uniforms.view, canvas.width, canvas.height);
    gl.uniform1f(uniforms.mixing, mixing);
  }
}
