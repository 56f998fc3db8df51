// What the page holds, and how to get a pattern out of it. Patterns are decoded when they are first looked at.

const payload = JSON.parse(document.getElementById("data").textContent);
document.getElementById("data").remove(); // the text is parsed: do not keep it twice
const N_TOKENS = payload.tokens.length;
const N_LAYERS = payload.layers.length;
const N_HEADS = payload.heads.length;
const ENTRIES = (N_TOKENS * (N_TOKENS + 1)) / 2;
const NOTHING = 128; // the byte of a difference of 0

// byte -> attention, see pack.py
const SHARE = Float32Array.from({ length: 256 }, (_, byte) => (byte / 255) ** 2);

const at = (query, key) => (query * (query + 1)) / 2 + key; // of an entry in the lower triangle, row by row

// Base 85, 5 characters for 4 bytes: digit d is the character 40 + d, but "}" for "<" and "~" for "\".
function decode(text, length) {
  const bytes = new Uint8Array(length);
  for (let from = 0, to = 0; to < length; from += 5) {
    let word = 0;
    for (let i = 0; i < 5; i++) {
      const code = text.charCodeAt(from + i);
      word = word * 85 + (code === 125 ? 20 : code === 126 ? 52 : code - 40);
    }
    for (let shift = 24; shift >= 0 && to < length; shift -= 8) bytes[to++] = word >>> shift;
  }
  return bytes;
}

// [layer, head, token] -> number, for one of value_norms, norms, logits; null where the page has none
function decodeNumbers(packed) {
  if (packed === null) return null;
  const view = new DataView(decode(packed.data, 2 * N_LAYERS * N_HEADS * N_TOKENS).buffer);
  return (layer, head, token) =>
    packed.scale * view.getInt16(2 * ((layer * N_HEADS + head) * N_TOKENS + token), true);
}

const sides = payload.sides.map((side) => ({
  name: side.name,
  patterns: side.patterns,
  valueNorms: decodeNumbers(side.value_norms),
  norms: decodeNumbers(side.norms),
  logits: decodeNumbers(side.logits),
}));

const kept = new Map();

function once(name, make) {
  if (!kept.has(name)) kept.set(name, make());
  return kept.get(name);
}

// The bytes of one pattern's lower triangle.
function pattern(side, layer, head, weighted) {
  return once(`${side}/${layer}/${head}/${weighted}`, () => {
    if (weighted) return weigh(pattern(side, layer, head, false), sides[side].valueNorms, layer, head);
    const bytes = decode(sides[side].patterns[layer][head], ENTRIES);
    sides[side].patterns[layer][head] = null;
    return bytes;
  });
}

// A[q,k]·‖v_k·W_O‖, each row scaled to sum 1; a row of a head that writes nothing is 0.
function weigh(bytes, valueNorms, layer, head) {
  const norms = Float32Array.from({ length: N_TOKENS }, (_, key) => valueNorms(layer, head, key));
  const weighed = new Uint8Array(ENTRIES);
  for (let query = 0, start = 0; query < N_TOKENS; start += ++query) {
    let sum = 0;
    for (let key = 0; key <= query; key++) sum += SHARE[bytes[start + key]] * norms[key];
    if (sum === 0) continue;
    for (let key = 0; key <= query; key++)
      weighed[start + key] = Math.round(255 * Math.sqrt((SHARE[bytes[start + key]] * norms[key]) / sum));
  }
  return weighed;
}

// What is drawn of a head: bytes that a colour scale turns into colours. For a difference d = B − A the byte is
// 128 ± 127·√|d|.
function shades(layer, head, show, weighted) {
  if (show !== "diff") return pattern(show === "a" ? 0 : 1, layer, head, weighted);
  return once(`diff/${layer}/${head}/${weighted}`, () => {
    const [a, b] = [0, 1].map((side) => pattern(side, layer, head, weighted));
    return a.map((byte, i) => signedByte(SHARE[b[i]] - SHARE[byte]));
  });
}

const signedByte = (d) => NOTHING + Math.round(127 * Math.sign(d) * Math.sqrt(Math.min(Math.abs(d), 1)));

// The number behind a shade.
function value(layer, head, query, key, show, weighted) {
  const [a, b] = sides.map((_, side) => SHARE[pattern(side, layer, head, weighted)[at(query, key)]]);
  return show === "a" ? a : show === "b" ? b : b - a;
}

// How far apart A and B are: half the sum of |B − A| over keys, averaged over queries. 0 to 1.
function distance(layer, head, weighted) {
  return once(`distance/${layer}/${head}/${weighted}`, () => {
    const [a, b] = [0, 1].map((side) => pattern(side, layer, head, weighted));
    let sum = 0;
    for (let i = 0; i < ENTRIES; i++) sum += Math.abs(SHARE[b[i]] - SHARE[a[i]]);
    return sum / 2 / N_TOKENS;
  });
}

// One of norms and logits, for what is shown.
function measure(name, layer, head, token, show) {
  const [a, b] = sides.map((side) => side[name](layer, head, token));
  return show === "a" ? a : show === "b" ? b : b - a;
}

const headName = (layer, head) => `${payload.layers[layer]}.${payload.heads[head]}`;
