// Requests to the daemon, with the token.

import { token } from "./token.js";

/** A failed request; `code` is for programs, `message` for people. */
export class Problem extends Error {
  constructor(status, code, detail) {
    super(detail);
    this.status = status;
    this.code = code;
  }
}

/** Send a request; throw a Problem if it fails. */
export async function request(method, path, { body, signal } = {}) {
  const headers = { Authorization: `Bearer ${token()}` };
  if (body !== undefined) headers["Content-Type"] = "application/json";
  const sent = body === undefined ? undefined : JSON.stringify(body);
  const response = await fetch(path, { method, headers, body: sent, signal, cache: "no-store" });
  if (response.ok) return response;
  const problem = await response.json().catch(() => ({}));
  throw new Problem(response.status, problem.code ?? "", problem.detail ?? response.statusText);
}

/** Send a request, and parse its response. */
export async function fetchJson(method, path, options) {
  return (await request(method, path, options)).json();
}
