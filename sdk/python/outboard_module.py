"""A module of Outboard in Python: containers in, containers out (docs/reference/modules.md).

    import outboard_module
    outboard_module.run(lambda body, created: body.upper())

It runs in a shell line, between pipes, and in a pipeline as exec(source="./upper.py"), where descriptor 3 is
a socket of control frames: hello, peer, flush, gap, done. A `Device` or an `Application` runs as
exec:./device.py,frame=declared, a `Transport` as --transport exec:./carrier.py. No dependencies; Python 3.8 or newer, Linux.
"""

import os
import select
import socket
import stat
import struct
import sys
import time
import traceback

__all__ = [
    "BODY_BYTES_MAX",
    "VERSION",
    "Application",
    "Closed",
    "Device",
    "Drop",
    "Module",
    "ModuleError",
    "ProtocolError",
    "Transport",
    "run",
]

VERSION = 1
BODY_BYTES_MAX = 64 << 20
FRAME_BYTES_MAX = 1 << 20

_CONTAINER = struct.Struct("<IQ")
_FRAME = struct.Struct("<IBQ")
_HELLO, _PEER, _FLUSH, _DONE, _ERROR, _GAP, _KEY, _FEEDBACK, _DROP = range(1, 10)
_NEUTRAL, _SNAPSHOT, _ABSENT, _PRESENT = range(11, 15)
_READ_BYTES = 256 << 10
_BURST_BYTES = 256 << 10
_SLICES_MAX = 1000
_REASONS_MAX = 16
_F_SETPIPE_SZ, _PIPE_BYTES = 1031, 1 << 20


class ModuleError(Exception):
    """An error that ends the module."""


class ProtocolError(ModuleError):
    """The input is no container, or no control frame."""


class Closed(ModuleError):
    """The reader of the containers, or the runner, has gone."""


class Drop(Exception):
    """Raised by a handler to drop the message on purpose; it is counted under this reason."""


class Module:
    """The handlers of a module; only `message` is required. They return messages: `None`, a body, `(body, created)`,
    or any iterable of these. A message without a time of its own gets that of the handled message."""

    role = "source"  # or "sink"
    format = "bytes"
    options = {}  # names and values, as the user wrote them

    def start(self):
        """`role`, `format` and `options` are known. A shell line keeps the defaults."""

    def message(self, body, created):
        """Handles one message: bytes, and its creation time (nanoseconds of the source host's boot clock)."""
        raise NotImplementedError

    def peer(self, control):
        """Handles a control message (bytes) from the other half of the pair. May return messages."""

    def gap(self):
        """Messages were lost before the next one. May return messages."""

    def flush(self):
        """The flow ends, or changes its pipeline, here: return all held messages."""

    def held(self):
        """Returns whether a message is held back. Meanwhile nothing is reported as done, so that after a crash
        it is repeated."""
        return False

    def send_to_peer(self, control):
        """Sends a control message (bytes) to the other half of the pair; has no effect in a shell line."""
        self._runner.send_to_peer(control)


class _Function(Module):
    def __init__(self, function):
        self.message = function


