// Confirm serving another release: the dialog lists the domains that become searchable or unsearchable.

import { sendJson } from "../api_client.js";
import { dialogFormParts, el, makeClosable, setText } from "../dom.js";
import { count, shortId } from "../formatting.js";

const request = (release, dryRun) =>
  sendJson(`/releases/${encodeURIComponent(release)}/serve`, { dry_run: dryRun });

/**
 * Open the dialog, and serve the release after confirmation.
 *
 * @param release ID of a release, or "newest"
 * @param onServed called with the response, after the dialog is closed
 */
export function openServeDialog(release, onServed) {
  const { failure, status, cancel } = dialogFormParts();
  const effects = el("div", { id: "serve-effects" });
  const heading = el("h2", { id: "serve-title", textContent: "Serve a release" });
  const send = el("button", { type: "submit", className: "primary", textContent: "Serve", disabled: true });
  const form = el(
    "form",
    { noValidate: true },
    heading,
    effects,
    failure,
    el("div", { className: "sheet-foot" }, status, cancel, send),
  );
  const dialog = el(
    "dialog",
    {
      id: "serve",
      className: "sheet",
      "aria-labelledby": "serve-title",
      "aria-describedby": "serve-effects",
    },
    form,
  );
  makeClosable(dialog, () => dialog.remove());
  const fail = (error) => {
    setText(status, "");
    setText(failure, error.message);
    failure.hidden = false;
  };
  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    if (send.disabled) return;
    send.disabled = true;
    failure.hidden = true;
    setText(status, "Serving …");
    try {
      const outcome = await request(release, false);
      dialog.close();
      onServed(outcome);
    } catch (error) {
      send.disabled = false;
      fail(error);
    }
  });
  document.body.append(dialog);
  dialog.showModal();
  setText(status, "Checking the effects …");
  request(release, true)
    .then((preview) => {
      setText(status, "");
      setText(heading, `Serve the release after “${preview.task}”?`);
      effects.replaceChildren(...describe(preview));
      send.disabled = !preview.changed;
      send.className = preview.unsearchable.videos ? "danger" : "primary";
    })
    .catch(fail);
}

function describe(preview) {
  if (!preview.changed) {
    return [el("p", { textContent: `Release ${shortId(preview.release)} is already served.` })];
  }
  const { unsearchable: lost, searchable_again: found } = preview;
  const kept = [
    `${count(preview.searchable_videos, "video")} searchable afterwards.`,
    preview.kept_appended &&
      `${count(preview.kept_appended, "video")} appended to earlier domains after the release.`,
    "All releases, shards and videos: any release can be served again.",
    "Deleted videos stay deleted.",
    preview.pinned && "Domains learned from now on are kept, and searched once a later release is served.",
  ];
  return [
    lost.domains ? block("lost", "No longer searchable:", changeLines(lost)) : null,
    found.domains ? block("stays", "Searchable again:", changeLines(found)) : null,
    block("stays", "Unchanged:", kept),
  ].filter(Boolean);
}

function changeLines({ domains, videos, first }) {
  const named = first.map(
    (domain) =>
      `${domain.task}: ${count(domain.videos, "video")}` +
      (domain.appended ? `, ${domain.appended.toLocaleString()} of them appended` : ""),
  );
  const rest = domains - first.length;
  return [
    `${count(domains, "domain")} with ${count(videos, "video")}`,
    ...named,
    rest > 0 && `and ${count(rest, "more domain")}`,
  ];
}

const block = (className, title, lines) =>
  el(
    "div",
    { className },
    el("p", { textContent: title }),
    el("ul", {}, ...lines.filter(Boolean).map((textContent) => el("li", { textContent }))),
  );
