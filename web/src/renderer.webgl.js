// Draws the graph on the graphics card. Positions live in a texture that nodes and edges read, so a moving layout costs
// one small upload per frame, however many edges there are.

const TEXTURE_WIDTH = 1024;

const PLACE = `
uniform highp sampler2D places;
uniform vec3 camera;  // middle, pixels per unit
uniform vec2 view;    // width and height in pixels
vec2 place(uint k) {
  return texelFetch(places, ivec2(int(k) % ${TEXTURE_WIDTH}, int(k) / ${TEXTURE_WIDTH}), 0).rg;
}
vec2 toPixels(vec2 world) { return (world - camera.xy) * camera.z; }
vec4 toClip(vec2 pixels) { return vec4(pixels.x * 2.0 / view.x, -pixels.y * 2.0 / view.y, 0.0, 1.0); }
`;

const EDGE_VERTEX = `#version 300 es
${PLACE}
layout(location = 0) in uvec2 ends;
layout(location = 1) in vec2 ink;       // opacity before and after
layout(location = 2) in float marked;   // 1 for edges of the chosen user
uniform float mixing;
uniform float ratio;
uniform vec3 colour;
uniform vec3 accent;
uniform float others;                   // how visible unmarked edges are
out vec4 paint;
out float side;
void main() {
  vec2 a = toPixels(place(ends.x));
  vec2 b = toPixels(place(ends.y));
  float opacity = mix(ink.x, ink.y, mixing);
  opacity = mix(opacity * others, min(0.25 + opacity * 1.6, 0.95), marked);
  vec2 along = b - a;
  vec2 across = normalize(vec2(-along.y, along.x) + vec2(1e-6, 0.0));
  float width = (0.5 + 0.55 * sqrt(opacity) + 0.5 * marked) * ratio;
  float sign = (gl_VertexID & 1) == 0 ? -1.0 : 1.0;
  vec2 corner = (gl_VertexID < 2 ? a : b) + across * sign * (width + 0.5);
  side = sign * (width + 0.5) / width;
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

const NODE_VERTEX = `#version 300 es
${PLACE}
layout(location = 0) in uint user;
layout(location = 1) in vec4 before;
layout(location = 2) in vec4 after;
layout(location = 3) in float radius;
layout(location = 4) in float strength;  // 0 faded, 1 normal, 2 outlined
uniform float mixing;
uniform float zoom;
out vec4 paint;
out vec2 offset;
flat out float size;
flat out float outline;
void main() {
  size = radius * zoom * (strength > 1.5 ? 1.15 : 1.0) + 1.5;
  vec2 corner = vec2((gl_VertexID & 1) == 0 ? -1.0 : 1.0, gl_VertexID < 2 ? -1.0 : 1.0);
  offset = corner * (size + 1.0);
  paint = mix(before, after, mixing);
  paint.a *= strength < 0.5 ? 0.22 : 1.0;
  outline = strength > 1.5 ? 1.0 : 0.0;
  gl_Position = toClip(toPixels(place(user)) + offset);
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

// Vertex attributes of one kind of instance: name -> [size, type, bytes per component kind].
function attributes(gl, layout) {
  const array = gl.createVertexArray();
  const buffers = layout.map(() => gl.createBuffer());
  gl.bindVertexArray(array);
  layout.forEach(({ size, type, normalized, integer }, location) => {
    gl.bindBuffer(gl.ARRAY_BUFFER, buffers[location]);
    gl.enableVertexAttribArray(location);
    if (integer) gl.vertexAttribIPointer(location, size, type, 0, 0);
    else gl.vertexAttribPointer(location, size, type, Boolean(normalized), 0, 0);
    gl.vertexAttribDivisor(location, 1);
  });
  gl.bindVertexArray(null);
  return { array, buffers };
}

export class WebGLRenderer {
  static make(canvas) {
    const gl = canvas.getContext("webgl2", { antialias: false, premultipliedAlpha: true, preserveDrawingBuffer: true });
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

  prepare() {
    const { gl } = this;
    this.edges = program(gl, EDGE_VERTEX, EDGE_FRAGMENT);
    this.nodes = program(gl, NODE_VERTEX, NODE_FRAGMENT);
    this.edgeData = attributes(gl, [
      { size: 2, type: gl.UNSIGNED_INT, integer: true },
      { size: 2, type: gl.FLOAT },
      { size: 1, type: gl.UNSIGNED_BYTE },
    ]);
    this.nodeData = attributes(gl, [
      { size: 1, type: gl.UNSIGNED_INT, integer: true },
      { size: 4, type: gl.UNSIGNED_BYTE, normalized: true },
      { size: 4, type: gl.UNSIGNED_BYTE, normalized: true },
      { size: 1, type: gl.FLOAT },
      { size: 1, type: gl.UNSIGNED_BYTE },
    ]);
    this.texture = gl.createTexture();
    gl.bindTexture(gl.TEXTURE_2D, this.texture);
    for (const name of [gl.TEXTURE_MIN_FILTER, gl.TEXTURE_MAG_FILTER]) gl.texParameteri(gl.TEXTURE_2D, name, gl.NEAREST);
    gl.enable(gl.BLEND);
    gl.blendFunc(gl.ONE, gl.ONE_MINUS_SRC_ALPHA);
    this.fence = null;
  }

  upload(buffer, data) {
    this.gl.bindBuffer(this.gl.ARRAY_BUFFER, buffer);
    this.gl.bufferData(this.gl.ARRAY_BUFFER, data, this.gl.DYNAMIC_DRAW);
  }

  setPlaces(places) {
    const { gl } = this;
    const height = Math.max(1, Math.ceil(places.length / 2 / TEXTURE_WIDTH));
    const padded = new Float32Array(TEXTURE_WIDTH * height * 2);
    padded.set(places);
    gl.bindTexture(gl.TEXTURE_2D, this.texture);
    gl.texImage2D(gl.TEXTURE_2D, 0, gl.RG32F, TEXTURE_WIDTH, height, 0, gl.RG, gl.FLOAT, padded);
  }

  setNodes({ before, after, radius, strength }) {
    this.nodeCount = radius.length;
    const users = Uint32Array.from({ length: radius.length }, (_, k) => k);
    [users, before, after, radius, strength].forEach((data, i) => this.upload(this.nodeData.buffers[i], data));
  }

  setEdges({ ends, ink, marked }) {
    this.edgeCount = marked.length;
    [ends, ink, marked].forEach((data, i) => this.upload(this.edgeData.buffers[i], data));
  }

  draw(view) {
    const { gl } = this;
    const { width, height } = this.canvas;
    gl.viewport(0, 0, width, height);
    gl.clearColor(0, 0, 0, 0);
    gl.clear(gl.COLOR_BUFFER_BIT);
    gl.bindTexture(gl.TEXTURE_2D, this.texture);
    this.use(this.edges, view);
    gl.uniform3fv(this.edges.uniforms.colour, view.theme.edge);
    gl.uniform3fv(this.edges.uniforms.accent, view.theme.accent);
    gl.uniform1f(this.edges.uniforms.others, view.others);
    gl.uniform1f(this.edges.uniforms.ratio, view.ratio);
    gl.bindVertexArray(this.edgeData.array);
    gl.drawArraysInstanced(gl.TRIANGLE_STRIP, 0, 4, Math.min(view.edgeCount, this.edgeCount));
    this.use(this.nodes, view);
    gl.uniform3fv(this.nodes.uniforms.paper, view.theme.paper);
    gl.uniform3fv(this.nodes.uniforms.rim, view.theme.ink);
    gl.uniform1f(this.nodes.uniforms.zoom, view.nodeZoom * view.ratio);
    gl.bindVertexArray(this.nodeData.array);
    gl.drawArraysInstanced(gl.TRIANGLE_STRIP, 0, 4, this.nodeCount);
    gl.bindVertexArray(null);
    if (this.fence) gl.deleteSync(this.fence);
    this.fence = gl.fenceSync(gl.SYNC_GPU_COMMANDS_COMPLETE, 0);
    gl.flush();
  }

  // Whether the last picture is finished, which the graphics card tells some time after it was asked for.
  isDone() {
    const { gl, fence } = this;
    return !fence || gl.isContextLost() || gl.getSyncParameter(fence, gl.SYNC_STATUS) === gl.SIGNALED;
  }

  use({ handle, uniforms }, { camera, ratio, mixing }) {
    const { gl, canvas } = this;
    gl.useProgram(handle);
    gl.uniform3f(uniforms.camera, camera.x, camera.y, camera.scale * ratio);
    gl.uniform2f(uniforms.view, canvas.width, canvas.height);
    gl.uniform1i(uniforms.places, 0);
    gl.uniform1f(uniforms.mixing, mixing);
  }
}