class Device:
    """A device that a program drives: exec:./device.py,frame=declared. Set `format`, and define the handlers that it
    needs: `tick` with a `period`, or `readable` with a `descriptor`. No two of them run at the same time.

    `send(body)` sends one message of the format. `absent(why)` and `present()` tell that the device was unplugged and is
    back; the far node stays and is neutral meanwhile. An exception ends the program, and with it the flow."""

    role = "device"
    format = "bytes"  # bytes, evdev, motion, midi, serial, video, viewer, controls, hid, block, audio
    flow_class = ""  # reliable, timely or state; otherwise that of the format
    back = ""  # the format of the flow to the device, if there is one
    summary = ""  # one line for users
    period = None  # seconds between calls of `tick`
    device = {}  # of an application: format, class, summary, back of the device that it stands in for

    def start(self):
        """The device is in use from now on."""

    def tick(self):
        """Called every `period` seconds."""

    def readable(self):
        """`descriptor` has something to read: the device itself."""

    descriptor = None  # a file or a number to wait for, for `readable`; it may change at any time

    def message(self, body, created):
        """Handles one message of the flow to the program."""

    def neutral(self):
        """The other side is silent or gone: release everything that its messages have set."""

    def snapshot(self):
        """Sends the complete state: after a cut, for a new user. Define it for the class `state`."""

    def send(self, body, created=None):
        """Sends one message. `created`: nanoseconds of CLOCK_BOOTTIME, or else the present time."""
        if not self._runner.is_present:
            raise ModuleError("a message of an absent device: call present() before")
        self._runner.push(body, created or time.clock_gettime_ns(time.CLOCK_BOOTTIME))

    def absent(self, why="unplugged"):
        """The device was unplugged."""
        self._runner.set_present(False, why)

    def present(self):
        """The device is back."""
        self._runner.set_present(True, "")

    def end(self):
        """The flow ends after the messages so far, and so does the program."""
        self._runner.has_ended = True


class Application(Device):
    """A program that stands in for a device on the application host: --as exec:./viewer.py,frame=declared. It handles
    each `message` of its `format`; `send` sends one of the format `back`."""

    role = "application"


class Transport:
    """A program that carries the messages of one connection to a program on the other host: --transport exec:./carrier.py.
    `send(body)` gives a message that has arrived from the other host to Outboard. An exception ends the program, and with it
    the connection."""

    bytes = 64 << 10  # the largest message that it carries; at least 1200
    reliable = False  # nothing is lost
    ordered = False  # nothing overtakes
    end = ""  # "dialled" on the application host, "accepted" on the device host
    peer = ""  # the address of the other host
    device = ""  # the name of the shared device
    driver = 0  # a number, equal on both hosts

    def start(self):
        """Meets the other program, and sets `descriptor`. `wait(file)` returns when a file is readable."""

    def message(self, body):
        """Carries one message to the other host: to a stream with `carry_all`."""

    def readable(self):
        """`descriptor` has something to read, also within `carry_all`: messages of the other host."""

    descriptor = None  # a file or a number to wait for, for `readable`

    def wait(self, file):
        """Waits until `file` is readable; raises `Closed` if the connection is given up meanwhile."""
        poller = select.poll()
        poller.register(file, select.POLLIN)
        poller.register(self._runner.data_in, select.POLLHUP)
        if any(event & select.POLLHUP and descriptor == self._runner.data_in for descriptor, event in poller.poll()):
            raise Closed("the connection is given up")

    def send(self, body):
        """Gives one message of the other host to Outboard."""
        self._runner.push(body, 0)

    def carry_all(self, data):
        """Writes all of `data` to `descriptor`, which becomes one that does not block. Meanwhile `readable` is called: two programs
        that both only write wait for each other for ever."""
        number = _number(self.descriptor)
        os.set_blocking(number, False)
        rest = memoryview(data)
        while rest:
            try:
                rest = rest[os.write(number, rest) :]
            except BlockingIOError:
                self._runner.serve(is_carrying=True)


def run(handler):
    """Runs `handler`, a `Module`, a `Device`, an `Application`, a `Transport`, or a function of body and creation time, until its
    input ends; then ends the process. Reports an error on standard error and to the runner, with exit status 1."""
    module = handler if isinstance(handler, (Module, Device, Transport)) else _Function(handler)
    kind = _TransportRunner if isinstance(handler, Transport) else _DeviceRunner if isinstance(handler, Device) else _Runner
    runner = None
    try:
        runner = kind(module)
        runner.run()
    except KeyboardInterrupt:
        sys.exit(130)
    except Exception as error:
        problem = str(error) if isinstance(error, ModuleError) else "%s: %s" % (type(error).__name__, error)
        if not isinstance(error, ModuleError):
            problem += _place(error)
        if runner:
            runner.say_error(problem)
        sys.exit("%s: %s" % (_name(), problem))


