// Colors of domains on pages that show few of them: they are those of the library page.

import { api } from "./api_client.js";
import { colorFirstDomains } from "./domain_layers.js";

/** Assign the colors of the first domains; without an answer, domains get them in the order of their appearance. */
export async function loadDomainColors() {
  const status = await api("/library").catch(() => null);
  if (status) colorFirstDomains(status);
}
