// The command weft as a function: words and files in; status, output, messages and files out.
// Every call is a new instance of the module, as every command is a new process, so a call that
// fails leaves nothing behind. These are the system calls of WASI that the module imports.

const WASI = { SUCCESS: 0, BADF: 8, INVAL: 28, ISDIR: 31, NOENT: 44, SPIPE: 70 };
const FILE_TYPE = { CHARACTER: 2, FOLDER: 3, REGULAR: 4 };
const FOLDER_FD = 3;
const CREATE = 1;
const TRUNCATE = 8;

class Exit extends Error {
  constructor(status) {
    super(`exit ${status}`);
    this.status = status;
  }
}

// Bytes that arrive in pieces.
class Sink {
  constructor() {
    this.bytes = new Uint8Array(4096);
    this.size = 0;
  }

  add(piece) {
    if (this.size + piece.length > this.bytes.length) {
      const larger = new Uint8Array(Math.max(2 * this.bytes.length, this.size + piece.length));
      larger.set(this.bytes.subarray(0, this.size));
      this.bytes = larger;
    }
    this.bytes.set(piece, this.size);
    this.size += piece.length;
  }

  all() {
    return this.bytes.subarray(0, this.size);
  }
}

class Process {
  constructor(words, files, onMessage) {
    const encoder = new TextEncoder();
    this.words = words.map((word) => encoder.encode(`${word}\0`));
    this.files = new Map(Object.entries(files).map(([name, data]) =>
      [name, typeof data === 'string' ? encoder.encode(data) : data]));
    this.output = new Sink();
    this.messages = new Sink();
    this.onMessage = onMessage;
    this.open = new Map(); // descriptor: {name, at, sink}
    this.nextFd = FOLDER_FD + 1;
  }

  view() {
    return new DataView(this.memory.buffer);
  }

  bytes(at, size) {
    return new Uint8Array(this.memory.buffer, at, size);
  }

  // ---- Arguments and time ----

  args_sizes_get(countAt, sizeAt) {
    this.view().setUint32(countAt, this.words.length, true);
    this.view().setUint32(sizeAt, this.words.reduce((sum, word) => sum + word.length, 0), true);
    return WASI.SUCCESS;
  }

  args_get(pointersAt, textAt) {
    this.words.forEach((word, i) => {
      this.view().setUint32(pointersAt + 4 * i, textAt, true);
      this.bytes(textAt, word.length).set(word);
      textAt += word.length;
    });
    return WASI.SUCCESS;
  }

  clock_time_get(clock, precision, timeAt) {
    this.view().setBigUint64(timeAt, BigInt(Math.round(performance.now() * 1e6)), true);
    return WASI.SUCCESS;
  }

  proc_exit(status) {
    throw new Exit(status);
  }

  // ---- Files: one folder, with the files of this call ----

  fd_prestat_get(fd, at) {
    if (fd !== FOLDER_FD) return WASI.BADF;
    this.view().setUint32(at, 0, true); // a folder
    this.view().setUint32(at + 4, 1, true); // the length of its name
    return WASI.SUCCESS;
  }

  fd_prestat_dir_name(fd, at) {
    this.bytes(at, 1).set([46]); // "."
    return WASI.SUCCESS;
  }

