// Names of domains, videos and files on the pages.

/** A task's domain name; the name of an append or upgrade adds its own ID to it. */
export const domainName = (task) =>
  task.into ? task.name.replace(/ \((append|upgrade) [^)]*\)$/, "") : task.name;

/** A video's file as its owner knows it: an upload without its task's folder. */
export const fileName = (uri) => uri.replace(/^upload:\/\/[^/]+\//, "");

/** A video's file name without folders. */
export const shortFileName = (uri) => pathParts(uri).at(-1);

/**
 * A video's title: its first caption, or its file name with one folder.
 *
 * Cameras reuse file names in every folder, so the name alone would not tell two videos apart.
 */
export const videoTitle = ({ captions, uri }) => captions[0] || pathParts(uri).slice(-2).join("/");

/** Split a URI into folders and file name, without host, bucket or upload. */
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

/** Reason for a rejection, which may name another video's file. */
export const rejectionReason = (reason) => reason.replaceAll(/upload:\/\/[^/\s]+\//g, "");

/** How far the speech and the text in a domain's videos are read. */
export const readingText = ({ done, total, active }) =>
  `${active ? "Reading" : "Waiting to read"} speech and text in the picture: ${done.toLocaleString()} of ${total.toLocaleString()} videos`;