def _place(error):
    """The place of an exception: the last line of the program's own files, and not the whole traceback."""
    own = [frame for frame in traceback.extract_tb(error.__traceback__) if frame.filename != __file__]
    return " (%s, line %d, in %s)" % (os.path.basename(own[-1].filename), own[-1].lineno, own[-1].name) if own else ""


def _name():
    return os.path.basename(sys.argv[0]) or "module"


class _Runner:
    def __init__(self, module, data_in=0, data_out=1, control=3):
        self.module = module
        module._runner = self
        self.data_in, self.data_out = data_in, data_out
        self.control = None if control is None else _socket(control)
        self.buffer, self.start, self.filled = bytearray(_READ_BYTES), 0, 0
        self.at_end = False
        self.frames, self.received = [], bytearray()
        self.unwritten, self.unwritten_bytes = [], 0
        self.inputs = self.outputs = 0
        self.created = 0
        self.done = None
        self.dropped = {}
        for descriptor in (data_in, data_out):
            _widen(descriptor)

    def run(self):
        if self.control:
            self.greet()
        self.module.start()
        self.report_done()
        poller = select.poll()
        poller.register(self.data_in, select.POLLIN)
        if self.control:
            poller.register(self.control, select.POLLIN)
        while not self.at_end:
            # Without control, data is the only event.
            ready = poller.poll() if self.control else [(self.data_in, 0)]
            # Read data before control: a frame that precedes a container is then seen before it.
            if any(descriptor == self.data_in for descriptor, _ in ready):
                self.receive()
            if self.control:
                self.receive_frames(socket.MSG_DONTWAIT)
                if self.control is None:
                    poller.unregister(3)
            self.handle_all()
            self.write()
            self.report_done()
        self.emit(self.module.flush())
        self.write()
        self.report_done(True)
        for reason, count in self.dropped.items():
            print("%s: %d dropped (%s)" % (_name(), count, reason), file=sys.stderr)

    # Data.

    def receive(self):
        if self.start == self.filled:
            self.start = self.filled = 0
        elif self.filled == len(self.buffer):
            # A container does not fit: make room in front, then at the end, by the amount that has arrived.
            rest = self.buffer[self.start : self.filled]
            self.buffer = rest + bytearray(max(len(rest), _READ_BYTES))
            self.start, self.filled = 0, len(rest)
        with memoryview(self.buffer) as view:
            count = os.readv(self.data_in, [view[self.filled :]])
        self.filled += count
        if count == 0:
            self.at_end = True

    def handle_all(self):
        module, buffer = self.module, self.buffer
        while True:
            while self.frames and self.frames[0][0] <= self.inputs:
                self.handle_frame(*self.frames.pop(0)[1:])
            left = self.filled - self.start
            if left < _CONTAINER.size:
                break
            length, created = _CONTAINER.unpack_from(buffer, self.start)
            if length > BODY_BYTES_MAX:
                raise ProtocolError("a container of %d bytes, over the limit of %d" % (length, BODY_BYTES_MAX))
            if left < _CONTAINER.size + length:
                break
            begin = self.start + _CONTAINER.size
            with memoryview(buffer) as view:
                body = bytes(view[begin : begin + length])
            self.start = begin + length
            self.inputs += 1
            self.created = created
            try:
                made = self.handle_one(body, created)
            except Drop as dropped:
                self.say_dropped(str(dropped))
                continue
            self.emit(made)
        if self.at_end and self.start < self.filled:
            raise ProtocolError("the data ends %d bytes into a container" % (self.filled - self.start))

    def handle_one(self, body, created):
        return self.module.message(body, created)

    def emit(self, made):
        if made is None:
            return
        if isinstance(made, (bytes, bytearray, memoryview)):
            self.push(made, self.created)
        elif isinstance(made, tuple) and len(made) == 2 and isinstance(made[1], int):
            self.push(*made)
        elif isinstance(made, (str, int, float)):
            raise ModuleError("returned %r: a message is bytes, as in text.encode()" % (made,))
        else:
            for one in made:
                self.emit(one)

    def push(self, body, created):
        length = len(body)
        if length > BODY_BYTES_MAX:
            raise ModuleError("a message of %d bytes, over the limit of %d" % (length, BODY_BYTES_MAX))
        # Small ones are joined: one long slice costs less than many.
        head = _CONTAINER.pack(length, created)
        if length < 4096:
            self.unwritten.append(head + body)
        else:
            self.unwritten.append(head)
            self.unwritten.append(body)
        self.unwritten_bytes += len(head) + length
        self.outputs += 1
        if self.unwritten_bytes >= _BURST_BYTES:
            self.write()

    def write(self):
        pieces, self.unwritten, self.unwritten_bytes = self.unwritten, [], 0
        if pieces and max(map(len, pieces)) < 4096:
            pieces = [b"".join(pieces)]
        try:
            while pieces:
                _skip(pieces, os.writev(self.data_out, pieces[:_SLICES_MAX]))
        except BrokenPipeError:
            raise Closed("the reader of the containers has gone") from None

    # Control.

    def receive_hello(self):
        while not self.frames:
            self.receive_frames(0)
            if self.control is None:
                raise Closed("the control channel ended before a hello")
        _, kind, body = self.frames.pop(0)
        if kind != _HELLO:
            raise ProtocolError("the first control frame is no hello, but of kind %d" % kind)
        version, role, format_, options = _parse_hello(body)
        if version != VERSION:
            raise ProtocolError("the hello is of version %d, this module speaks %d" % (version, VERSION))
        return role, format_, options

    def greet(self):
        role, format_, options = self.receive_hello()
        self.module.role, self.module.format, self.module.options = role, format_, options
        self.send_hello(role, format_, {"done": "true"})

    def send_hello(self, role, format_, values):
        self.send_frame(_HELLO, _hello(role, format_, values))

    def receive_frames(self, flags):
        while self.control:
            try:
                fresh = self.control.recv(64 << 10, flags)
            except (BlockingIOError, InterruptedError):
                return
            except ConnectionResetError:
                fresh = b""
            if not fresh:
                self.control = None
                return
            self.received += fresh
            while len(self.received) >= _FRAME.size:
                length, kind, at = _FRAME.unpack_from(self.received)
                if length > FRAME_BYTES_MAX:
                    raise ProtocolError("a control frame of %d bytes, over the limit of %d" % (length, FRAME_BYTES_MAX))
                whole = _FRAME.size + length
                if len(self.received) < whole:
                    break
                self.frames.append((at, kind, bytes(self.received[_FRAME.size : whole])))
                del self.received[:whole]
            if not flags and self.frames:
                return

    def handle_frame(self, kind, body):
        if kind == _PEER:
            self.emit(self.module.peer(body))
        elif kind == _GAP:
            self.emit(self.module.gap())
        elif kind == _FLUSH:
            self.emit(self.module.flush())
            self.write()
            self.report_done(True)
        # Frames of a later version are ignored.

    def send_frame(self, kind, body):
        if self.control:
            try:
                self.control.sendall(_FRAME.pack(len(body), kind, self.outputs) + body)
            except (BrokenPipeError, ConnectionResetError):
                self.control = None

    def send_to_peer(self, control):
        # Earlier output precedes the control message.
        self.write()
        self.send_frame(_PEER, bytes(control))

    def report_done(self, always=False):
        state = (self.inputs, self.outputs)
        if self.control and (always or (state != self.done and not self.module.held())):
            self.done = state
            self.send_frame(_DONE, struct.pack("<QQ", *state))

    def say_dropped(self, reason):
        """Reports a drop to the runner; in a shell line, to the user at the end. Further reasons count as "other"."""
        if self.control:
            self.send_frame(_DROP, struct.pack("<Q", 1) + _text(reason[:64]))
            return
        if reason not in self.dropped and len(self.dropped) >= _REASONS_MAX:
            reason = "other"
        self.dropped[reason] = self.dropped.get(reason, 0) + 1

    def say_error(self, problem):
        self.send_frame(_ERROR, problem.encode("utf-8", "replace")[:4096].decode("utf-8", "ignore").encode())


