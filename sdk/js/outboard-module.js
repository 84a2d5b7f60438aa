'use strict';
// A module of Outboard in JavaScript: containers in, containers out (docs/reference/modules.md).
//
//     const outboard = require('outboard-module');
//     outboard.run((body, created) => body);
//
// It runs in a shell line, between pipes, and in a pipeline as exec(source="./module.js"), where descriptor 3 is
// a socket of control frames: hello, peer, flush, gap, done. A `Device` or an `Application` runs as
// exec:./device.js,frame=declared, a `Transport` as --transport exec:./carrier.js. No dependencies; Node 16 or newer, Linux.

const fs = require('fs');
const net = require('net');

const VERSION = 1;
const BODY_BYTES_MAX = 64 << 20;
const FRAME_BYTES_MAX = 1 << 20;

const CONTAINER_BYTES = 12;
const FRAME_BYTES = 13;
const [HELLO, PEER, FLUSH, DONE, ERROR, GAP, , , DROP] = [1, 2, 3, 4, 5, 6, 7, 8, 9];
const [NEUTRAL, SNAPSHOT, ABSENT, PRESENT] = [11, 12, 13, 14];
const BURST_BYTES = 256 << 10;
const SLICES_MAX = 1000;
const JOIN_BYTES = 4096;
const REASONS_MAX = 16;

/** An error that ends the module. */
class ModuleError extends Error {}
/** The input is no container, or no control frame. */
class ProtocolError extends ModuleError {}
/** The reader of the containers, or the runner, has gone. */
class Closed extends ModuleError {}
/** Thrown by a handler to drop the message on purpose; it is counted under this reason. */
class Drop extends Error {
  constructor(reason) {
    // It is no fault, so the time for a stack trace would be wasted.
    const { stackTraceLimit } = Error;
    Error.stackTraceLimit = 0;
    super(reason);
    Error.stackTraceLimit = stackTraceLimit;
  }
}

/**
 * The handlers of a module; only `message` is required. They return messages: nothing, a body (Buffer, Uint8Array or
 * string), `{body, created}`, or an array of these. A message without a time of its own gets that of the handled
 * message. Handlers are synchronous.
 */
class Module {
  role = 'source'; // or 'sink'
  format = 'bytes';
  options = {}; // names and values, as the user wrote them

  /** `role`, `format` and `options` are known. A shell line keeps the defaults. */
  start() {}
  /** Handles one message: a Buffer, and its creation time (a BigInt, nanoseconds of the source host's boot clock). */
  message(body, created) {
    throw new ModuleError(`${this.constructor.name} has no message(body, created)`);
  }
  /** Handles a control message (a Buffer) from the other half of the pair. May return messages. */
  peer(control) {}
  /** Messages were lost before the next one. May return messages. */
  gap() {}
  /** The flow ends, or changes its pipeline, here: return all held messages. */
  flush() {}
  /** Returns whether a message is held back. Meanwhile nothing is reported as done, so that after a crash it is repeated. */
  held() {
    return false;
  }
  /** Sends a control message to the other half of the pair; has no effect in a shell line. */
  sendToPeer(control) {
    this.runner.sendToPeer(Buffer.from(control));
  }
}

/**
 * A device that a program drives: exec:./device.js,frame=declared. Set `format`, define the handlers that it needs, and call
 * `send` from them or from events of your own.
 */
class Device {
  role = 'device';
  format = 'bytes'; // bytes, evdev, motion, midi, serial, video, viewer, controls, hid, block, audio
  flowClass = ''; // reliable, timely or state; otherwise that of the format
  back = ''; // the format of the flow to the device, if there is one
  summary = ''; // one line for users
  period = 0; // milliseconds between calls of `tick`
  device = {}; // of an application: format, class, summary, back of the device that it stands in for

  /** The device is in use from now on. */
  start() {}
  /** Called every `period` milliseconds. */
  tick() {}
  /** Handles one message of the flow to the program: a Buffer, and its creation time (a BigInt). */
  message(body, created) {}
  /** The other side is silent or gone: release everything that its messages have set. */
  neutral() {}
  /** Sends the complete state: after a cut, for a new user. Define it for the class `state`. */
  snapshot() {}

