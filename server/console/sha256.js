// SHA-256 piece by piece. The browser's own wants a whole file in memory, and is missing where a page comes over plain HTTP from
// another machine.

const fractions = (n, power) => {  // the first 32 bits of the fractional parts of roots of primes
  const out = [];
  for (let candidate = 2; out.length < n; ++candidate) {
    let prime = true;
    for (let d = 2; d * d <= candidate && prime; ++d) prime = candidate % d !== 0;
    if (prime) out.push(((candidate ** power) % 1) * 2 ** 32 | 0);
  }
  return out;
};
const kRounds = Int32Array.from(fractions(64, 1 / 3));
const kStart = fractions(8, 1 / 2);

export class Sha256 {
  constructor() {
    this.state = Int32Array.from(kStart);
    this.words = new Int32Array(64);
    this.block = new Uint8Array(64);
    this.view = new DataView(this.block.buffer);
    this.used = 0;
    this.length = 0;
  }

  update(bytes) {
    this.length += bytes.length;
    let at = 0;
    if (this.used > 0) {
      at = Math.min(64 - this.used, bytes.length);
      this.block.set(bytes.subarray(0, at), this.used);
      this.used += at;
      if (this.used < 64) return this;
      this.#mix(this.view, 0);
      this.used = 0;
    }
    const view = new DataView(bytes.buffer, bytes.byteOffset, bytes.byteLength);
    for (; at + 64 <= bytes.length; at += 64) this.#mix(view, at);
    this.block.set(bytes.subarray(at));
    this.used = bytes.length - at;
    return this;
  }

  hex() {
    const { length } = this;
    const padding = new Uint8Array(((this.used < 56 ? 56 : 120) - this.used) + 8);
    padding[0] = 0x80;
    const view = new DataView(padding.buffer);
    view.setUint32(padding.length - 8, Math.floor(length / 2 ** 29));
    view.setUint32(padding.length - 4, (length << 3) >>> 0);
    this.update(padding);
    return [...this.state].map((word) => (word >>> 0).toString(16).padStart(8, "0")).join("");
  }

  #mix(view, at) {
    const { words: w, state } = this;
    for (let i = 0; i < 16; ++i) w[i] = view.getInt32(at + 4 * i);
    for (let i = 16; i < 64; ++i) {
      const x = w[i - 15], y = w[i - 2];
      const s0 = ((x >>> 7) | (x << 25)) ^ ((x >>> 18) | (x << 14)) ^ (x >>> 3);
      const s1 = ((y >>> 17) | (y << 15)) ^ ((y >>> 19) | (y << 13)) ^ (y >>> 10);
      w[i] = (w[i - 16] + s0 + w[i - 7] + s1) | 0;
    }
    let [a, b, c, d, e, f, g, h] = state;
    for (let i = 0; i < 64; ++i) {
      const s1 = ((e >>> 6) | (e << 26)) ^ ((e >>> 11) | (e << 21)) ^ ((e >>> 25) | (e << 7));
      const t1 = (h + s1 + ((e & f) ^ (~e & g)) + kRounds[i] + w[i]) | 0;
      const s0 = ((a >>> 2) | (a << 30)) ^ ((a >>> 13) | (a << 19)) ^ ((a >>> 22) | (a << 10));
      const t2 = (s0 + ((a & b) ^ (a & c) ^ (b & c))) | 0;
      h = g; g = f; f = e; e = (d + t1) | 0;
      d = c; c = b; b = a; a = (t1 + t2) | 0;
    }
    [a, b, c, d, e, f, g, h].forEach((value, i) => { state[i] = (state[i] + value) | 0; });
  }
}

// "sha256:..." of a File; tells how many bytes are done.
export async function digestOf(file, onProgress) {
  const hash = new Sha256();
  const reader = file.stream().getReader();
  for (let done = 0; ;) {
    const piece = await reader.read();
    if (piece.done) return `sha256:${hash.hex()}`;
    hash.update(piece.value);
    done += piece.value.length;
    onProgress?.(done);
  }
}
