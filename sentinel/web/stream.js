// The stream of the daemon's state and events, reconnected with increasing pauses.

import { Problem, request } from "./api.js";

/** The pauses before reconnects; the last one repeats. */
const PAUSES_S = [0.5, 1, 2, 4, 8];
/** The time without data after which the connection is lost; the daemon sends every second. */
const MAX_SILENCE_S = 5;

/** Yield [name, id, data] of each server-sent event of a response. */
async function* events(response, onData) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let left = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    onData();
    const blocks = (left + value).split("\n\n");
    left = blocks.pop();
    for (const block of blocks) {
      const fields = {};
      for (const line of block.split("\n")) {
        const colon = line.indexOf(":");
        if (colon > 0) fields[line.slice(0, colon)] = line.slice(colon + 1).trim();
      }
      if (fields.data) yield [fields.event, fields.id, JSON.parse(fields.data)];
    }
  }
}

/** A stream; `on` has `event(name, data)`, `lost(reason, seconds)` and `unauthorized()`. */
export class Stream {
  #on;
  #run = null;
  #tries = 0;
  #last = 0;
  #timer = 0;

  constructor(on) {
    this.#on = on;
  }

  /** Connect now. */
  start() {
    this.stop();
    const run = new AbortController();
    this.#run = run;
    this.#follow(run).then(() => "The daemon closed the connection.", (error) => error).then((result) => {
      if (this.#run !== run) return; // stopped or restarted
      run.abort();
      if (result instanceof Problem && result.status === 401) this.#on.unauthorized();
      else this.#reconnect(result instanceof Problem ? result.message : "");
    });
  }

  /** Disconnect. */
  stop() {
    clearTimeout(this.#timer);
    this.#run?.abort();
    this.#run = null;
  }

  /** Reset the last event's number: another daemon starts again at 1. */
  reset() {
    this.#last = 0;
  }

  #reconnect(reason) {
    const pause = PAUSES_S[Math.min(this.#tries, PAUSES_S.length - 1)];
    this.#tries += 1;
    this.#timer = setTimeout(() => this.start(), pause * 1000);
    this.#on.lost(reason, pause);
  }

  async #follow(run) {
    let received = performance.now();
    const silence = setInterval(() => {
      if (performance.now() - received > MAX_SILENCE_S * 1000) run.abort();
    }, 1000);
    run.signal.addEventListener("abort", () => clearInterval(silence));
    const path = `/v1/watch?since=${this.#last}`;
    const response = await request("GET", path, { signal: run.signal });
    for await (const [name, id, data] of events(response, () => (received = performance.now()))) {
      if (this.#run !== run) return;
      this.#tries = 0;
      if (name === "lost" && this.#last === 0) continue; // events from before the page was opened
      if (id) this.#last = Number(id);
      this.#on.event(name, data);
    }
  }
}