  /** Sends one message of the format. `created`: nanoseconds of the boot clock, a BigInt; otherwise the time of reading. */
  send(body, created = 0n) {
    if (!this.runner.isPresent) throw new ModuleError('a message of an absent device: call present() before');
    this.runner.push(Buffer.from(body), created);
    this.runner.write();
  }
  /** The device was unplugged: the far node stays, and is neutral. */
  absent(why = 'unplugged') {
    this.runner.setPresent(false, why);
  }
  /** The device is back. */
  present() {
    this.runner.setPresent(true, '');
  }
  /** The flow ends after the messages so far, and so does the program. */
  end() {
    process.exit(0);
  }
}

/** A program that stands in for a device on the application host: --as exec:./viewer.js,frame=declared. */
class Application extends Device {
  role = 'application';
}

/**
 * A program that carries the messages of one connection to a program on the other host: --transport exec:./carrier.js. An
 * exception, or `process.exit`, ends the connection.
 */
class Transport {
  bytes = 64 << 10; // the largest message that it carries; at least 1200
  reliable = false; // nothing is lost
  ordered = false; // nothing overtakes
  end = ''; // 'dialled' on the application host, 'accepted' on the device host
  peer = ''; // the address of the other host
  device = ''; // the name of the shared device
  driver = 0; // a number, equal on both hosts

  /** Meets the other program: `end`, `peer`, `device` and `driver` are known. May return a promise: messages come after it. */
  start() {}
  /** Carries one message, a Buffer, to the other host. May return a promise: the next message comes after it. */
  message(body) {}
  /** Gives one message of the other host to Outboard. Returns a promise if Outboard takes no more now: read on after it. */
  send(body) {
    this.runner.push(Buffer.from(body), 0n);
    this.runner.write();
    return this.runner.drained();
  }
}

/** Bytes that arrive in pieces and are taken from the front. */
class Inbox {
  pieces = [];
  bytes = 0;

  push(piece) {
    this.pieces.push(piece);
    this.bytes += piece.length;
  }

  /** Returns the first `count` bytes without taking them; they must be there. */
  peek(count) {
    if (this.pieces[0].length < count) {
      let [used, bytes] = [0, 0];
      while (bytes < count) bytes += this.pieces[used++].length;
      this.pieces.splice(0, used, Buffer.concat(this.pieces.slice(0, used), bytes));
    }
    return this.pieces[0].subarray(0, count);
  }

  take(count) {
    const front = this.peek(count);
    this.bytes -= count;
    if (this.pieces[0].length === count) this.pieces.shift();
    else this.pieces[0] = this.pieces[0].subarray(count);
    return front;
  }
}

class Runner {
  constructor(module) {
    this.module = module;
    module.runner = this;
    this.data = new Inbox();
    this.control = new Inbox();
    this.frames = [];
    this.unwritten = [];
    this.unwrittenBytes = 0;
    this.inputs = 0;
    this.outputs = 0;
    this.done = '';
    this.dropped = new Map();
    this.created = 0n;
    this.atEnd = false;
    this.isScheduled = false;
    this.isWaiting = false;
    this.hasControl = !(module instanceof Transport) && isSocket(3);
    this.isGreeted = !this.hasControl;
  }

  run() {
    if (this.hasControl) {
      const socket = new net.Socket({ fd: 3, readable: true, writable: false });
      socket.on('data', (piece) => this.control.push(piece) || this.schedule());
      socket.on('end', () => this.loseControl());
      socket.on('error', () => this.loseControl());
      socket.unref();
      this.socket = socket;
    }
    this.guard(() => this.isGreeted && this.start());
    process.stdin.on('data', (piece) => this.data.push(piece) || this.schedule());
    process.stdin.on('end', () => {
      this.atEnd = true;
      this.schedule();
    });
  }

  /** Handles the input after everything available was read: a frame that precedes a container is
   * then seen before it. */
  schedule() {
    if (this.isScheduled) return;
    this.isScheduled = true;
    setImmediate(() => this.guard(() => this.turn()));
  }

  guard(work) {
    try {
      work();
    } catch (error) {
      const problem = error instanceof ModuleError ? error.message : `${error.name}: ${error.message}`;
      this.sendFrame(ERROR, Buffer.from(problem).subarray(0, 4096));
      console.error(error instanceof ModuleError ? `module: ${problem}` : error);
      process.exit(1);
    }
  }

