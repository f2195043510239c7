// A child of a federation in plain JavaScript: joins, pulls, pushes, and repeats a push whose answer was lost.
//
//   node --experimental-websocket examples/federation_client.mjs ws://127.0.0.1:7777 TOKEN_FILE NAME [PUSHES]
//
// Node 22 needs no flag. The protocol is described in docs/federation.md.
import { readFileSync } from "node:fs";

const PROTOCOL = 1;

// A message: "SHL", version, header length (u32, little-endian), JSON header, zeros up to a multiple of 8, buffers.
export function encode(header, buffers = []) {
  const text = new TextEncoder().encode(JSON.stringify(header));
  const begin = Math.ceil((8 + text.length) / 8) * 8;
  const message = new Uint8Array(begin + buffers.reduce((sum, b) => sum + b.byteLength, 0));
  message.set([0x53, 0x48, 0x4c, PROTOCOL]);
  new DataView(message.buffer).setUint32(4, text.length, true);
  message.set(text, 8);
  let at = begin;
  for (const buffer of buffers) {
    message.set(new Uint8Array(buffer.buffer, buffer.byteOffset, buffer.byteLength), at);
    at += buffer.byteLength;
  }
  return message;
}

export function decode(data) {
  const bytes = new Uint8Array(data);
  if (bytes.length < 8 || String.fromCharCode(...bytes.slice(0, 3)) !== "SHL") throw new Error("not a message");
  if (bytes[3] !== PROTOCOL) throw new Error(`protocol ${bytes[3]}; this client speaks ${PROTOCOL}`);
  const length = new DataView(bytes.buffer).getUint32(4, true);
  const header = JSON.parse(new TextDecoder().decode(bytes.slice(8, 8 + length)));
  const parts = {};
  let at = Math.ceil((8 + length) / 8) * 8;
  for (const part of header.parts ?? []) {
    parts[part.name] = { ...part, data: data.slice(at, at + part.bytes) };
    at += part.bytes;
  }
  if (at !== bytes.length) throw new Error("the payload is not as long as its parts say");
  return { header, parts };
}

export class Child {
  constructor(url, name, token) {
    Object.assign(this, { url, name, token, sequence: 0, open: null });
  }

  // Connects and says hello. A push that was open is known to be applied, or is sent again.
  async join() {
    this.socket = new WebSocket(this.url);
    this.socket.binaryType = "arraybuffer";
    await new Promise((resolve, reject) => {
      this.socket.onopen = resolve;
      this.socket.onerror = () => reject(new Error(`no parent at ${this.url}`));
    });
    const { header } = await this.request({ type: "hello", child: this.name, token: this.token });
    this.welcome = header;
    if (this.open && header.sequence >= this.open.header.sequence) this.open = null;
    this.sequence = Math.max(this.sequence, header.sequence);
    return this.open ? this.confirmed() : null;
  }

  async pull() {
    return this.taken(await this.request({ type: "pull" }));
  }

  // weights: a Float32Array; for a rule that takes "delta", their change since version `base`.
  async push(weights, base, { steps = 0, episodes = 0 } = {}) {
    if (this.open) throw new Error("the push before is not confirmed");
    this.sequence += 1;
    const part = { name: "weights", encoding: "float32", size: weights.length, bytes: weights.byteLength };
    const { architecture } = this.welcome;
    const header = { type: "push", child: this.name, sequence: this.sequence, base, architecture, steps, episodes, parts: [part] };
    this.open = { header, weights };
    return this.confirmed();
  }

  async confirmed() {
    const answer = await this.request(this.open.header, [this.open.weights]);
    this.open = null;
    return this.taken(answer);
  }

  taken({ header, parts }) {
    const weights = parts.weights ? new Float32Array(parts.weights.data) : null;
    return { version: header.version, applied: header.applied, stop: header.stop ?? false, weights };
  }

  request(header, buffers) {
    return new Promise((resolve, reject) => {
      this.socket.onmessage = ({ data }) => {
        const message = decode(data);
        if (message.header.type !== "refused") return resolve(message);
        if (this.open && message.header.sequence === this.open.header.sequence) this.open = null; // void: nothing changed
        reject(new Error(`refused (${message.header.reason}): ${message.header.message}`));
      };
      this.socket.onclose = () => reject(new Error("the connection was lost"));
      this.socket.send(encode(header, buffers));
    });
  }

  close() {
    this.socket.onclose = null;
    this.socket.send(encode({ type: "bye" }));
    this.socket.close();
  }
}

if (process.argv[1]?.endsWith("federation_client.mjs")) {
  const [url, tokenFile, name, pushes = "3"] = process.argv.slice(2);
  const child = new Child(url, name, readFileSync(tokenFile, "utf8").trim());
  try {
    await child.join();
    let { version, weights } = await child.pull();
    for (let i = 0; i < Number(pushes); i++) {
      const before = weights;
      const trained = weights.map((w) => w + 0.5); // a real child trains here
      const vector = child.welcome.takes === "delta" ? trained.map((w, j) => w - before[j]) : trained;
      ({ version, weights } = await child.push(vector, version, { steps: 100, episodes: 1 }));
    }
    console.log(JSON.stringify({ run: child.welcome.run, version, sequence: child.sequence, weights: [...weights] }));
    child.close();
  } catch (error) {
    console.error(error.message);
    process.exit(2);
  }
}