class _DeviceRunner(_Runner):
    is_present, has_ended = True, False
    watched = None  # the number of the polled `descriptor`

    def greet(self):
        device = self.module
        role, format_, options = self.receive_hello()
        if role != device.role:
            raise ModuleError("this program is no %s, but a %s" % (role, device.role))
        device.device = dict(options, format=format_)
        values = {"summary": device.summary, "class": device.flow_class, "back": device.back}
        if type(device).snapshot is not Device.snapshot:
            values["snapshot"] = "true"
        self.send_hello(role, device.format, {name: value for name, value in values.items() if value})

    def run(self):
        if not self.control:
            raise ModuleError("descriptor 3 is no socket: run it as exec:%s,frame=declared" % _name())
        device = self.module
        self.greet()
        device.start()
        poller = select.poll()
        poller.register(self.data_in, select.POLLIN)
        poller.register(self.control, select.POLLIN)
        due = time.monotonic()
        while self.control and not self.has_ended and not (self.at_end and device.role == "application"):
            self.write()
            wait = None
            if device.period is not None:
                wait = max(0, due - time.monotonic()) * 1000
            self.watch(poller)
            ready = [descriptor for descriptor, _ in poller.poll(wait)]
            if self.data_in in ready:
                self.receive()
                if self.at_end:
                    poller.unregister(self.data_in)
            self.receive_frames(socket.MSG_DONTWAIT)
            self.handle_all()
            if self.watched in ready and self.watched == _number(device.descriptor):
                device.readable()
            if device.period is not None and time.monotonic() >= due:
                # A late tick delays the next ones; nothing is made up for.
                due = max(due + device.period, time.monotonic())
                device.tick()
        self.write()

    def handle_frame(self, kind, body):
        if kind == _NEUTRAL:
            self.module.neutral()
        elif kind == _SNAPSHOT and self.is_present:
            self.module.snapshot()

    def watch(self, poller):
        """Polls the present `descriptor`: a handler may have closed one, and opened another."""
        number = _number(self.module.descriptor)
        if number != self.watched:
            if self.watched is not None:
                poller.unregister(self.watched)
            if number is not None:
                poller.register(number, select.POLLIN)
            self.watched = number

    def set_present(self, is_present, why):
        if is_present == self.is_present:
            return
        # Earlier messages precede the frame.
        self.write()
        self.is_present = is_present
        if is_present:
            self.send_frame(_PRESENT, b"")
        else:
            self.send_frame(_ABSENT, _text(why[:64]))


