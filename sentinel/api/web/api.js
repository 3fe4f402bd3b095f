// Asks the daemon, with the token, and reads its errors.

import { token } from "./token.js";

/** Why the daemon did not do something; `code` is for programs, `message` for people. */
export class Problem extends Error {
  constructor(status, code, detail) {
    super(detail);
    this.status = status;
    this.code = code;
  }
}

/** Return the response to a request that went well. */
export async function request(method, path, { body, signal } = {}) {
  const headers = { Authorization: `Bearer ${token()}` };
  if (body !== undefined) headers["Content-Type"] = "application/json";
  const sent = body === undefined ? undefined : JSON.stringify(body);
  const response = await fetch(path, { method, headers, body: sent, signal, cache: "no-store" });
  if (response.ok) return response;
  const said = await response.json().catch(() => ({}));
  throw new Problem(response.status, said.code ?? "", said.detail ?? response.statusText);
}

/** Return what a request was answered with. */
export async function ask(method, path, options) {
  return (await request(method, path, options)).json();
}

/** Return what was read of a GPU in these seconds until now; nothing where no history is kept. */
export async function readings(uuid, seconds) {
  const query = new URLSearchParams({ gpu: uuid, since: `${seconds}s`, points: String(seconds) });
  return (await ask("GET", `/v1/history/readings?${query}`)).readings;
}