  turn() {
    this.isScheduled = false;
    this.cutFrames();
    if (!this.isGreeted && !this.greet()) return;
    this.handleAll();
    this.write();
    if (!this.atEnd) return this.reportDone();
    if (this.data.bytes > 0) throw new ProtocolError(`the data ends ${this.data.bytes} bytes into a container`);
    this.emit(this.module.flush());
    this.write();
    this.reportDone(true);
    for (const [reason, count] of this.dropped) console.error(`module: ${count} dropped (${reason})`);
    process.exit(0);
  }

  start() {
    this.module.start();
    this.reportDone();
  }

  handleAll() {
    for (;;) {
      while (this.frames.length > 0 && this.frames[0].at <= this.inputs) this.handleFrame(this.frames.shift());
      if (this.isWaiting || this.data.bytes < CONTAINER_BYTES) return;
      const header = this.data.peek(CONTAINER_BYTES);
      const length = header.readUInt32LE(0);
      if (length > BODY_BYTES_MAX) {
        throw new ProtocolError(`a container of ${length} bytes, over the limit of ${BODY_BYTES_MAX}`);
      }
      if (this.data.bytes < CONTAINER_BYTES + length) return;
      this.created = header.readBigUInt64LE(4);
      const body = this.data.take(CONTAINER_BYTES + length).subarray(CONTAINER_BYTES);
      this.inputs += 1;
      try {
        this.emit(this.handleOne(body));
      } catch (error) {
        if (!(error instanceof Drop)) throw error;
        this.sayDropped(error.message);
      }
    }
  }

  handleOne(body) {
    return this.module.message(body, this.created);
  }

  emit(made) {
    if (made === undefined || made === null) return;
    if (typeof made === 'string') this.push(Buffer.from(made), this.created);
    else if (made instanceof Uint8Array) this.push(made, this.created);
    else if (Array.isArray(made)) made.forEach((one) => this.emit(one));
    else this.push(Buffer.from(made.body), BigInt(made.created));
  }

  push(body, created) {
    if (body.length > BODY_BYTES_MAX) {
      throw new ModuleError(`a message of ${body.length} bytes, over the limit of ${BODY_BYTES_MAX}`);
    }
    const joined = body.length < JOIN_BYTES ? CONTAINER_BYTES + body.length : CONTAINER_BYTES;
    const header = Buffer.allocUnsafe(joined);
    header.writeUInt32LE(body.length, 0);
    header.writeBigUInt64LE(created, 4);
    if (joined > CONTAINER_BYTES) header.set(body, CONTAINER_BYTES);
    this.unwritten.push(header);
    if (body.length >= JOIN_BYTES) this.unwritten.push(body);
    this.unwrittenBytes += CONTAINER_BYTES + body.length;
    this.outputs += 1;
    if (this.unwrittenBytes >= BURST_BYTES) this.write();
  }

  write() {
    let pieces = this.unwritten;
    this.unwritten = [];
    this.unwrittenBytes = 0;
    if (pieces.length > 1 && pieces.every((piece) => piece.length < JOIN_BYTES)) pieces = [Buffer.concat(pieces)];
    if (!writeAll(1, pieces)) throw new Closed('the reader of the containers has gone');
  }

  cutFrames() {
    while (this.control.bytes >= FRAME_BYTES) {
      const header = this.control.peek(FRAME_BYTES);
      const length = header.readUInt32LE(0);
      if (length > FRAME_BYTES_MAX) {
        throw new ProtocolError(`a control frame of ${length} bytes, over the limit of ${FRAME_BYTES_MAX}`);
      }
      if (this.control.bytes < FRAME_BYTES + length) return;
      const [kind, at] = [header[4], Number(header.readBigUInt64LE(5))];
      this.frames.push({ kind, at, body: this.control.take(FRAME_BYTES + length).subarray(FRAME_BYTES) });
    }
  }

  /** Returns the hello of the runner, or nothing before it has come. */
  receiveHello() {
    if (this.frames.length === 0) {
      if (!this.hasControl) throw new Closed('the control channel ended before a hello');
      return undefined;
    }
    const { kind, body } = this.frames.shift();
    if (kind !== HELLO) throw new ProtocolError(`the first control frame is no hello, but of kind ${kind}`);
    const hello = parseHello(body);
    if (hello.version !== VERSION) {
      throw new ProtocolError(`the hello is of version ${hello.version}, this module speaks ${VERSION}`);
    }
    return hello;
  }

