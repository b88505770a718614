// Reads recordings as they arrive, piece by piece. The format is described in docs/recording-format.md.
import { decode } from "@msgpack/msgpack";
import { unzlibSync } from "fflate";

const MAGIC = "DADALOG\n";
const VERSION = 1;
const HEADER_SIZE = 12;
const FRAME_SIZE = 8;
const LARGEST_BODY = 1 << 28;

const crcTable = Uint32Array.from({ length: 256 }, (_, n) => {
  let c = n;
  for (let bit = 0; bit < 8; bit++) c = c & 1 ? 0xedb88320 ^ (c >>> 1) : c >>> 1;
  return c >>> 0;
});

export function crc32(bytes) {
  let c = 0xffffffff;
  for (let i = 0; i < bytes.length; i++) c = crcTable[(c ^ bytes[i]) & 255] ^ (c >>> 8);
  return (c ^ 0xffffffff) >>> 0;
}

// A typed view of raw bytes; copied, because views must start at a multiple of their element's size.
function typed(Type, bytes) {
  return new Type(bytes.slice().buffer);
}

function spread(values) {
  return values && { mean: values[0], tenth: values[1], worst: values[2] };
}

const READERS = [
  (at, [title, users, groups, groupNames, alone, baselines, predictors]) => ({
    kind: "info", at, title, users, groups: typed(Int32Array, groups), groupNames,
    alone: typed(Float32Array, alone), baselines, predictors,
  }),
  (at, [phase, events]) => ({ kind: "phase", at, phase, events }),
  (at, [done, total]) => ({ kind: "progress", at, done, total }),
  (at, [updates, graphWakeups, objective, gap, train, test, edges, bits]) => ({
    kind: "point", at, updates, graphWakeups, objective, gap, train: spread(train), test: spread(test), edges, bits,
  }),
  (at, [updates, phase, whole, directed, total, k, l, w]) => {
    const Ids = k.length * 2 === w.length ? Uint16Array : Uint32Array;
    return {
      kind: "edges", at, updates, phase, whole, directed, total,
      k: typed(Ids, k), l: typed(Ids, l), w: typed(Float32Array, w),
    };
  },
  (at, [updates, tops, confidence, loss, accuracy, predictors, predictorWeights, messages, bits]) => ({
    kind: "users", at, updates, tops,
    confidence: typed(Float32Array, confidence), loss: typed(Float32Array, loss),
    accuracy: typed(Float32Array, accuracy), predictors: typed(Int32Array, predictors),
    predictorWeights: typed(Float32Array, predictorWeights), messages: typed(Float64Array, messages),
    bits: typed(Float32Array, bits),
  }),
  (at, [up, restarts, rttMs, refused]) => ({
    kind: "peers", at, up: up.slice(), restarts: typed(Uint32Array, restarts),
    rttMs: typed(Float32Array, rttMs), refused: typed(Uint32Array, refused),
  }),
  (at, [text]) => ({ kind: "note", at, text }),
  (at, [status]) => ({ kind: "stop", at, status }),
];

function readRecord(content) {
  const [tag, at, ...rest] = decode(content);
  // Kinds that are newer than this page are left out.
  return tag < READERS.length ? READERS[tag](at, rest) : null;
}

export class LogParser {
  constructor() {
    this.rest = new Uint8Array(0);
    this.started = false;
    this.damaged = false;
  }

  // Takes the next bytes; returns the records that are now complete. After damage there are no more.
  push(bytes) {
    if (this.damaged) return [];
    const data = new Uint8Array(this.rest.length + bytes.length);
    data.set(this.rest);
    data.set(bytes, this.rest.length);
    const view = new DataView(data.buffer);
    let at = 0;
    if (!this.started) {
      if (data.length < HEADER_SIZE) {
        this.rest = data;
        return [];
      }
      this.checkHeader(data, view);
      at = HEADER_SIZE;
    }
    const records = [];
    while (data.length - at >= FRAME_SIZE) {
      const length = view.getUint32(at, true);
      if (length < 1 || length > LARGEST_BODY) {
        this.damaged = true;
        break;
      }
      if (data.length - at < FRAME_SIZE + length) break;
      const body = data.subarray(at + FRAME_SIZE, at + FRAME_SIZE + length);
      if (crc32(body) !== view.getUint32(at + 4, true)) {
        this.damaged = true;
        break;
      }
      const record = readRecord(body[0] === 1 ? unzlibSync(body.subarray(1)) : body.subarray(1));
      if (record) records.push(record);
      at += FRAME_SIZE + length;
    }
    this.rest = data.slice(at);
    return records;
  }

  checkHeader(data, view) {
    const magic = String.fromCharCode(...data.subarray(0, MAGIC.length));
    if (magic !== MAGIC) throw new Error("This is not a recording of dada.");
    const version = view.getUint32(MAGIC.length, true);
    if (version > VERSION) {
      throw new Error(`This recording is of version ${version}; this page reads versions up to ${VERSION}.`);
    }
    this.started = true;
  }
}
