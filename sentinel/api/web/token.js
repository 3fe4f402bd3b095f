// The token: from the address's fragment, which no server sees, or typed; kept until the tab closes.

const NAME = "sentinel-token";
let memory = ""; // where a browser keeps nothing

/** Return the token, or nothing. */
export function token() {
  try { return sessionStorage.getItem(NAME) ?? memory; } catch { return memory; }
}

/** Keep a token, or forget it. */
export function keep(text) {
  memory = text;
  try {
    if (text) sessionStorage.setItem(NAME, text);
    else sessionStorage.removeItem(NAME);
  } catch { /* kept in memory */ }
}

/** Take a token out of the address bar, so that it is neither read there nor sent on. */
export function take() {
  const found = new URLSearchParams(location.hash.slice(1)).get("token");
  if (found === null) return false;
  keep(found.trim());
  history.replaceState(null, "", location.pathname + location.search);
  return Boolean(found.trim());
}
