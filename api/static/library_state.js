// The state of the library on pages of single domains and videos. Their colors are those of the library page.

import { api } from "./api_client.js";
import { colorFirstDomains } from "./domain_layers.js";

/**
 * Assign the colors of the first domains; without an answer, domains get them in the order of their appearance.
 *
 * @returns the release that is served in place of the newest one, or null
 */
export async function loadLibraryState() {
  const status = await api("/library").catch(() => null);
  if (status) colorFirstDomains(status);
  return status?.pinned ?? null;
}
