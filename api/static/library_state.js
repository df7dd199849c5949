// Load the library's state on the pages of domains and videos, so that domains have the library page's colors.

import { api } from "./api_client.js";
import { colorFirstDomains } from "./domain_layers.js";

/**
 * Assign the colors of the first domains; without a response, domains get colors in order of appearance.
 *
 * @returns the earlier release that is served instead of the newest, or null
 */
export async function loadLibraryState() {
  const status = await api("/library").catch(() => null);
  if (status) colorFirstDomains(status);
  return status?.pinned ?? null;
}