class _TransportRunner(_Runner):
    def __init__(self, module):
        super().__init__(module, control=None)
        self.is_greeted = False
        self.output = _socket(os.dup(self.data_out))
        if not self.output:
            raise ModuleError("descriptor 1 is no socket: run it with --transport exec:%s" % _name())

    def handle_one(self, body, created):
        transport = self.module
        if self.is_greeted:
            transport.message(body)
            return
        version, role, _, values = _parse_hello(body)
        if (version, role) != (VERSION, "transport"):
            raise ModuleError("this program is no %s of version %d, but a transport" % (role, version))
        transport.end, transport.peer = values.get("end", ""), values.get("peer", "")
        transport.device, transport.driver = values.get("device", ""), int(values.get("driver", 0))
        self.is_greeted = True
        transport.start()

    def run(self):
        transport = self.module
        values = {"bytes": str(transport.bytes), "reliable": transport.reliable, "ordered": transport.ordered}
        self.push(_hello("transport", "records", {name: str(value).lower() for name, value in values.items()}), 0)
        self.write()
        while not self.is_greeted:
            if self.at_end:
                raise ModuleError("no hello: run it with --transport exec:%s" % _name())
            self.receive()
            self.handle_all()
        while not self.at_end:
            self.serve()
            self.handle_all()

    def serve(self, is_carrying=False):
        """Waits until the transport can do something, and does it; while `is_carrying`, it takes no further message of Outboard.
        What Outboard has not taken keeps `readable` from being called, and nothing else: neither direction waits for the other."""
        number, is_full = _number(self.module.descriptor), bool(self.unwritten)
        outboard = (0 if is_carrying else select.POLLIN) | (select.POLLOUT if is_full else 0)
        other = (select.POLLOUT if is_carrying else 0) | (0 if is_full else select.POLLIN)
        poller = select.poll()
        # Descriptors 0 and 1 are one socket. A hangup is reported always, so it is not waited for in vain.
        poller.register(self.data_in, outboard)
        if other and number is not None:
            poller.register(number, other)
        ready = dict(poller.poll())
        found = ready.get(self.data_in, 0) & ~select.POLLOUT
        if found and is_carrying:
            raise Closed("the connection is given up")
        if found:
            self.receive()
        if not is_full and ready.get(number, 0) & ~select.POLLOUT:
            self.module.readable()
        self.write()

    def write(self):
        """Writes as much as Outboard takes now. The rest stays."""
        try:
            while self.unwritten:
                count = self.output.sendmsg(self.unwritten[:_SLICES_MAX], [], socket.MSG_DONTWAIT)
                _skip(self.unwritten, count)
                self.unwritten_bytes -= count
        except BlockingIOError:
            pass
        except (BrokenPipeError, ConnectionResetError):
            raise Closed("the connection is given up") from None


