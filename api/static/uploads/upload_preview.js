// The preview of the task that the selected files would become.

import { button, el } from "../dom.js";
import { bytes, count } from "../formatting.js";

const DELIMITERS = { ",": "comma", ";": "semicolon", "\t": "tab", "|": "vertical bar" };

/**
 * Show a preview.
 *
 * @param onEncoding called with the encoding that the user selects for text files
 */
export function drawPreview(node, preview, encoding, onEncoding) {
  node.replaceChildren(
    el("p", {}, el("strong", { textContent: summary(preview) }), ` ${target(preview)}`),
    el("ul", { className: "preview-facts" }, ...facts(preview).map((fact) => el("li", {}, fact))),
  );
  if (preview.problems.length) node.append(problemList(preview, onEncoding));
  else if (encoding !== "utf-8") {
    node.append(
      el(
        "p",
        {},
        `Text files are read as ${encoding}. `,
        button("Read as UTF-8", () => onEncoding("utf-8")),
      ),
    );
  }
}

/** Show an archive, whose content is not known before the server unpacks it. */
export function drawArchive(node, { path, file }) {
  node.replaceChildren(
    el("p", {}, el("strong", { textContent: `${path}, ${bytes(file.size)}` })),
    el("p", { textContent: "The server unpacks and checks the archive. It is sent in one request." }),
  );
}

/** Show a message instead of a preview. */
export function drawMessage(node, text) {
  node.replaceChildren(el("p", { textContent: text }));
}

function summary({ videos, captions, transcripts, bytes: size }) {
  const texts = [count(captions, "caption"), transcripts && count(transcripts, "transcript")];
  return `${count(videos.length, "video")} with ${texts.filter(Boolean).join(" and ")}, ${bytes(size)}`;
}

function target({ domain, is_append: isAppend }) {
  if (isAppend) return domain ? `→ appended to “${domain}”, without training` : "→ appended";
  return domain ? `→ new domain “${domain}”` : "→ new domain";
}

function facts(preview) {
  const { tables, without_captions: bare, missing, skipped } = preview;
  const groups = Map.groupBy(skipped, ({ reason }) => reason);
  return [
    ...tables.map(tableFact),
    bare.length > 0 &&
      expandable(`${count(bare.length, "video")} without captions: indexed, but not learned from`, bare),
    missing.length > 0 &&
      expandable(
        `${count(missing.length, "row")} of the table without a file: left out`,
        missing.map(({ path, reason }) => `${path}: ${reason}`),
        "warn",
      ),
    ...[...groups].map(([reason, files]) =>
      expandable(
        `${count(files.length, "file")} not uploaded: ${reason}`,
        files.map(({ path }) => path),
      ),
    ),
  ].filter(Boolean);
}

function tableFact({ path, format: name, delimiter, encoding, videos }) {
  const format = delimiter ? `${name}, ${DELIMITERS[delimiter] ?? delimiter} between the cells` : name;
  return el(
    "span",
    {},
    "Captions from ",
    el("code", { textContent: path }),
    `: ${format}, ${encoding.toUpperCase()}, ${count(videos, "file")}`,
  );
}

/** Create a sentence with a list of paths, which is filled when it is opened. */
function expandable(text, lines, className = "") {
  const node = el("details", { className }, el("summary", { textContent: text }));
  node.addEventListener(
    "toggle",
    () =>
      node.append(el("ol", { className: "paths" }, ...lines.map((line) => el("li", { textContent: line })))),
    { once: true },
  );
  return node;
}

function problemList(preview, onEncoding) {
  const { problems, suggested_encoding: suggested } = preview;
  const items = problems.map(({ field, message, hint }) =>
    el("li", {}, el("code", { textContent: field }), ` ${message} ${hint}`),
  );
  const node = el("div", { className: "form-errors", role: "alert" }, el("ul", {}, ...items));
  if (suggested) node.append(button(`Read as Windows text (${suggested})`, () => onEncoding(suggested)));
  return node;
}
