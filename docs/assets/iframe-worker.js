/* Search in pages opened as files: browsers refuse workers there, and so a hidden frame does a worker's work.
   The theme looks for the name IFrameWorker, and for the frame's own script element. */
(() => {
  if (location.protocol !== "file:") return;

  const load = (frame, address) => new Promise((resolve, reject) => {
    const script = frame.document.createElement("script");
    script.src = address;
    script.onload = resolve;
    script.onerror = () => reject(new Error(`can't load ${address}`));
    frame.document.body.append(script);
  });

  class IFrameWorker extends EventTarget {
    constructor(address) {
      super();
      this.element = document.createElement("iframe");
      this.element.hidden = true;
      document.body.append(this.element);
      this.inside = this.element.contentWindow;
      this.inside.document.open();
      this.inside.document.write("<!doctype html><body></body>");
      this.inside.document.close();
      this.inside.postMessage = data => this.tell("message", { data });
      this.inside.importScripts = async (...others) => {
        for (const other of others) await load(this.inside, other);
      };
      this.ready = load(this.inside, new URL(address, location.href).href);
      this.ready.catch(error => this.tell("error", { data: error.message }));
    }

    tell(kind, details) {
      const event = new MessageEvent(kind, details);
      this.dispatchEvent(event);
      if (typeof this[`on${kind}`] === "function") this[`on${kind}`](event);
    }

    postMessage(data) {
      this.ready.then(() => this.inside.dispatchEvent(new this.inside.MessageEvent("message", { data })), () => {});
    }

    terminate() {
      this.element.remove();
    }
  }

  window.IFrameWorker = window.Worker = IFrameWorker;
})();
