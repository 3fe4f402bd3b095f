// Follow the daemon over one stream, with growing pauses between reconnects.

import { Problem, request } from "./api.js";

/** The pauses before the next tries, in seconds; the last one holds for all that follow. */
const PAUSES = [0.5, 1, 2, 4, 8];
/** The daemon says something every second; so long a silence, in seconds, is no daemon. */
const SILENCE = 5;

/** Yield [name, id, data] of each server-sent event of a response. */
async function* events(response, heard) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let left = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    heard();
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

/** One stream; `on` has `event(name, data)`, `lost(why, seconds)` and `refused()`. */
export class Stream {
  #on;
  #run = null;
  #tries = 0;
  #last = 0;
  #timer = 0;

  constructor(on) {
    this.#on = on;
  }

  /** Follow from now on, at once. */
  start() {
    this.stop();
    const run = new AbortController();
    this.#run = run;
    this.#follow(run).then(() => "The daemon has ended the connection.", (error) => error).then((why) => {
      if (this.#run !== run) return; // stopped, or another one has begun
      run.abort();
      if (why instanceof Problem && why.status === 401) this.#on.refused();
      else this.#again(why instanceof Problem ? why.message : "");
    });
  }

  /** Follow no more. */
  stop() {
    clearTimeout(this.#timer);
    this.#run?.abort();
    this.#run = null;
  }

  /** Forget which events were seen: another daemon restarts the count. */
  forget() {
    this.#last = 0;
  }

  #again(why) {
    const pause = PAUSES[Math.min(this.#tries, PAUSES.length - 1)];
    this.#tries += 1;
    this.#timer = setTimeout(() => this.start(), pause * 1000);
    this.#on.lost(why, pause);
  }

  async #follow(run) {
    let heard = performance.now();
    const silence = setInterval(() => {
      if (performance.now() - heard > SILENCE * 1000) run.abort();
    }, 1000);
    run.signal.addEventListener("abort", () => clearInterval(silence));
    const path = `/v1/watch?since=${this.#last}`;
    const response = await request("GET", path, { signal: run.signal });
    for await (const [name, id, data] of events(response, () => (heard = performance.now()))) {
      if (this.#run !== run) return;
      this.#tries = 0;
      if (name === "lost" && this.#last === 0) continue; // events before the first are not lost
      if (id) this.#last = Number(id);
      this.#on.event(name, data);
    }
  }
}
