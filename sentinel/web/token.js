// The token: from the fragment of the address, which browsers do not send, or entered; kept until the tab closes.

const NAME = "sentinel-token";
let memory = ""; // for browsers without storage

/** Read the token; empty if there is none. */
export function token() {
  try { return sessionStorage.getItem(NAME) ?? memory; } catch { return memory; }
}

/** Store the token; an empty one deletes it. */
export function keep(text) {
  memory = text;
  try {
    if (text) sessionStorage.setItem(NAME, text);
    else sessionStorage.removeItem(NAME);
  } catch { /* in memory only */ }
}

/** Move the token from the address bar into the storage; return whether there was one. */
export function take() {
  const found = new URLSearchParams(location.hash.slice(1)).get("token");
  if (found === null) return false;
  keep(found.trim());
  history.replaceState(null, "", location.pathname + location.search);
  return Boolean(found.trim());
}
