// Workers that run the command. Each has its kind of work; of requests that come faster than they
// are answered, only the latest is done.

async function unpack(base64) {
  const bytes = Uint8Array.from(atob(base64), (character) => character.charCodeAt(0));
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream('gzip'));
  return new Response(stream).arrayBuffer();
}

const REQUEST_LIMIT_MS = 5000; // a request that has run for longer is ended when a newer one comes

class Engine {
  constructor(module, source) {
    this.module = module;
    this.source = source;
    this.next = 0;
    this.busy = null; // {id, resolve, reject}
    this.waiting = null; // the latest request behind it
    this.start();
  }

  start() {
    this.worker = new Worker(this.source);
    this.worker.onmessage = (event) => this.finish(event.data);
    this.worker.onerror = (event) => this.finish({ id: this.busy && this.busy.id,
      failure: { status: -1, message: `the worker failed: ${event.message}`, hint: 'reload the page' } });
    this.worker.postMessage({ module: this.module });
  }

  // Resolves to {result} or {failure}, or to null when a later request came instead.
  ask(kind, request) {
    return new Promise((resolve) => {
      const entry = { id: this.next++, kind, request, resolve };
      if (this.busy && performance.now() - this.since > REQUEST_LIMIT_MS) this.stop();
      if (this.busy) {
        if (this.waiting) this.waiting.resolve(null);
        this.waiting = entry;
      } else {
        this.send(entry);
      }
    });
  }

  send(entry) {
    this.busy = entry;
    this.since = performance.now();
    this.worker.postMessage({ id: entry.id, kind: entry.kind, request: entry.request });
  }

  finish(answer) {
    const entry = this.busy;
    if (!entry || answer.id !== entry.id) return;
    this.busy = null;
    if (this.waiting) {
      const waiting = this.waiting;
      this.waiting = null;
      this.send(waiting);
    }
    entry.resolve(answer);
  }

  // Ends what is being done; nobody gets an answer.
  stop() {
    this.worker.terminate();
    for (const entry of [this.busy, this.waiting]) if (entry) entry.resolve(null);
    this.busy = this.waiting = null;
    this.start();
  }
}

async function startEngines() {
  const module = await WebAssembly.compile(await unpack(byId('weft-module').textContent.trim()));
  const source = URL.createObjectURL(new Blob([byId('weft-worker').textContent], { type: 'text/javascript' }));
  return { explore: new Engine(module, source), compare: new Engine(module, source),
    plan: new Engine(module, source), check: new Engine(module, source), tools: new Engine(module, source) };
}
