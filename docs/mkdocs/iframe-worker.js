// Search in files that are opened without a server: browsers refuse a worker there, so its script
// runs in a hidden frame. The theme looks for a class of this name.
if (location.protocol === "file:") {
  window.Worker = window.IFrameWorker = class extends EventTarget {
    constructor(url) {
      super();
      this.waiting = [];
      const frame = document.createElement("iframe");
      frame.hidden = true;
      document.body.append(frame);
      const script = frame.contentDocument.createElement("script");
      script.src = url;
      // In a frame as in a worker, `postMessage` of the script is for its parent.
      this.frame = frame.contentWindow;
      const send = this.frame.postMessage.bind(this.frame);
      this.frame.postMessage = (data) => this.dispatchEvent(new MessageEvent("message", { data }));
      script.onload = () => {
        this.postMessage = (data) => send(data, "*");
        this.waiting.forEach(this.postMessage);
      };
      frame.contentDocument.body.append(script);
    }

    postMessage(data) {
      this.waiting.push(data);
    }
  };
}