  sendHello(role, format, values) {
    this.sendFrame(HELLO, emitHello(role, format, values));
  }

  greet() {
    const hello = this.receiveHello();
    if (!hello) return false;
    const { role, format, options } = hello;
    Object.assign(this.module, { role, format, options });
    this.sendHello(role, format, { done: 'true' });
    this.isGreeted = true;
    this.start();
    return true;
  }

  handleFrame({ kind, body }) {
    if (kind === PEER) this.emit(this.module.peer(body));
    else if (kind === GAP) this.emit(this.module.gap());
    else if (kind === FLUSH) {
      this.emit(this.module.flush());
      this.write();
      this.reportDone(true);
    }
    // Frames of a later version are ignored.
  }

  loseControl() {
    this.hasControl = false;
    this.schedule();
  }

  sendFrame(kind, body) {
    if (!this.hasControl) return;
    const header = Buffer.concat([number(body.length, 4), Buffer.from([kind]), number(this.outputs, 8)]);
    if (!writeAll(3, [header, body])) this.hasControl = false;
  }

  sendToPeer(control) {
    // Earlier output precedes the control message.
    this.write();
    this.sendFrame(PEER, control);
  }

  reportDone(always = false) {
    const state = `${this.inputs} ${this.outputs}`;
    if (!always && (state === this.done || this.module.held())) return;
    this.done = state;
    this.sendFrame(DONE, Buffer.concat([number(this.inputs, 8), number(this.outputs, 8)]));
  }

  /** Reports a drop to the runner; in a shell line, to the user at the end. Further reasons count as "other". */
  sayDropped(reason) {
    if (this.hasControl) return this.sendFrame(DROP, Buffer.concat([number(1, 8), text(reason.slice(0, 64))]));
    const name = this.dropped.has(reason) || this.dropped.size < REASONS_MAX ? reason : 'other';
    this.dropped.set(name, (this.dropped.get(name) || 0) + 1);
  }
}

class DeviceRunner extends Runner {
  isPresent = true;

  run() {
    this.guard(() => {
      const advice = 'descriptor 3 is no socket: run it as exec:PROGRAM,frame=declared';
      if (!this.hasControl) throw new ModuleError(advice);
    });
    super.run();
    // A device lives as long as its runner, whether its input has ended or not.
    this.socket.ref();
  }

  greet() {
    const hello = this.receiveHello();
    if (!hello) return false;
    const device = this.module;
    if (hello.role !== device.role) throw new ModuleError(`this program is no ${hello.role}, but a ${device.role}`);
    device.device = { ...hello.options, format: hello.format };
    const snapshot = device.snapshot === Device.prototype.snapshot ? '' : 'true';
    const { summary, flowClass, back } = device;
    this.sendHello(device.role, device.format, { summary, class: flowClass, back, snapshot });
    this.isGreeted = true;
    device.start();
    if (device.period > 0) setInterval(() => this.guard(() => device.tick()), device.period);
    return true;
  }

  turn() {
    this.isScheduled = false;
    this.cutFrames();
    if (!this.isGreeted && !this.greet()) return;
    this.handleAll();
    this.write();
    const isOver = this.atEnd && this.module.role === 'application';
    if (!this.hasControl || isOver) process.exit(0);
  }

  handleFrame({ kind }) {
    if (kind === NEUTRAL) this.module.neutral();
    else if (kind === SNAPSHOT && this.isPresent) this.module.snapshot();
  }

  setPresent(isPresent, why) {
    if (isPresent === this.isPresent) return;
    this.isPresent = isPresent;
    this.sendFrame(isPresent ? PRESENT : ABSENT, isPresent ? Buffer.alloc(0) : text(why.slice(0, 64)));
  }
}

class TransportRunner extends Runner {
  run() {
    this.guard(() => {
      if (!isSocket(1)) throw new ModuleError('descriptor 1 is no socket: run it with --transport exec:PROGRAM');
    });
    // Its writes wait for nothing, so that messages of Outboard are carried while Outboard takes none.
    this.output = new net.Socket({ fd: 1, readable: false, writable: true });
    this.output.on('error', () => process.exit(0));
    const { bytes, reliable, ordered } = this.module;
    this.push(emitHello('transport', 'records', { bytes: `${bytes}`, reliable: `${reliable}`, ordered: `${ordered}` }), 0n);
    this.isGreeted = false;
    this.guard(() => this.write());
    process.stdin.on('data', (piece) => this.data.push(piece) || this.schedule());
    process.stdin.on('end', () => process.exit(0)).on('error', () => process.exit(0));
  }