def _socket(number):
    """Returns the socket of this descriptor; `None` for any other file, which the shell may have passed on."""
    try:
        if stat.S_ISSOCK(os.fstat(number).st_mode):
            return socket.socket(fileno=number)
    except OSError:
        pass
    return None


def _skip(pieces, count):
    """Removes the first `count` bytes."""
    whole = 0
    while whole < len(pieces) and count >= len(pieces[whole]):
        count -= len(pieces[whole])
        whole += 1
    del pieces[:whole]
    if count:
        pieces[0] = memoryview(pieces[0])[count:]


def _number(file):
    """The number of a file to wait for; none of a closed one."""
    if file is None or isinstance(file, int):
        return file
    try:
        number = file.fileno()
    except ValueError:
        return None
    return number if number >= 0 else None


def _widen(descriptor):
    """Enlarges a pipe, for fewer switches between processes."""
    try:
        import fcntl

        fcntl.fcntl(descriptor, _F_SETPIPE_SZ, _PIPE_BYTES)
    except (ImportError, OSError):
        pass


def _text(text):
    data = text.encode()
    return struct.pack("<I", len(data)) + data


def _hello(role, format_, values):
    hello = struct.pack("<H", VERSION) + _text(role) + _text(format_) + struct.pack("<H", len(values))
    return hello + b"".join(_text(name) + _text(value) for name, value in values.items())


def _parse_hello(body):
    place = 0

    def take(count):
        nonlocal place
        if len(body) - place < count:
            raise ProtocolError("the hello is cut short")
        place += count
        return body[place - count : place]

    def number():
        return struct.unpack("<H", take(2))[0]

    def text():
        try:
            return take(struct.unpack("<I", take(4))[0]).decode()
        except UnicodeDecodeError:
            raise ProtocolError("the hello is no text") from None

    version, role, format_ = number(), text(), text()
    options = {}
    for _ in range(number()):
        name = text()
        options[name] = text()
    return version, role, format_, options
