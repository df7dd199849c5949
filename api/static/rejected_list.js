// A domain's rejected videos, including those of its appends, with reasons, in pages.

import { api } from "./api_client.js";
import { $, el, setText } from "./dom.js";
import { count } from "./formatting.js";
import { fileName, rejectionReason } from "./page_texts.js";

const PAGE_SIZE = 50;

/** Show the rejected videos; the section is hidden if there are none. */
export async function showRejected(task) {
  $("more-rejected-button").onclick = () => loadPage(task, $("more-rejected").dataset.cursor);
  await loadPage(task, "");
}

async function loadPage(task, cursor) {
  const parameters = new URLSearchParams({
    task: task.id,
    status: "rejected",
    limit: PAGE_SIZE,
    ...(cursor ? { cursor } : {}),
  });
  try {
    const page = await api(`/videos?${parameters}`);
    const rows = page.videos.map(rejectedRow);
    if (cursor) $("rejected-list").append(...rows);
    else $("rejected-list").replaceChildren(...rows);
    const shown = $("rejected-list").children.length;
    $("rejected").hidden = !shown;
    $("more-rejected").dataset.cursor = page.next_cursor ?? "";
    $("more-rejected").hidden = !page.next_cursor;
    setText($("rejected-note"), page.next_cursor ? `the first ${shown}` : count(shown, "video"));
    if (cursor) rows[0]?.focus();
  } catch (error) {
    $("rejected").hidden = false;
    setText($("rejected-note"), `The rejected videos couldn't be loaded. ${error.message}`);
  }
}

function rejectedRow({ uri, reason }) {
  const properties = { tabIndex: -1, "data-testid": "rejected" };
  return el(
    "li",
    properties,
    el("code", { textContent: fileName(uri) }),
    el("span", { textContent: rejectionReason(reason) }),
  );
}
