// One head, large. Rows are queries, columns keys. The upper triangle is the future and stays empty: there the tokens
// are written, each at the end of its row and on top of its column.

const stage = document.getElementById("stage");
const matrix = document.getElementById("matrix");
const marks = document.getElementById("marks"); // the selected row and column, and the labels, drawn over the pattern
const READABLE = 11; // pixels of a cell that allow a label on every row
let cell = 1; // side of one entry, CSS pixels
let side = 1; // of the whole pattern

// Makes both canvases fit the width there is; true where something changed.
function fitMatrix() {
  const width = stage.clientWidth;
  const labels = width / N_TOKENS >= READABLE ? labelSpace() : 0;
  const most = Math.max(160, Math.min(width - labels, 46 * N_TOKENS));
  if (most === side && matrix.width === Math.round(width * devicePixelRatio)) return;
  [side, cell] = [most, most / N_TOKENS];
  for (const canvas of [matrix, marks]) {
    canvas.width = Math.round(width * devicePixelRatio);
    canvas.height = Math.round((side + 2) * devicePixelRatio);
    canvas.style.height = `${side + 2}px`;
  }
  stage.style.height = `${side + 2}px`;
}

const FONT = '"DejaVu Sans Mono", ui-monospace, Menlo, Consolas, monospace';

// Room that the labels of the last rows need to the right of the pattern.
function labelSpace() {
  const last = Array.from({ length: Math.min(4, N_TOKENS) }, (_, i) => N_TOKENS - 1 - i);
  return 12 + 6.7 * Math.max(...last.map((token) => [...label(token, 10)].length));
}

function brush(canvas) {
  const context = canvas.getContext("2d");
  context.setTransform(devicePixelRatio, 0, 0, devicePixelRatio, 0, 0);
  context.clearRect(0, 0, canvas.width, canvas.height);
  return context;
}

function drawMatrix() {
  fitMatrix();
  const context = brush(matrix);
  const bytes = shades(state.layer, state.head, state.show, state.weighted);
  const dots = Math.round(side * devicePixelRatio);
  const small = Math.min(N_TOKENS, dots);
  // enlarged by a whole number first, then shrunk smoothly: every entry gets its exact share of the area
  const image = new OffscreenCanvas(small, small);
  image.getContext("2d").putImageData(paint(bytes, state.show, small), 0, 0);
  const times = Math.ceil(dots / small);
  const large = new OffscreenCanvas(small * times, small * times);
  const enlarge = large.getContext("2d");
  enlarge.imageSmoothingEnabled = false;
  enlarge.drawImage(image, 0, 0, large.width, large.height);
  context.imageSmoothingQuality = "high";
  context.drawImage(large, 0, 0, side, side);
  context.strokeStyle = variable("--line");
  context.lineWidth = 1;
  staircase(context);
  drawLegend();
}

// The border between past and future.
function staircase(context) {
  context.beginPath();
  context.moveTo(0.5, 0);
  context.lineTo(0.5, side - 0.5);
  context.lineTo(side, side - 0.5);
  if (cell < 4) context.lineTo(0.5, 0.5);
  else
    for (let i = N_TOKENS; i > 0; i--) {
      context.lineTo(i * cell, (i - 1) * cell + 0.5);
      context.lineTo((i - 1) * cell, (i - 1) * cell + 0.5);
    }
  context.stroke();
}

function drawMarks(token, key) {
  const context = brush(marks);
  const { to, from } = theme();
  const line = (colour) => `rgb(${colour.join(" ")})`;
  context.lineWidth = 1.5;
  const thick = Math.max(cell, 3);
  const edge = token * cell + (cell - thick) / 2;
  context.strokeStyle = line(from);
  context.strokeRect(edge, edge, thick, side - edge);
  context.strokeStyle = line(to);
  context.strokeRect(0.75, edge, edge + thick - 0.75, thick);
  context.font = `${Math.min(11.5, Math.max(10.5, cell * 0.7))}px ${FONT}`;
  context.textBaseline = "middle";
  if (cell >= READABLE) for (let i = 0; i < N_TOKENS; i++) write(context, i, i === token, cell < 16 ? 10 : 14);
  else {
    if (key !== null && key !== token) write(context, key, false, 14);
    write(context, token, true, 18);
  }
  if (key !== null) {
    context.strokeStyle = variable("--ink");
    context.strokeRect(key * cell - 1, token * cell - 1, cell + 2, cell + 2);
  }
}

// A token at the end of its row; where it would leave the canvas, above the row's end.
function write(context, token, strong, longest) {
  const text = label(token, longest);
  const width = context.measureText(text).width;
  let [x, y] = [(token + 1) * cell + 5, (token + 0.5) * cell];
  if (x + width > stage.clientWidth) [x, y] = [Math.max(stage.clientWidth - width - 3, 0), Math.max(y - 12, 8)];
  if (cell < READABLE) {
    context.fillStyle = variable("--ground");
    context.globalAlpha = 0.85;
    context.fillRect(x - 3, y - 8, width + 6, 16);
    context.globalAlpha = 1;
  }
  context.fillStyle = variable(strong ? "--ink" : "--soft");
  context.fillText(text, x, y);
}

// {token: row, key: column} under the pointer; no key where it points into the future, which holds the labels.
function entryAt(event) {
  const box = marks.getBoundingClientRect();
  const [x, y] = [event.clientX - box.left, event.clientY - box.top];
  const inside = (place) => Math.min(Math.max(Math.floor(place / cell), 0), N_TOKENS - 1);
  const [token, key] = [inside(y), inside(x)];
  return { token, key: key <= token ? key : null };
}

marks.addEventListener("pointermove", (event) => {
  const { token, key } = entryAt(event);
  preview(token, key);
});
marks.addEventListener("pointerleave", () => preview(null));
marks.addEventListener("click", (event) => select({ token: entryAt(event).token }));

new ResizeObserver(() => schedule("matrix")).observe(stage);

function drawLegend() {
  const canvas = document.getElementById("legend");
  const context = canvas.getContext("2d");
  const colours = scales.css[scaleOf(state.show)];
  for (let x = 0; x < canvas.width; x++) {
    context.fillStyle = `rgb(${colours[Math.floor((x / canvas.width) * 256)].join(" ")})`;
    context.fillRect(x, 0, 1, canvas.height);
  }
  const differs = state.show === "diff";
  const weighted = state.weighted ? "value-weighted " : "";
  document.getElementById("legend-name").textContent = differs ? `${weighted}B − A` : `${weighted}attention`;
  const ticks = differs ? [-1, -0.25, -0.04, 0, 0.04, 0.25, 1] : [0, 0.04, 0.25, 0.5, 1];
  document.getElementById("legend-ticks").replaceChildren(
    ...ticks.map((tick) => {
      const node = document.createElement("span");
      const root = Math.sign(tick) * Math.sqrt(Math.abs(tick));
      node.textContent = String(tick).replace("-", "−").replace("0.", ".");
      node.style.left = `${100 * (differs ? (root + 1) / 2 : root)}%`;
      return node;
    }),
  );
}
