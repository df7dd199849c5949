// Create and update elements without innerHTML, so that captions and names are never parsed as markup.

export const $ = (id) => document.getElementById(id);

/**
 * Create an element.
 *
 * @param properties properties or attributes (data-…, aria-…, role); null values are skipped
 * @param children nodes and texts; null values are skipped
 */
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

/** Create an SVG drawing from path data. */
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

/** Set an element's text only if it differs, so that screen readers do not announce it again. */
export function setText(node, text, className) {
  if (node.textContent !== text) node.textContent = text;
  if (className !== undefined && node.className !== className) node.className = className;
}

export function button(text, onClick, properties = {}) {
  const node = el("button", { type: "button", className: "small", textContent: text, ...properties });
  node.addEventListener("click", onClick);
  return node;
}

/** Create a menu of buttons, and the button that opens it. */
export function menu(label, ...buttons) {
  const list = el("div", { className: "menu panel", popover: "auto" }, ...buttons);
  const opener = button("⋯", () => {}, { "aria-label": label, popoverTargetElement: list });
  closeOnLeave(list, () => list.hidePopover(), opener);
  // It closes before the pressed button acts, so that a dialog returns the focus to the opener.
  list.addEventListener("click", () => list.hidePopover(), true);
  return el("span", {}, opener, list);
}

/** Close what covers the page once the keyboard focus has left it for another element than its opener. */
export function closeOnLeave(node, close, opener = node) {
  node.addEventListener("focusout", ({ relatedTarget: next }) => {
    if (next && next !== opener && !node.contains(next) && !next.contains(node)) close();
  });
}

/** Move the keyboard focus to a control, or to a part of the page. */
export function moveFocus(node) {
  const isControl = node.tabIndex >= 0 || node.hasAttribute("tabindex");
  if (!isControl) {
    node.tabIndex = -1; // while it has the focus: later, a click in the part would take the focus
    node.addEventListener("blur", () => node.removeAttribute("tabindex"), { once: true });
  }
  node.focus({ preventScroll: !isControl });
}

/** Move the keyboard focus if a change has removed, hidden or disabled the focused element. */
export function restoreFocus(node) {
  const focused = document.activeElement ?? document.body;
  if (focused === document.body || focused.matches(":disabled") || !focused.checkVisibility())
    moveFocus(node);
}

/** Replace rows; the keyboard focus goes to the same control of the new rows, or else to the part around them. */
export function replaceRows(list, rows) {
  const focused = list.contains(document.activeElement) ? document.activeElement : null;
  list.replaceChildren(...rows);
  if (!focused) return;
  const name = (node) => [node.ariaLabel, node.href, node.textContent].join();
  const same = [...list.querySelectorAll(focused.localName)].find((node) => name(node) === name(focused));
  moveFocus(same ?? list.closest("[tabindex], .panel, section, main"));
}

/** Show a notice, which screen readers announce. */
export function announce(node, text) {
  node.hidden = false;
  node.textContent = text; // even the same text, which is then read again
}

/** Create the parts that every dialog's form has: an alert, a status, and the button that closes the dialog. */
export function dialogFormParts() {
  return {
    failure: el("p", { className: "form-errors", role: "alert", hidden: true }),
    status: el("p", { className: "muted", role: "status" }),
    cancel: el("button", {
      type: "button",
      className: "quiet",
      textContent: "Cancel",
      "data-close": "",
    }),
  };
}

/** Let a dialog close by its buttons, by Escape, and by a click on the backdrop. */
export function makeClosable(dialog, onClose = () => {}) {
  dialog.addEventListener("click", (event) => {
    if (event.target === dialog || event.target.closest("[data-close]")) dialog.close();
  });
  dialog.addEventListener("close", onClose);
}
