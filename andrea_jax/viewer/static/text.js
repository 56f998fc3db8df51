// Tokens as people read them: in the running text, and alone as a label.

const textBox = document.getElementById("text");

// A token on one line: leading and inner spaces as dots, newlines and tabs as signs.
function label(token, longest = 16) {
  const text = payload.tokens[token] ?? token;
  const visible = text.replaceAll(" ", "·").replaceAll("\n", "⏎").replaceAll("\t", "⇥") || "∅";
  const characters = [...visible];
  return characters.length > longest ? characters.slice(0, longest - 1).join("") + "…" : visible;
}

const spans = payload.tokens.map((token, i) => {
  const span = document.createElement("span");
  span.id = `token-${i}`;
  span.setAttribute("role", "option");
  span.setAttribute("aria-selected", "false");
  span.setAttribute("aria-label", `${i}: ${label(i)}`);
  for (const part of token.split(/([\n\t])/)) {
    if (part === "\n" || part === "\t") {
      const sign = document.createElement("i"); // faint; the character itself still breaks the line
      sign.textContent = part === "\n" ? "⏎" : "⇥";
      span.append(sign, part);
    } else span.append(part);
  }
  return span;
});
textBox.append(...spans);
textBox.dataset.code = payload.tokens.some((token) => token.includes("\n") || token.includes("\t"));

const tokenOf = (event) => spans.indexOf(event.target.closest("[role=option]"));

textBox.addEventListener("pointermove", (event) => {
  const token = tokenOf(event);
  if (token >= 0) preview(token);
});
textBox.addEventListener("pointerleave", () => preview(null));
textBox.addEventListener("click", (event) => {
  const token = tokenOf(event);
  if (token >= 0) select({ token });
});

// Before the token: what it attends to. After it: who attends to it. The token itself: its attention to itself.
function colourText(token) {
  const bytes = shades(state.layer, state.head, state.show, state.weighted);
  for (let other = 0; other < N_TOKENS; other++) {
    const before = other <= token;
    const byte = before ? bytes[at(token, other)] : bytes[at(other, token)];
    const ground = tint(byte, before ? "to" : "from", state.show);
    if (spans[other].style.backgroundColor !== ground) spans[other].style.backgroundColor = ground;
  }
}

let marked = null;

function markToken(token) {
  marked?.setAttribute("aria-selected", "false");
  marked = spans[token];
  marked.setAttribute("aria-selected", "true");
  textBox.setAttribute("aria-activedescendant", marked.id);
}

function scrollToToken(token) {
  const [box, span] = [textBox.getBoundingClientRect(), spans[token].getBoundingClientRect()];
  if (span.top < box.top) textBox.scrollTop -= box.top - span.top + 30;
  if (span.bottom > box.bottom) textBox.scrollTop += span.bottom - box.bottom + 30;
}

// The token nearest below (+1) or above (−1) the given one.
function tokenByLine(token, direction) {
  const boxes = spans.map((span) => span.getClientRects()[0]);
  const from = boxes[token];
  const middle = (from.left + from.right) / 2;
  const away = (box) => (box.top - from.top) * direction;
  const lines = boxes.filter((box) => away(box) > from.height / 2).map(away);
  if (lines.length === 0) return direction > 0 ? N_TOKENS - 1 : 0;
  const line = Math.min(...lines);
  const inLine = boxes.flatMap((box, i) => (Math.abs(away(box) - line) < 2 ? [i] : []));
  const off = (i) => Math.max(boxes[i].left - middle, middle - boxes[i].right, 0);
  return inLine.reduce((best, i) => (off(i) < off(best) ? i : best));
}
