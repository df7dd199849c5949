// Suggestions below the search box: library words that continue the last typed word. The box is a combobox whose focus
// stays in the field; options are reached with the arrow keys, or clicked.

import { api } from "./api_client.js";
import { $, el } from "./dom.js";

const TYPING_MILLISECONDS = 120;
const MAX_SUGGESTIONS = 8;
const LAST_WORD = /[\p{L}\p{M}\p{N}]+$/u;
let choose = () => {};
let typing = null;
let activeRequest = null;

/** @param onChoice called when a suggestion was put into the search box */
export function setUpSuggestions(onChoice) {
  choose = (word) => {
    $("q").value = complete($("q").value, word);
    closeSuggestions();
    onChoice();
  };
  $("q").addEventListener("input", () => {
    stopRequest();
    select(null);
    if (isAtLastWord()) typing = setTimeout(suggest, TYPING_MILLISECONDS);
    else closeSuggestions();
  });
  $("q").addEventListener("keydown", handleKey);
  $("q").addEventListener("blur", closeSuggestions);
  $("suggestions").addEventListener("mousedown", (event) => event.preventDefault()); // the field keeps the focus
}

/** Replace the part of the last word that a suggestion continues: without spaces, it may be several words. */
function complete(text, word) {
  const characters = [...LAST_WORD.exec(text)[0]];
  const tails = characters.map((_, position) => characters.slice(position).join(""));
  const tail = tails.find((part) => fold(word).startsWith(fold(part))) ?? tails[0];
  return text.slice(0, text.length - tail.length) + word;
}

/** Remove case and accents, as the service does to compare words. */
const fold = (text) => text.normalize("NFKD").replace(/\p{M}/gu, "").toLowerCase().replaceAll("ß", "ss");

/** Hide the suggestions, and cancel the request for others. */
export function closeSuggestions() {
  stopRequest();
  show([]);
}

function stopRequest() {
  clearTimeout(typing);
  activeRequest?.abort();
}

const isOpen = () => !$("suggestions").hidden;

const isAtLastWord = () => $("q").selectionEnd === $("q").value.length && LAST_WORD.test($("q").value);

async function suggest() {
  const controller = new AbortController();
  activeRequest = controller;
  const query = new URLSearchParams({ q: $("q").value, k: MAX_SUGGESTIONS });
  try {
    const { suggestions } = await api(`/suggestions?${query}`, { signal: controller.signal });
    if (!controller.signal.aborted) show(suggestions);
  } catch {
    if (!controller.signal.aborted) show([]); // the search works without suggestions, and reports what is wrong
  }
}

function show(suggestions) {
  select(null);
  $("suggestions").replaceChildren(...suggestions.map(option));
  $("suggestions").hidden = !suggestions.length;
  $("q").setAttribute("aria-expanded", String(suggestions.length > 0));
}

function option({ text, count }, position) {
  const videos = el("small", { textContent: count.toLocaleString(), "aria-hidden": "true" });
  const properties = { id: `suggestion-${position}`, role: "option", "aria-selected": "false" };
  const node = el("li", properties, el("span", { textContent: text }), videos);
  node.addEventListener("click", () => choose(text));
  return node;
}

/** Map a key to its effect; undefined if it keeps its usual meaning in a field. */
function keyEffect(key) {
  if (!isOpen()) return key === "ArrowDown" && isAtLastWord() ? suggest : undefined;
  if (key === "ArrowDown") return () => move(1);
  if (key === "ArrowUp") return () => move(-1);
  if (key === "Escape") return closeSuggestions; // the browser would clear the field
  return key === "Enter" && selected() ? () => selected().click() : undefined;
}

function handleKey(event) {
  const effect = event.isComposing ? undefined : keyEffect(event.key);
  if (!effect) return;
  event.preventDefault();
  effect();
}

const selected = () => $("suggestions").querySelector("[aria-selected=true]");

/** Select the next or previous option; between the last and the first one, none is selected. */
function move(step) {
  const places = [null, ...$("suggestions").children];
  select(places.at((places.indexOf(selected()) + step) % places.length));
}

function select(node) {
  selected()?.setAttribute("aria-selected", "false");
  node?.setAttribute("aria-selected", "true");
  node?.scrollIntoView({ block: "nearest" });
  if (node) $("q").setAttribute("aria-activedescendant", node.id);
  else $("q").removeAttribute("aria-activedescendant");
}
