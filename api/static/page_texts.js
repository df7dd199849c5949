// Names of videos and files on the pages.

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
