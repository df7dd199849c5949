// Elements without innerHTML: whatever a caption says stays text.

export const $ = (id) => document.getElementById(id);

/** An element with properties, attributes (data-…, aria-…, role) and children. */
export function el(tag, properties = {}, ...children) {
  const node = document.createElement(tag);
  for (const [key, value] of Object.entries(properties)) {
    if (value === undefined || value === null) continue;
    if (key.includes("-") || key === "role") node.setAttribute(key, value);
    else node[key] = value;
  }
  node.append(...children.filter((child) => child !== null && child !== undefined));
  return node;
}

/** An SVG drawing from path data. */
export function drawing(viewBox, ...paths) {
  const svg = document.createElementNS("http://www.w3.org/2000/svg", "svg");
  svg.setAttribute("viewBox", viewBox);
  svg.setAttribute("aria-hidden", "true");
  for (const data of paths) {
    const path = document.createElementNS("http://www.w3.org/2000/svg", "path");
    path.setAttribute("d", data);
    svg.append(path);
  }
  return svg;
}

/** Change text only when it differs, so that nothing is read out or repainted twice. */
export function say(node, text, className) {
  if (node.textContent !== text) node.textContent = text;
  if (className !== undefined && node.className !== className) node.className = className;
}

export function button(text, action, properties = {}) {
  const node = el("button", { type: "button", className: "small", textContent: text, ...properties });
  node.addEventListener("click", action);
  return node;
}

/** Dialogs close by their buttons, by Escape, and by a click beside them. */
export function closable(dialog, closed = () => {}) {
  dialog.addEventListener("click", (event) => {
    if (event.target === dialog || event.target.closest("[data-close]")) dialog.close();
  });
  dialog.addEventListener("close", closed);
}
