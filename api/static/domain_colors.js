// Colors of domains on pages that show few of them: they are those of the library page, in the order of learning.

import { api } from "./api_client.js";
import { colorNumber } from "./domain_layers.js";

/** Assign the colors of all domains; without an answer, domains get them in the order of their appearance. */
export async function loadDomainColors() {
  const domains = await api("/tasks?kind=domain&state=ready&sort=learned").catch(() => []);
  for (const { name } of domains) colorNumber(name);
}
