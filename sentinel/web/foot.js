// The foot of the page: where the documents are.

import { byId, make } from "./dom.js";
import { LINKS } from "./links.js";

/** Link to the project's documents; without an address, name those on the host. */
export function showLinks() {
  const links = LINKS.map(([name, url]) => Object.assign(make("a", "", name), { href: url, target: "_blank", rel: "noreferrer noopener" }));
  if (links.length) byId("about").replaceChildren("Documents:", ...links);
  else byId("about").replaceChildren(make("span", "", "Documents, on the host: ", make("code", "", "man sentinel"), ", ", make("code", "", "sentinel --help")));
}
