// The page of `weft show`, in a frame: one code base draws every timeline. The first page that the
// command writes fills the frame; later models replace the ones in it.

class Timeline {
  constructor(frame) {
    this.frame = frame;
    this.state = 'empty'; // loading, ready
    this.models = null; // that came while it was loading
  }

  // Whether the first page is still to come.
  isEmpty() {
    return this.state === 'empty';
  }

  handle() {
    return this.frame.contentWindow && this.frame.contentWindow.weftTimeline;
  }

  // No models: there is none to show, and what was shown is of other settings.
  show(models, page) {
    this.frame.hidden = !models;
    if (!models) return;
    if (this.state === 'ready') {
      this.handle().replace(models);
      return;
    }
    this.models = models;
    if (this.state === 'empty') {
      this.state = 'loading';
      this.frame.addEventListener('load', () => this.loaded(), { once: true });
      this.frame.srcdoc = page;
    }
  }

  loaded() {
    this.state = 'ready';
    this.handle().embed();
    this.setTheme();
    this.handle().replace(this.models);
  }

  setTheme() {
    if (this.state === 'ready') this.handle().setTheme(isDark());
  }
}

const timelines = {};

function timelineIn(id) {
  if (!timelines[id]) timelines[id] = new Timeline(byId(id));
  return timelines[id];
}
