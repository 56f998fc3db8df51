// All heads as thumbnails, each with its badge. Thumbnails are drawn a few at a time, when they come into sight.

const grid = document.getElementById("grid");
grid.style.setProperty("--heads", N_HEADS);
document.getElementById("main").classList.toggle("flat", N_LAYERS <= 7); // room below the thumbnails
const cells = []; // [layer][head]
const waiting = new Set(); // cells to draw
const inSight = new IntersectionObserver(
  (entries) => {
    for (const { target, isIntersecting } of entries) {
      cellOf.get(target).visible = isIntersecting;
      if (isIntersecting) want(cellOf.get(target));
    }
  },
  { rootMargin: "200px" },
);
const cellOf = new Map();
const BADGES = payload.badges.flat().some((badge) => badge !== null);

function buildGrid() {
  grid.append(corner(""), ...payload.heads.map((head) => corner(head)));
  for (let layer = 0; layer < N_LAYERS; layer++) {
    grid.append(corner(payload.layers[layer]));
    cells.push(payload.heads.map((_, head) => buildCell(layer, head)));
  }
}

function corner(text) {
  const node = document.createElement("span");
  node.className = "corner";
  node.textContent = text;
  return node;
}

function buildCell(layer, head) {
  const button = document.createElement("button");
  button.type = "button";
  button.className = "cell";
  const [canvas, badge, name, bar, number] = ["canvas", "span", "span", "b", "small"].map((kind) => document.createElement(kind));
  bar.append(document.createElement("i"));
  badge.className = "badge";
  badge.append(name, bar, number);
  button.append(canvas, badge);
  const cell = { layer, head, button, canvas, badge, name, bar, number, visible: false, drawn: "" };
  cellOf.set(button, cell);
  button.addEventListener("click", () => select({ layer, head }));
  button.addEventListener("focus", () => button.matches(":focus-visible") && select({ layer, head }));
  grid.append(button);
  inSight.observe(button);
  return cell;
}

// The badge: the head's best probe and its score, or in a difference how far apart the two patterns are, which is
// known when the thumbnail was drawn.
function writeBadge(cell) {
  const { layer, head, button, badge, name, bar, number } = cell;
  const scored = payload.badges[layer][head];
  const differs = state.show === "diff";
  const waits = differs && cell.drawn !== look();
  const score = waits ? null : differs ? distance(layer, head, state.weighted) : (scored?.score ?? null);
  badge.hidden = !BADGES && !differs;
  badge.classList.toggle("faint", differs ? score === 0 : !scored?.found);
  name.hidden = differs;
  name.textContent = scored?.found ? scored.short : "–";
  number.textContent = score === null ? "\u00a0" : short(score);
  bar.firstChild.style.width = `${100 * (score ?? 0)}%`;
  bar.style.setProperty("--baseline", `${100 * (differs ? 0 : (scored?.baseline ?? 0))}%`);
  button.title = `Head ${headName(layer, head)}` + (waits ? "" : `: ${badgeWords(layer, head)}`);
  button.setAttribute("aria-label", button.title);
}

const short = (score) => (score >= 0.995 ? "1.0" : score.toFixed(2).replace(/^0/, ""));

function badgeWords(layer, head) {
  if (state.show === "diff") {
    const apart = distance(layer, head, state.weighted);
    return apart === 0 ? "A and B are the same, to 8 bits" : `${apart < 0.01 ? apart.toExponential(0) : apart.toFixed(2)} of its attention moved`;
  }
  const badge = payload.badges[layer][head];
  if (!badge) return "not scored";
  const scored = `${badge.label} ${badge.score.toFixed(2)}, evenly spread attention ${badge.baseline.toFixed(2)}`;
  return badge.found ? scored : `nothing above the null (best: ${scored})`;
}

function want(cell) {
  if (cell.drawn === look() || waiting.has(cell)) return;
  if (waiting.size === 0) requestAnimationFrame(drawWaiting);
  waiting.add(cell);
}

const look = () => `${state.show}/${state.weighted}/${dark.matches}`;

function drawWaiting() {
  const start = performance.now();
  for (const cell of waiting) {
    waiting.delete(cell);
    if (cell.visible) drawCell(cell);
    if (performance.now() - start > 10) break; // let the page answer in between
  }
  if (waiting.size > 0) requestAnimationFrame(drawWaiting);
  else document.documentElement.dataset.thumbnails = "drawn";
}

function drawCell(cell) {
  const size = Math.min(N_TOKENS, Math.round(cell.canvas.clientWidth * devicePixelRatio) || 40);
  cell.canvas.width = cell.canvas.height = size;
  const bytes = shades(cell.layer, cell.head, state.show, state.weighted);
  cell.canvas.getContext("2d").putImageData(paint(bytes, state.show, size), 0, 0);
  cell.drawn = look();
  writeBadge(cell);
}

function refreshGrid() {
  document.getElementById("bars").textContent =
    state.show === "diff" ? "bars: share of the attention that moved" : BADGES ? "bars: score, and evenly spread attention" : "";
  document.documentElement.dataset.thumbnails = "drawing";
  for (const cell of cells.flat()) {
    writeBadge(cell);
    if (cell.visible) want(cell);
  }
}

let current = null;

function markCell() {
  current?.button.removeAttribute("aria-current");
  current = cells[state.layer][state.head];
  current.button.setAttribute("aria-current", "true");
}