  nameAt(at, size) {
    return new TextDecoder().decode(this.bytes(at, size)).replace(/^\.\//, '');
  }

  path_open(fd, lookup, pathAt, pathSize, how, rights, inherited, flags, fdAt) {
    const name = this.nameAt(pathAt, pathSize);
    if (name === '.' || name === '') return WASI.ISDIR;
    if (!this.files.has(name) && !(how & CREATE)) return WASI.NOENT;
    const file = { name, at: 0, sink: null };
    if (how & TRUNCATE) {
      file.sink = new Sink();
      this.files.set(name, file.sink.all());
    }
    this.open.set(this.nextFd, file);
    this.view().setUint32(fdAt, this.nextFd++, true);
    return WASI.SUCCESS;
  }

  fd_close(fd) {
    const file = this.open.get(fd);
    if (file && file.sink) this.files.set(file.name, file.sink.all());
    return this.open.delete(fd) ? WASI.SUCCESS : WASI.BADF;
  }

  typeOf(fd) {
    return fd === FOLDER_FD ? FILE_TYPE.FOLDER : this.open.has(fd) ? FILE_TYPE.REGULAR : FILE_TYPE.CHARACTER;
  }

  fd_fdstat_get(fd, at) {
    this.bytes(at, 24).fill(0);
    this.view().setUint8(at, this.typeOf(fd));
    this.view().setBigUint64(at + 8, 0xffffffffn, true); // may do everything
    this.view().setBigUint64(at + 16, 0xffffffffn, true);
    return WASI.SUCCESS;
  }

  fd_fdstat_set_flags() {
    return WASI.SUCCESS;
  }

  // Device 0; the number of a file is its place among them, so that two have two.
  putStatus(at, type, name) {
    this.bytes(at, 64).fill(0);
    this.view().setUint8(at + 16, type);
    if (!this.files.has(name)) return;
    this.view().setBigUint64(at + 8, BigInt([...this.files.keys()].indexOf(name) + 1), true);
    this.view().setBigUint64(at + 32, BigInt(this.files.get(name).length), true);
  }

  fd_filestat_get(fd, at) {
    const file = this.open.get(fd);
    this.putStatus(at, this.typeOf(fd), file && file.name);
    return WASI.SUCCESS;
  }

  path_filestat_get(fd, flags, pathAt, pathSize, at) {
    const name = this.nameAt(pathAt, pathSize);
    const isFolder = name === '.' || name === '';
    if (!isFolder && !this.files.has(name)) return WASI.NOENT;
    this.putStatus(at, isFolder ? FILE_TYPE.FOLDER : FILE_TYPE.REGULAR, name);
    return WASI.SUCCESS;
  }

  fd_seek() {
    return WASI.SPIPE; // nothing is read twice
  }

  // The pieces of memory that a read or a write is about.
  pieces(at, count) {
    return Array.from({ length: count }, (unused, i) =>
      this.bytes(this.view().getUint32(at + 8 * i, true), this.view().getUint32(at + 8 * i + 4, true)));
  }

  fd_read(fd, piecesAt, count, sizeAt) {
    const file = this.open.get(fd);
    let size = 0;
    for (const piece of file ? this.pieces(piecesAt, count) : []) {
      const part = this.files.get(file.name).subarray(file.at, file.at + piece.length);
      piece.set(part);
      file.at += part.length;
      size += part.length;
    }
    this.view().setUint32(sizeAt, size, true);
    return WASI.SUCCESS;
  }

  fd_write(fd, piecesAt, count, sizeAt) {
    const file = this.open.get(fd);
    const sink = fd === 1 ? this.output : fd === 2 ? this.messages : file && file.sink;
    if (!sink) return WASI.BADF;
    let size = 0;
    for (const piece of this.pieces(piecesAt, count)) {
      sink.add(piece);
      size += piece.length;
      if (fd === 2 && this.onMessage) this.onMessage(new TextDecoder().decode(piece));
    }
    this.view().setUint32(sizeAt, size, true);
    return WASI.SUCCESS;
  }

  run(module) {
    const names = WebAssembly.Module.imports(module).map((entry) => entry.name);
    const missing = names.filter((name) => typeof this[name] !== 'function');
    if (missing.length > 0) throw new Error(`the module calls what this file has not: ${missing}`);
    const imports = Object.fromEntries(names.map((name) => [name, (...values) => this[name](...values)]));
    const { exports } = new WebAssembly.Instance(module, { wasi_snapshot_preview1: imports });
    this.memory = exports.memory;
    try {
      exports._start();
      return 0;
    } catch (error) {
      if (error instanceof Exit) return error.status;
      throw error;
    }
  }
}

// runWeft(module, ['gen', '1F1B', '-p', '4', '-m', '8'], {}): files are texts or bytes by name; of
// the result, `output` and `messages` are texts and `files` has bytes. Throws when the module traps.
function runWeft(module, words, files, onMessage) {
  const process = new Process(['weft', ...words], files || {}, onMessage);
  const status = process.run(module);
  const decoder = new TextDecoder();
  return {
    status,
    output: decoder.decode(process.output.all()),
    messages: decoder.decode(process.messages.all()),
    files: Object.fromEntries(process.files),
  };
}
