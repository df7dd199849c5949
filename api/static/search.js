import { api, dot, el, tone } from "./common.js";

const $ = (id) => document.getElementById(id);
const parameters = new URLSearchParams(location.search);
let task = parameters.get("task") || "";
let running = null;

$("q").value = parameters.get("q") || "";
$("mode").value = parameters.get("mode") || "";

addEventListener("keydown", (event) => {
  if (event.key === "/" && !/INPUT|TEXTAREA|SELECT/.test(document.activeElement.tagName)) {
    event.preventDefault();
    $("q").focus();
    $("q").select();
  }
});
$("search").addEventListener("submit", (event) => { event.preventDefault(); search(); });
$("mode").addEventListener("change", () => search());

await domains();
if ($("q").value) search();

async function domains() {
  const tasks = await api("/tasks").catch(() => []);
  const learned = tasks.filter((entry) => entry.state === "ready");
  learned.forEach((entry) => tone(entry.name));
  if (!learned.length) {
    const waiting = tasks.find((entry) => !["ready", "failed", "cancelled"].includes(entry.state));
    message(
      waiting ? `“${waiting.name}” is being learned.` : "Nothing has been learned yet.",
      waiting ? "Search opens as soon as it is laid down; the admin page shows how far it is."
        : "Send a domain of videos with POST /tasks, or add one on the admin page.",
      el("a", { href: "/admin", textContent: "Open the admin page" }),
    );
    return;
  }
  $("domains").replaceChildren(
    chip("", "All domains"),
    ...learned.map((entry) => chip(entry.name, entry.name)),
  );
  examples(learned);
}

function chip(value, text) {
  const button = el("button", { type: "button", role: "radio", "aria-checked": String(task === value), "data-task": value },
    value ? dot(value) : null, text);
  button.addEventListener("click", () => {
    task = value;
    for (const other of $("domains").children) other.setAttribute("aria-checked", String(other.dataset.task === task));
    if ($("q").value) search();
  });
  return button;
}

/** Captions of videos that are really there make the best first queries. */
async function examples(learned) {
  const found = [];
  for (const entry of learned.slice(-3)) {
    const answer = await api(`/search?${new URLSearchParams({ q: entry.name, task: entry.name, k: 2 })}`).catch(() => null);
    const caption = answer?.results.find((result) => result.captions.length)?.captions[0];
    if (caption) found.push(caption);
  }
  $("examples").replaceChildren(...found.map((caption) => {
    const button = el("button", { type: "button", textContent: caption });
    button.addEventListener("click", () => { $("q").value = caption; search(); });
    return button;
  }));
}

async function search() {
  const q = $("q").value;
  const query = new URLSearchParams({ q, k: 24 });
  if (task) query.set("task", task);
  if ($("mode").value) query.set("mode", $("mode").value);
  history.replaceState(null, "", `/?${query}`);
  running?.abort();
  const mine = (running = new AbortController());
  $("answer").setAttribute("aria-busy", "true");
  try {
    show(await api(`/search?${query}`, { signal: mine.signal }));
  } catch (error) {
    if (error.name === "AbortError") return;
    $("facts").hidden = true;
    $("results").replaceChildren();
    const wrong = error.problem?.errors?.[0];
    message(wrong ? wrong.message : error.message, wrong ? wrong.mend : "");
  } finally {
    if (mine === running) $("answer").setAttribute("aria-busy", "false");
  }
}

function show(answer) {
  const { routing, timing_ms: time, results } = answer;
  $("facts").hidden = false;
  $("routing").replaceChildren(
    el("div", { className: "strip", "aria-hidden": "true" }, ...routing.map((entry) =>
      el("span", { style: `--tone:${tone(entry.task)};flex:${entry.weight}` }))),
    el("div", { className: "legend" }, ...routing.slice(0, 6).map((entry) =>
      el("span", {}, dot(entry.task), `${entry.task} ${Math.round(100 * entry.weight)} %`))),
  );
  const parts = ["encode", "route", "search", "merge"].map((name) => `${name} ${time[name].toFixed(1)}`).join(" · ");
  $("timing").textContent = `${results.length} results in ${time.total.toFixed(1)} ms (${parts}) · release ${answer.release.slice(0, 8)} · ${answer.mode} queries`;
  $("results").replaceChildren(...results.map(card));
  const degraded = Object.entries(answer.degraded);
  if (degraded.length) message(`${degraded.map(([name]) => name).join(", ")} could not be searched.`, degraded[0][1]);
  else if (!results.length) message("No video was found.", "Try other words, or search all domains.");
  else $("message").hidden = true;
}

function card(result) {
  const frame = el("button", { type: "button", className: "frame", "aria-label": `Play ${result.captions[0] || result.video_id}` },
    el("img", { src: result.thumbnail_url, alt: "", loading: "lazy", width: 320, height: 240 }),
    el("span", { className: "rank", textContent: result.rank }));
  const play = () => {
    let video = frame.querySelector("video");
    if (!video) {
      video = el("video", { src: result.stream_url, muted: true, loop: true, playsInline: true, preload: "metadata" });
      video.addEventListener("playing", () => frame.classList.add("playing"));
      frame.insertBefore(video, frame.lastChild);
    }
    video.play().catch(() => {});
  };
  const stop = () => { frame.querySelector("video")?.pause(); frame.classList.remove("playing"); };
  frame.addEventListener("pointerenter", (event) => { if (event.pointerType === "mouse") play(); });
  frame.addEventListener("pointerleave", (event) => { if (event.pointerType === "mouse") stop(); });
  frame.addEventListener("click", () => (frame.classList.contains("playing") ? stop() : play()));
  frame.addEventListener("blur", stop);
  return el("li", { className: "result card", "data-testid": "result", "data-video": result.video_id }, frame,
    el("div", { className: "about" },
      el("p", { className: "caption", textContent: result.captions[0] || result.video_id, title: result.captions.join("\n") }),
      el("div", { className: "meta" },
        el("span", { className: "badge" }, dot(result.task), result.task),
        el("span", { title: "cosine similarity", textContent: result.score.toFixed(3) }))));
}

function message(title, text, ...more) {
  $("message").replaceChildren(el("strong", { textContent: title }), text, " ", ...more);
  $("message").hidden = false;
}
