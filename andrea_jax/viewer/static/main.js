// The selection, and everything that changes it: pointer, keys, the address, the notebook around the page.

// layer and head count from 0 within the page; outside (address, notebook) they are the numbers of the model
const state = { layer: 0, head: 0, token: 0, show: "a", weighted: false, hover: null, key: null };
const dirty = new Set(["all"]);
const LINKABLE = location.protocol !== "about:"; // a page inside a notebook has no address of its own
const LINK = LINKABLE ? "Copy link" : "Copy selection";

// What to draw again: "matrix" (another head or size), "all" (other colours or numbers everywhere); marks always.
function schedule(...parts) {
  if (dirty.size === 0) requestAnimationFrame(render);
  for (const part of ["marks", ...parts]) dirty.add(part);
}

function render() {
  const parts = new Set(dirty);
  dirty.clear();
  const token = state.hover ?? state.token;
  if (parts.has("all")) {
    writeControls();
    writeDirections();
    refreshGrid();
  }
  if (parts.has("all") || parts.has("matrix")) {
    markCell();
    writeHead();
    drawMatrix();
  }
  drawMarks(token, state.key);
  colourText(token);
  markToken(token);
  const sentence = writeToken(token, state.key);
  if (state.hover === null) node("said").textContent = sentence;
  Object.assign(document.documentElement.dataset, { ...outside(), show: state.show, weighted: state.weighted, shown: token });
}

// The pointer looks at a token (and a key of it) without selecting it; null: it went away.
function preview(token, key = null) {
  if (state.hover === token && state.key === key) return;
  Object.assign(state, { hover: token, key });
  schedule();
}

const outside = () => ({ layer: payload.layers[state.layer], head: payload.heads[state.head], token: state.token });

function select(wanted, tell = true) {
  const before = { ...state };
  Object.assign(state, wanted);
  const changed = Object.keys(before).filter((name) => before[name] !== state[name]);
  if (changed.length === 0) return;
  const everything = changed.includes("show") || changed.includes("weighted");
  schedule(everything ? "all" : changed.includes("layer") || changed.includes("head") ? "matrix" : "marks");
  if (LINKABLE) history.replaceState(null, "", address());
  if (tell && parent !== window) parent.postMessage({ andrea: outside() }, "*");
}

function address() {
  const words = new URLSearchParams(outside());
  if (sides.length > 1) words.set("show", state.show);
  if (state.weighted) words.set("weighted", "yes");
  return `#${words}`;
}

// The selection as a call of View.at, which opens it again in a notebook.
function inPython() {
  const words = Object.entries(outside()).map(([name, number]) => `${name}=${number}`);
  if (sides.length > 1) words.push(`show="${state.show}"`);
  if (state.weighted) words.push("weighted=True");
  return `at(${words.join(", ")})`;
}

async function copy(text) {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch {
    return false;
  }
}

// From numbers of the model to a selection; what the page does not have is left as it is.
function inside(words) {
  const wanted = {};
  const [layer, head] = [payload.layers.indexOf(Number(words.layer)), payload.heads.indexOf(Number(words.head))];
  if (words.layer !== undefined && layer >= 0) wanted.layer = layer;
  if (words.head !== undefined && head >= 0) wanted.head = head;
  const token = Number(words.token);
  if (words.token !== undefined && Number.isInteger(token) && token >= 0 && token < N_TOKENS) wanted.token = token;
  if (["a", "b", "diff"].includes(words.show) && (sides.length > 1 || words.show === "a")) wanted.show = words.show;
  if (words.weighted !== undefined) wanted.weighted = words.weighted === "yes" && WEIGHABLE;
  return wanted;
}

const WEIGHABLE = sides.every((side) => side.valueNorms !== null);
const fromAddress = () => inside(Object.fromEntries(new URLSearchParams(location.hash.slice(1))));

function writeControls() {
  for (const button of document.querySelectorAll("#sides button"))
    button.setAttribute("aria-pressed", button.dataset.show === state.show);
  for (const button of document.querySelectorAll("#weighting button"))
    button.setAttribute("aria-pressed", (button.dataset.weighted === "yes") === state.weighted);
}

function buildControls() {
  node("sides").hidden = sides.length === 1;
  node("weighting").hidden = !WEIGHABLE;
  node("link").textContent = LINK;
  node("link").title = LINKABLE ? "" : "in Python: view.at(…) opens here again";
  for (const button of document.querySelectorAll("#sides button")) {
    const letter = { a: "A", b: "B" }[button.dataset.show];
    if (letter) button.textContent = `${letter}: ${sides[letter === "A" ? 0 : 1]?.name}`;
    button.addEventListener("click", () => select({ show: button.dataset.show }));
  }
  for (const button of document.querySelectorAll("#weighting button"))
    button.addEventListener("click", () => select({ weighted: button.dataset.weighted === "yes" }));
  node("ask").addEventListener("click", () => node("help").showModal());
  document.querySelector(".skip").addEventListener("click", (event) => {
    event.preventDefault(); // in a frame "#text" is an address of the page around it, which would be loaded in here
    node("text").focus();
  });
  node("link").addEventListener("click", async () => {
    if (LINKABLE) history.replaceState(null, "", address());
    const text = LINKABLE ? location.href : inPython();
    const copied = await copy(text);
    node("link").textContent = copied ? "Copied" : text; // where a frame may not copy, it can be read and selected
    if (copied) setTimeout(() => (node("link").textContent = LINK), 1500);
  });
}

function step(heads) {
  const button = () => cells[state.layer][state.head].button;
  const focused = document.activeElement === button();
  const place = state.layer * N_HEADS + state.head + heads + N_LAYERS * N_HEADS;
  select({ layer: Math.floor(place / N_HEADS) % N_LAYERS, head: place % N_HEADS });
  if (focused) button().focus(); // left behind, the ring of the focus would look like the selection
}

function go(token) {
  preview(null);
  select({ token: Math.min(Math.max(token, 0), N_TOKENS - 1) });
  scrollToToken(state.token);
}

const toggle = (show) => sides.length > 1 && select({ show });
const KEYS = {
  ArrowLeft: () => go(state.token - 1),
  ArrowRight: () => go(state.token + 1),
  ArrowUp: () => go(tokenByLine(state.token, -1)),
  ArrowDown: () => go(tokenByLine(state.token, 1)),
  Home: () => go(0),
  End: () => go(N_TOKENS - 1),
  "[": () => step(-1),
  "]": () => step(1),
  "{": () => step(-N_HEADS),
  "}": () => step(N_HEADS),
  a: () => toggle("a"),
  b: () => toggle("b"),
  d: () => toggle(state.show === "diff" ? "a" : "diff"),
  v: () => WEIGHABLE && select({ weighted: !state.weighted }),
  "?": () => node("help").showModal(),
};

addEventListener("keydown", (event) => {
  if (event.key === "?" && node("help").open) return node("help").close();
  if (event.ctrlKey || event.metaKey || event.altKey || node("help").open || !(event.key in KEYS)) return;
  event.preventDefault();
  KEYS[event.key]();
});
addEventListener("hashchange", () => select(fromAddress()));
addEventListener("message", (event) => {
  if (event.source === parent && event.data?.andrea) select(inside(event.data.andrea), false);
});
dark.addEventListener("change", () => schedule("all"));

buildControls();
buildGrid();
Object.assign(state, sides.length > 1 ? { show: "diff" } : {}, inside(payload.start), fromAddress());
render();
scrollToToken(state.token);
document.documentElement.dataset.ready = "yes";
