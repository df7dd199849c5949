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

/** Name of the file of a video without its folders. */
export const shortFileName = (uri) => pathParts(uri).at(-1);

/**
 * Title of a video: its first caption, or its file with the folder that contains it.
 *
 * Cameras give the files of every folder the same names, so the name alone would not tell two videos apart.
 */
export const videoTitle = ({ captions, uri }) => captions[0] || pathParts(uri).slice(-2).join("/");

/** Folders and name of a file, without its host, bucket or upload. */
function pathParts(uri) {
  const path = uri.replace(/^\w+:\/\/[^/]*\//, "");
  if (!/^https?:/i.test(uri)) return path.split("/");
  const parts = path.replace(/\?.*/s, "").split("/"); // the query of a URL is not shown in any case
  try {
    return parts.map(decodeURIComponent);
  } catch {
    return parts;
  }
}

/** Reason of a rejection, which may name the file of another video. */
export const rejectionReason = (reason) => reason.replaceAll(/upload:\/\/[^/\s]+\//g, "");
