// Colours, for light and for dark. Blue and orange, purple and green stay apart under every common colour blindness;
// in each scale lightness alone tells how much.

const dark = matchMedia("(prefers-color-scheme: dark)");

const SCALES = {
  light: {
    attention: ["#ffffff", "#a6d0ea", "#0072b2", "#012a4a"], // as in the figures of the report
    difference: ["#5c1a6e", "#9a5fb0", "#d9c2e2", "#ffffff", "#b9dfb4", "#3f9a52", "#0d5427"], // A more … B more
    to: [0, 114, 178],
    from: [230, 120, 0],
    less: [140, 70, 165],
    more: [45, 145, 70],
  },
  dark: {
    attention: ["#1c1f23", "#0f4a70", "#2f97d3", "#d8f0ff"],
    difference: ["#f0c8ff", "#b77fd0", "#54305f", "#1c1f23", "#1d5430", "#58b56c", "#c4f7cc"],
    to: [40, 150, 225],
    from: [235, 140, 30],
    less: [185, 115, 215],
    more: [70, 180, 95],
  },
};

const theme = () => SCALES[dark.matches ? "dark" : "light"];

const channels = (hex) => [1, 3, 5].map((i) => parseInt(hex.slice(i, i + 2), 16));

// 256 colours between the given ones, red, green, blue
function ramp(hexes) {
  const stops = hexes.map(channels);
  return Array.from({ length: 256 }, (_, byte) => {
    const place = (byte / 255) * (stops.length - 1);
    const i = Math.min(Math.floor(place), stops.length - 2);
    return stops[i].map((c, j) => Math.round(c + (place - i) * (stops[i + 1][j] - c)));
  });
}

let scales = makeScales();

function makeScales() {
  const { attention, difference } = theme();
  const pixels = (colours) => Uint32Array.from(colours, ([r, g, b]) => (255 << 24) | (b << 16) | (g << 8) | r);
  const [one, two] = [ramp(attention), ramp(difference)];
  two[NOTHING] = channels(difference[3]); // exactly neutral
  return { attention: pixels(one), difference: pixels(two), css: { attention: one, difference: two } };
}

dark.addEventListener("change", () => {
  scales = makeScales();
});

const scaleOf = (show) => (show === "diff" ? "difference" : "attention");

// How much a byte stands out, 0 to 255
const strength = (byte, show) => (show === "diff" ? 2 * Math.abs(byte - NOTHING) : byte);

// The ground of a token in the text: `direction` is "to" (it is attended to) or "from" (it attends).
function tint(byte, direction, show) {
  const amount = strength(byte, show) / 255;
  if (amount < 0.02) return "";
  const hue = show === "diff" ? (byte < NOTHING ? "less" : "more") : direction;
  return `rgb(${theme()[hue].join(" ")} / ${(0.72 * Math.min(amount, 1)).toFixed(3)})`;
}

const variable = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

// The lower triangle as an image of size × size pixels; where several entries share a pixel the strongest is drawn.
function paint(bytes, show, size) {
  const pixels = scales[scaleOf(show)];
  const image = new ImageData(size, size);
  const out = new Uint32Array(image.data.buffer);
  const pooled = pool(bytes, show, size);
  for (let row = 0, i = 0; row < size; row++)
    for (let column = 0; column <= row; column++, i++) out[row * size + column] = pixels[pooled[i]];
  return image;
}

function pool(bytes, show, size) {
  if (size === N_TOKENS) return bytes;
  const place = Int32Array.from({ length: N_TOKENS }, (_, i) => Math.floor((i * size) / N_TOKENS));
  const pooled = new Uint8Array((size * (size + 1)) / 2).fill(show === "diff" ? NOTHING : 0);
  const zero = show === "diff" ? NOTHING : 0;
  for (let query = 0, i = 0; query < N_TOKENS; query++) {
    const start = at(place[query], 0);
    for (let key = 0; key <= query; key++, i++) {
      const byte = bytes[i];
      if (byte === zero) continue;
      const to = start + place[key];
      if (Math.abs(byte - zero) > Math.abs(pooled[to] - zero)) pooled[to] = byte;
    }
  }
  return pooled;
}
