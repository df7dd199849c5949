// Texts of the service, whose hints name requests of the HTTP API, in the words of the pages.

// The longest requests come first, because a shorter one is the beginning of others.
const REQUESTS = [
  [/POST \/tasks\/\S+?\/retry(?: with method \w+(?: and \w+=\S+?)*)?(?=[.,;:]?(?:\s|$))/g, "press “Retry”"],
  [/POST \/tasks\/\S+?\/relearn\b/g, "“Learn as a new domain”"],
  [/POST \/tasks\/\S+?\/videos\b/g, "“Append videos”"],
  [/POST \/tasks\b/g, "“Add videos”"],
  [/GET \/tasks\/\S+?\/rejected lists the reason of each video\. ?/g, ""], // the pages show them
  [/GET \/tasks\/\S+?\/rejected\b/g, "the list of rejected videos"],
  [/GET \/tasks\/[^\s/,.;]+/g, "the page of the domain"],
  [/DELETE \/tasks\/[^\s/,.;]+/g, "press “Delete”"],
  [/DELETE \/syncs\/[^\s/,.;]+/g, "“Remove”"],
  [/POST \/releases\/[^\s/]+\/serve\b/g, "“Serve”"],
  [/GET \/releases\b/g, "the list of releases"],
  [/GET \/syncs\b/g, "the list of followed folders"],
];

/** Replace requests such as `POST /tasks/tsk_1/retry` with the control of the page that sends them. */
export const pageText = (text) =>
  REQUESTS.reduce((replaced, [request, words]) => replaced.replace(request, words), text ?? "");

/** Name of the file of a video as its owner knows it: an uploaded file without the folder of its task. */
export const fileName = (uri) => uri.replace(/^upload:\/\/[^/]+\//, "");

/** Last part of the URI of a video. */
export function shortFileName(uri) {
  const name = uri.slice(uri.lastIndexOf("/") + 1);
  if (!/^https?:/i.test(uri)) return name;
  const path = name.replace(/\?.*/s, ""); // the query of a URL is not shown in any case
  try {
    return decodeURIComponent(path);
  } catch {
    return path;
  }
}

/** Title of a video: its first caption, or the name of its file. */
export const videoTitle = ({ captions, uri }) => captions[0] || shortFileName(uri);

/** Reason of a rejection, which may name the file of another video. */
export const rejectionReason = (reason) => reason.replaceAll(/upload:\/\/[^/\s]+\//g, "");
