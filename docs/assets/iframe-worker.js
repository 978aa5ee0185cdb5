// Lets the search run when the site is opened from a file.
//
// Browsers start no worker from a file:// page. There, this script replaces Worker by a class that
// runs the same script in a hidden frame, and passes messages in both directions. On a server it
// changes nothing.
if (location.protocol === "file:") {
  window.Worker = class FrameWorker extends EventTarget {
    constructor(url) {
      super()
      this.onmessage = null
      this.frame = document.createElement("iframe")
      this.frame.hidden = true
      this.frame.srcdoc = "<!doctype html><body></body>"
      this.started = new Promise(resolve => this.frame.onload = resolve).then(() => {
        const inner = this.frame.contentWindow
        inner.postMessage = data => this.receive(data)
        inner.importScripts = (...urls) => urls.reduce(
          (earlier, each) => earlier.then(() => this.load(new URL(each, url))), Promise.resolve())
        return this.load(url)
      })
      document.documentElement.appendChild(this.frame)
    }

    load(url) {
      return new Promise((resolve, reject) => {
        const script = this.frame.contentDocument.createElement("script")
        script.src = url
        script.onload = resolve
        script.onerror = () => reject(new Error(`${url} cannot be read`))
        this.frame.contentDocument.body.appendChild(script)
      })
    }

    postMessage(data) {
      this.started.then(() =>
        this.frame.contentWindow.dispatchEvent(new MessageEvent("message", { data })))
    }

    receive(data) {
      const event = new MessageEvent("message", { data })
      if (this.onmessage) this.onmessage(event)
      this.dispatchEvent(event)
    }

    terminate() {
      this.frame.remove()
    }
  }
}
