// The notebook's side of the viewer: the page in a frame, and its selection in the widget's model.

function render({ model, el }) {
  const frame = document.createElement("iframe");
  frame.title = model.get("title");
  frame.style.cssText = `width: 100%; height: ${model.get("height")}px; border: 0`;
  frame.srcdoc = model.get("html");
  const names = ["layer", "head", "token"];
  let hearing = false; // while the model takes up the page's selection, it need not be told to the page
  const fromPage = (event) => {
    if (event.source !== frame.contentWindow || !event.data.andrea) return;
    hearing = true;
    for (const name of names) model.set(name, event.data.andrea[name]);
    hearing = false;
    model.save_changes();
  };
  const toPage = () => {
    if (hearing) return;
    const selection = Object.fromEntries(names.map((name) => [name, model.get(name)]));
    frame.contentWindow?.postMessage({ andrea: selection }, "*");
  };
  window.addEventListener("message", fromPage);
  frame.addEventListener("load", toPage);
  for (const name of names) model.on(`change:${name}`, toPage);
  el.append(frame);
  return () => {
    window.removeEventListener("message", fromPage);
    for (const name of names) model.off(`change:${name}`, toPage);
  };
}
export default { render };
