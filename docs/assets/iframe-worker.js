// Search on a site that is opened from a disk: browsers refuse a Worker there, so its script runs in a hidden frame.
// The name tells the offline plugin of mkdocs-material that a stand-in is present; its own would come from the network.
if (location.protocol === "file:") {
  window.Worker = class extends EventTarget {
    constructor(url) {
      super();
      const frame = document.createElement("iframe");
      frame.hidden = true;
      this.loaded = new Promise((resolve) => (frame.onload = resolve));
      window.llmPerfOptAnswer = (data) => this.dispatchEvent(new MessageEvent("message", { data }));
      frame.srcdoc =
        "<script>postMessage = (data) => parent.llmPerfOptAnswer(data)</" + `script><script src="${url}"></` + "script>";
      document.documentElement.append(frame);
      this.frame = frame;
    }

    async postMessage(data) {
      await this.loaded;
      this.frame.contentWindow.dispatchEvent(new MessageEvent("message", { data }));
    }

    terminate() {
      this.frame.remove();
    }
  };
}
