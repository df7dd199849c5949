// Buttons that mark a video right or wrong for the searched text.

import { api, request, sendJson } from "./api_client.js";
import { button, drawing, el } from "./dom.js";

const ICONS = { right: "M4 10.5l4 4 8-9", wrong: "M5 5l10 10M15 5L5 15" };
const LABELS = { right: "Right for this query", wrong: "Wrong for this query" };
const STATES = { right: "Marked right", wrong: "Marked wrong" };

/** Read the verdicts that the user gave for a text, by the ID of their video; none if they cannot be read. */
export async function readVerdicts(text) {
  const query = new URLSearchParams({ text: text.trim(), own: true, limit: 1000 });
  const { feedback } = await api(`/v1/feedback?${query}`).catch(() => ({ feedback: [] }));
  const isSame = (entry) => entry.text.toLowerCase() === text.trim().toLowerCase();
  return new Map(feedback.filter(isSame).map((entry) => [entry.video_id, entry]));
}

/** @param verdicts promise of {@link readVerdicts} */
export function feedbackControls(text, videoId, title, verdicts) {
  const state = el("span", { role: "status" });
  const controls = el("div", { className: "feedback", role: "group", "aria-label": "Feedback" });
  const choices = Object.keys(ICONS).map((verdict) => choice(verdict));
  const undo = button("Undo", () => takeBack(), { className: "small quiet", "aria-label": `Undo: ${title}` });
  let given = null;

  function choice(verdict) {
    const properties = { className: "icon-button", title: LABELS[verdict] };
    const label = { "aria-label": `${LABELS[verdict]}: ${title}` };
    const node = button("", () => give(verdict), { ...properties, ...label });
    node.append(drawing("0 0 20 20", ICONS[verdict]));
    return node;
  }

  function show(verdict) {
    state.className = verdict ?? "";
    state.textContent = verdict ? STATES[verdict] : "";
    undo.hidden = verdict === null;
    for (const node of choices) node.hidden = verdict !== null;
  }

  async function give(verdict) {
    await attempt(async () => {
      given = (await sendJson("/v1/feedback", { text, video_id: videoId, verdict })).id;
      show(verdict);
      undo.focus();
    });
  }

  async function takeBack() {
    await attempt(async () => {
      const response = await request(`/v1/feedback/${given}`, { method: "DELETE" });
      // 404: it was taken back elsewhere.
      if (!response.ok && response.status !== 404) throw new Error("The feedback couldn't be taken back.");
      show(null);
      choices[0].focus();
    });
  }

  async function attempt(act) {
    const buttons = [...choices, undo];
    for (const node of buttons) node.ariaDisabled = "true";
    try {
      await act();
    } catch (error) {
      state.className = "failed";
      state.textContent = error.message;
    } finally {
      for (const node of buttons) node.ariaDisabled = null;
    }
  }

  show(null);
  verdicts.then((earlier) => {
    const entry = earlier.get(videoId);
    if (!entry || given !== null) return;
    given = entry.id;
    show(entry.verdict);
  });
  controls.append(state, undo, ...choices);
  return controls;
}
