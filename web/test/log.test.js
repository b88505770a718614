import assert from "node:assert/strict";
import { test } from "node:test";
import { encode } from "@msgpack/msgpack";
import { zlibSync } from "fflate";
import { crc32, LogParser } from "../src/log.js";

const header = (version = 1) => {
  const bytes = new Uint8Array(12);
  bytes.set(new TextEncoder().encode("DADALOG\n"));
  new DataView(bytes.buffer).setUint32(8, version, true);
  return bytes;
};

const frame = (value, compressed = false) => {
  const content = encode(value);
  const packed = compressed ? zlibSync(content) : content;
  const bytes = new Uint8Array(9 + packed.length);
  bytes[8] = compressed ? 1 : 0;
  bytes.set(packed, 9);
  const view = new DataView(bytes.buffer);
  view.setUint32(0, packed.length + 1, true);
  view.setUint32(4, crc32(bytes.subarray(8)), true);
  return bytes;
};

const join = (...parts) => Uint8Array.from(parts.flatMap((part) => [...part]));
const STOP = [8, 1.5, "Done."];

test("the checksum is the usual CRC-32", () => {
  assert.equal(crc32(new TextEncoder().encode("123456789")), 0xcbf43926);
});

test("records come out the same however the bytes are cut", () => {
  const bytes = join(header(), frame([1, 0.5, "graph", 7]), frame([99, 1, "newer kind"]), frame(STOP, true));
  const whole = new LogParser().push(bytes);
  assert.deepEqual(whole.map((record) => record.kind), ["phase", "stop"]);
  const parser = new LogParser();
  const pieces = [...bytes].flatMap((byte) => parser.push(Uint8Array.of(byte)));
  assert.deepEqual(pieces, whole);
});

test("an unfinished record waits for its end", () => {
  const parser = new LogParser();
  const bytes = join(header(), frame(STOP));
  assert.deepEqual(parser.push(bytes.subarray(0, bytes.length - 1)), []);
  assert.equal(parser.push(bytes.subarray(bytes.length - 1))[0].status, "Done.");
});

test("nothing is read after a damaged record", () => {
  const damaged = frame(STOP);
  damaged[damaged.length - 1] ^= 1;
  const parser = new LogParser();
  assert.equal(parser.push(join(header(), frame(STOP), damaged, frame(STOP))).length, 1);
  assert.ok(parser.damaged);
});

test("a newer version and another file are refused", () => {
  assert.throws(() => new LogParser().push(header(2)), /version 2.*up to 1/);
  assert.throws(() => new LogParser().push(new Uint8Array(12)), /not a recording/);
});
