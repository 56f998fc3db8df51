// Words and numbers about the selection: the strongest tokens in both directions, and every head at this token.

const MOST = 6; // tokens in a list
const LEAST = 0.005; // what would be written as 0.00 is left out
const node = (id) => document.getElementById(id);
const signed = (x, digits = 2) => `${x < 0 ? "−" : "+"}${Math.abs(x).toFixed(digits)}`;
const share = (x, digits = 2) => (state.show === "diff" ? signed(x, digits) : x.toFixed(digits));
const quoted = (token) => `“${label(token)}”`;

function writeHead() {
  const { layer, head, show } = state;
  node("head-name").textContent = `Head ${headName(layer, head)}`;
  const words = badgeWords(layer, head);
  node("head-badge").textContent = words[0].toUpperCase() + words.slice(1);
  matrix.setAttribute("aria-label", `${show === "diff" ? "Difference of the patterns" : "Pattern"} of head ${headName(layer, head)}`);
}

function writeToken(token, key) {
  const { layer, head, show, weighted } = state;
  node("token-name").replaceChildren(`Token ${token} `, Object.assign(document.createElement("code"), { textContent: label(token, 24) }));
  const read = (query, other) => value(layer, head, query, other, show, weighted);
  const to = strongest(token + 1, (i) => i, (i) => read(token, i));
  const from = strongest(N_TOKENS - token - 1, (i) => token + 1 + i, (i) => read(i, token));
  fill("to", to, "to");
  fill("from", from, "from");
  node("readout").textContent =
    key === null
      ? "A row is what a token attends to, a column who attends to it."
      : `${quoted(token)} at ${token} attends to ${quoted(key)} at ${key}: ${share(read(token, key), 3)}`;
  drawStrips(token);
  const most = to.length ? `most on ${label(to[0].token)} at ${to[0].token}, ${share(to[0].x)}` : "nothing to tell";
  return `Head ${headName(layer, head)}, token ${token} ${label(token)}: ${most}`;
}

function strongest(n, tokenAt, read) {
  const all = Array.from({ length: n }, (_, i) => ({ token: tokenAt(i), x: read(tokenAt(i)) }));
  return all.filter(({ x }) => Math.abs(x) >= LEAST).sort((a, b) => Math.abs(b.x) - Math.abs(a.x)).slice(0, MOST);
}

function fill(id, found, direction) {
  if (found.length === 0) {
    const nothing = Object.assign(document.createElement("li"), { className: "none", textContent: "nothing above 0.005" });
    node(id).replaceChildren(nothing);
    return;
  }
  node(id).replaceChildren(
    ...found.map(({ token, x }) => {
      const row = document.createElement("li");
      const [bar, name, place, number] = ["b", "code", "small", "span"].map((kind) => document.createElement(kind));
      bar.style.width = `${100 * Math.min(Math.abs(x), 1)}%`;
      bar.className = state.show === "diff" ? (x < 0 ? "less" : "more") : direction;
      name.textContent = label(token, 14);
      place.textContent = token;
      number.textContent = share(x);
      row.append(bar, name, place, number);
      row.addEventListener("click", () => select({ token }));
      return row;
    }),
  );
}

// What each head writes at this token: one small map of the heads for each measure.
const STRIPS = {
  norms: { title: () => "Output norm at this token", scale: "attention" },
  logits: { title: (token) => `Direct logit of ${successor(token)}`, scale: "difference" },
};

function successor(token) {
  const words = payload.successors;
  if (words === null) return "the next token";
  return `“${label(words[token])}”` + (token === N_TOKENS - 1 ? " (the model’s guess)" : "");
}

function drawStrips(token) {
  for (const [name, { title, scale }] of Object.entries(STRIPS)) {
    if (node(name).hidden) continue;
    const differs = state.show === "diff";
    const of = (layer, head) => measure(name, layer, head, token, state.show);
    const all = cells.flat().map(({ layer, head }) => ({ layer, head, x: of(layer, head) }));
    const top = all.reduce((best, one) => (Math.abs(one.x) > Math.abs(best.x) ? one : best));
    drawStrip(node(name).querySelector("canvas"), all, Math.abs(top.x), differs ? "difference" : scale);
    const number = (x) => (differs || name === "logits" ? signed(x) : x.toFixed(2));
    const [mine, most] = [of(state.layer, state.head), `${number(top.x)} by ${headName(top.layer, top.head)}`];
    const caption = node(name).querySelector("figcaption");
    caption.replaceChildren(
      Object.assign(document.createElement("strong"), { textContent: title(token) }),
      `head ${headName(state.layer, state.head)}: `,
      Object.assign(document.createElement("b"), { textContent: number(mine) }),
      ` · largest: ${most}`,
    );
    node(name).querySelector("canvas").setAttribute("aria-label", caption.textContent);
  }
}

function drawStrip(canvas, all, most, scale) {
  const wide = Math.max(4, Math.min(26, (canvas.parentElement.clientWidth || 200) / N_HEADS));
  const high = Math.max(5, Math.min(13, 150 / N_LAYERS));
  canvas.width = Math.round(wide * N_HEADS * devicePixelRatio);
  canvas.height = Math.round((high * N_LAYERS + 2) * devicePixelRatio);
  canvas.style.width = `${wide * N_HEADS}px`;
  const context = canvas.getContext("2d");
  context.setTransform(devicePixelRatio, 0, 0, devicePixelRatio, 0, 0);
  for (const { layer, head, x } of all) {
    const part = most === 0 ? 0 : x / most;
    const byte = scale === "difference" ? NOTHING + Math.round(127 * part) : Math.round(255 * part);
    context.fillStyle = `rgb(${scales.css[scale][byte].join(" ")})`;
    context.fillRect(head * wide, layer * high + 1, wide - 1, high - 1);
  }
  context.strokeStyle = variable("--ink");
  context.lineWidth = 1.5;
  context.strokeRect(state.head * wide, state.layer * high + 0.75, wide - 1, high - 0.5);
}

for (const name of Object.keys(STRIPS)) {
  node(name).hidden = sides.some((side) => side[name] === null);
  node(name).querySelector("canvas").addEventListener("click", (event) => {
    const box = event.target.getBoundingClientRect();
    const place = (x, length, n) => Math.min(Math.max(Math.floor((x / length) * n), 0), n - 1);
    const layer = place(event.clientY - box.top, box.height, N_LAYERS);
    select({ layer, head: place(event.clientX - box.left, box.width, N_HEADS) });
  });
}

function writeDirections() {
  const [to, from] = state.show === "diff" ? ["less", "more"] : ["to", "from"];
  const words = state.show === "diff"
    ? [`more in A: ${sides[0].name}`, `more in B: ${sides[1].name}`]
    : ["it attends to (before it)", "attends to it (after it)"];
  node("directions").replaceChildren(
    ...[to, from].map((kind, i) => {
      const item = document.createElement("span");
      item.append(Object.assign(document.createElement("i"), { className: kind }), words[i]);
      return item;
    }),
  );
  node("to-name").textContent = "Attends to";
  node("from-name").textContent = "Attended to by";
}
