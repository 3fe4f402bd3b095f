// The settings of the running daemon and the source of each; read when the panel is open.

import { fetchJson } from "./api.js";
import { byId, rows, setText, show } from "./dom.js";

/** The panel of the settings. */
export class SettingsPanel {
  #values = [];
  /** The index of each GPU, by its UUID. */
  indices = new Map();

  constructor() {
    this.panel = byId("settings");
    this.search = byId("settings-search");
    this.all = byId("settings-all");
    this.panel.addEventListener("toggle", () => this.load());
    this.search.addEventListener("input", () => this.#show());
    this.all.addEventListener("change", () => this.#show());
  }

  /** Read the settings if the panel is open. */
  async load() {
    if (!this.panel.open) return;
    try {
      this.#values = (await fetchJson("GET", "/v1/settings")).settings;
      setText(byId("settings-problem"), "");
    } catch (error) {
      setText(byId("settings-problem"), `The settings cannot be read: ${error.message}`);
    }
    this.#show();
  }

  #show() {
    const wanted = this.search.value.trim().toLowerCase();
    const shown = this.#values.filter(({ key, gpu, text, source }) => (this.all.checked || wanted || source !== "default") && `${key} ${gpu ?? ""} ${text} ${source}`.toLowerCase().includes(wanted));
    rows(byId("settings-table"), shown.map(({ key, gpu, text, source }) => [
      { text: key, name: "command" },
      gpu ? `GPU ${this.indices.get(gpu) ?? gpu}` : "",
      { text: text === "" ? "not set" : text, name: "command" },
      { text: source, name: source === "default" ? "quiet" : "" },
    ]));
    show(byId("settings-table"), shown.length > 0);
    setText(byId("settings-count"), `${shown.length} of ${this.#values.length} settings`);
  }
}