  turn() {
    this.isScheduled = false;
    this.handleAll();
  }

  write() {
    for (const piece of this.unwritten) this.output.write(piece);
    this.unwritten = [];
    this.unwrittenBytes = 0;
  }

  drained() {
    if (!this.output.writableNeedDrain) return undefined;
    this.room ??= new Promise((resolve) => this.output.once('drain', resolve)).then(() => { this.room = undefined; });
    return this.room;
  }

  handleOne(body) {
    const wait = this.isGreeted ? this.module.message(body) : this.greetTransport(body);
    if (!(wait instanceof Promise)) return;
    this.isWaiting = true;
    process.stdin.pause();
    const goOn = () => {
      this.isWaiting = false;
      process.stdin.resume();
      this.schedule();
    };
    wait.then(goOn, (error) => this.guard(() => { throw error; }));
  }

  greetTransport(body) {
    const transport = this.module;
    const { version, role, options } = parseHello(body);
    if (version !== VERSION || role !== 'transport') {
      throw new ModuleError(`this program is no ${role} of version ${version}, but a transport`);
    }
    Object.assign(transport, { end: options.end, peer: options.peer, device: options.device });
    transport.driver = Number(options.driver);
    this.isGreeted = true;
    return transport.start();
  }
}

/** Returns whether a descriptor is a socket, and not any other file, which the shell may have passed on. */
function isSocket(descriptor) {
  try {
    return fs.fstatSync(descriptor).isSocket();
  } catch {
    return false;
  }
}

/** Writes all pieces, and waits for room; returns false if the reader has gone. */
function writeAll(descriptor, pieces) {
  for (let first = 0; first < pieces.length; ) {
    let count;
    try {
      count = fs.writevSync(descriptor, pieces.slice(first, first + SLICES_MAX));
    } catch (error) {
      if (error.code === 'EPIPE' || error.code === 'ECONNRESET') return false;
      if (error.code !== 'EAGAIN') throw error;
      Atomics.wait(new Int32Array(new SharedArrayBuffer(4)), 0, 0, 1);
      continue;
    }
    while (first < pieces.length && count >= pieces[first].length) count -= pieces[first++].length;
    if (first < pieces.length) pieces[first] = pieces[first].subarray(count);
  }
  return true;
}

function number(value, bytes) {
  const into = Buffer.alloc(bytes);
  if (bytes === 8) into.writeBigUInt64LE(BigInt(value));
  else into.writeUIntLE(value, 0, bytes);
  return into;
}

function text(value) {
  const bytes = Buffer.from(value);
  return Buffer.concat([number(bytes.length, 4), bytes]);
}

function emitHello(role, format, values) {
  const named = Object.entries(values).filter(([, value]) => value);
  const head = [number(VERSION, 2), text(role), text(format), number(named.length, 2)];
  return Buffer.concat(head.concat(...named.map(([name, value]) => [text(name), text(value)])));
}

function parseHello(body) {
  let place = 0;
  const take = (count) => {
    if (body.length - place < count) throw new ProtocolError('the hello is cut short');
    place += count;
    return body.subarray(place - count, place);
  };
  const short = () => take(2).readUInt16LE();
  const word = () => take(take(4).readUInt32LE()).toString();
  const [version, role, format] = [short(), word(), word()];
  const options = {};
  for (let left = short(); left > 0; left -= 1) {
    const name = word();
    options[name] = word();
  }
  return { version, role, format, options };
}

/**
 * Runs `handler`, a Module, a Device, an Application, a Transport, or a function of body and creation time, until its input ends; then
 * ends the process.
 * Reports an error on standard error and to the runner, with exit status 1.
 */
function run(handler) {
  if (handler instanceof Device) {
    new DeviceRunner(handler).run();
    return;
  }
  if (handler instanceof Transport) {
    new TransportRunner(handler).run();
    return;
  }
  const module = handler instanceof Module ? handler : Object.assign(new Module(), { message: handler });
  new Runner(module).run();
}

module.exports = {
  VERSION,
  BODY_BYTES_MAX,
  Application,
  Closed,
  Device,
  Drop,
  Module,
  ModuleError,
  ProtocolError,
  Transport,
  run,
};
