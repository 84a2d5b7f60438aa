"""A module of Outboard in Python: containers in, containers out (docs/modules.md).

    import outboard_module
    outboard_module.run(lambda body, created: body.upper())

It runs in a shell line, between pipes, and in a pipeline as exec(source="./upper.py"), where descriptor 3 is
a socket of control frames: hello, peer, flush, gap, done. No dependencies; Python 3.8 or newer, Linux.
"""

import os
import select
import socket
import stat
import struct
import sys

__all__ = ["BODY_BYTES_MAX", "VERSION", "Closed", "Drop", "Module", "ModuleError", "ProtocolError", "run"]

VERSION = 1
BODY_BYTES_MAX = 64 << 20
FRAME_BYTES_MAX = 1 << 20

_CONTAINER = struct.Struct("<IQ")
_FRAME = struct.Struct("<IBQ")
_HELLO, _PEER, _FLUSH, _DONE, _ERROR, _GAP, _KEY, _FEEDBACK, _DROP = range(1, 10)
_READ_BYTES = 256 << 10
_BURST_BYTES = 256 << 10
_SLICES_MAX = 1000
_REASONS_MAX = 16
_F_SETPIPE_SZ, _PIPE_BYTES = 1031, 1 << 20


class ModuleError(Exception):
    """Why a module cannot go on."""


class ProtocolError(ModuleError):
    """What came is no container, or no control frame."""


class Closed(ModuleError):
    """Whoever read the containers, or spoke to the module, has gone."""


class Drop(Exception):
    """Raised by a handler: this message ends here, on purpose, and is counted for this reason."""


class Module:
    """What a module does; only `message` must be given. Messages are returned: `None`, a body, `(body, created)`,
    or any iterable of these. Without a time of its own a message has that of the one that is being handled."""

    role = "source"  # or "sink"
    format = "bytes"
    options = {}  # names and values, as the user wrote them

    def start(self):
        """`role`, `format` and `options` are known. In a shell line they stay as they are."""

    def message(self, body, created):
        """One message: bytes, and when it was created (nanoseconds of the source host's boot clock)."""
        raise NotImplementedError

    def peer(self, said):
        """The other half of this pair says something (bytes). Messages may be returned."""

    def gap(self):
        """Something was lost before the next message. Messages may be returned."""

    def flush(self):
        """The flow ends, or changes its pipeline, here: return what is held."""

    def held(self):
        """Whether any message is kept back. While one is, nothing is said to be done, so that after a crash
        it comes again."""
        return False

    def tell(self, said):
        """Says something (bytes) to the other half of this pair; nobody hears it in a shell line."""
        self._runner.tell(said)


class _Function(Module):
    def __init__(self, function):
        self.message = function


def run(handler):
    """Runs `handler`, a `Module` or a function of body and creation time, until its input ends; then the
    process does. What goes wrong is said on standard error, and to the runner: exit status 1."""
    module = handler if isinstance(handler, Module) else _Function(handler)
    runner = None
    try:
        runner = _Runner(module)
        runner.run()
    except KeyboardInterrupt:
        sys.exit(130)
    except Exception as error:
        what = str(error) if isinstance(error, ModuleError) else "%s: %s" % (type(error).__name__, error)
        if runner:
            runner.say_error(what)
        if not isinstance(error, ModuleError):
            raise
        sys.exit("%s: %s" % (_name(), what))


def _name():
    return os.path.basename(sys.argv[0]) or "module"


class _Runner:
    def __init__(self, module, data_in=0, data_out=1, control=3):
        self.module = module
        module._runner = self
        self.data_in, self.data_out = data_in, data_out
        self.control = _control(control)
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
        self.say_done()
        poller = select.poll()
        poller.register(self.data_in, select.POLLIN)
        if self.control:
            poller.register(self.control, select.POLLIN)
        while not self.at_end:
            # Without control there is nothing else to wait for.
            ready = poller.poll() if self.control else [(self.data_in, 0)]
            # Data first, control next: a frame that was written before a container is seen before it.
            if any(descriptor == self.data_in for descriptor, _ in ready):
                self.receive()
            if self.control:
                self.receive_frames(socket.MSG_DONTWAIT)
                if self.control is None:
                    poller.unregister(3)
            self.handle_all()
            self.write()
            self.say_done()
        self.emit(self.module.flush())
        self.write()
        self.say_done(True)
        for reason, count in self.dropped.items():
            print("%s: %d dropped (%s)" % (_name(), count, reason), file=sys.stderr)

    # Data.

    def receive(self):
        if self.start == self.filled:
            self.start = self.filled = 0
        elif self.filled == len(self.buffer):
            # A container that does not fit: make room in front, then behind, as much as has come.
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
                made = module.message(body, created)
            except Drop as dropped:
                self.say_dropped(str(dropped))
                continue
            self.emit(made)
        if self.at_end and self.start < self.filled:
            raise ProtocolError("the data ends %d bytes into a container" % (self.filled - self.start))

    def emit(self, made):
        if made is None:
            return
        if isinstance(made, (bytes, bytearray, memoryview)):
            self.push(made, self.created)
        elif isinstance(made, tuple) and len(made) == 2 and isinstance(made[1], int):
            self.push(*made)
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
        first = 0
        try:
            while first < len(pieces):
                count = os.writev(self.data_out, pieces[first : first + _SLICES_MAX])
                while first < len(pieces) and count >= len(pieces[first]):
                    count -= len(pieces[first])
                    first += 1
                if count:
                    pieces[first] = memoryview(pieces[first])[count:]
        except BrokenPipeError:
            raise Closed("whoever read the containers has gone") from None

    # Control.

    def greet(self):
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
        self.module.role, self.module.format, self.module.options = role, format_, options
        answer = struct.pack("<H", VERSION) + _text(role) + _text(format_)
        answer += struct.pack("<H", 1) + _text("done") + _text("true")
        self.say(_HELLO, answer)

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
            self.say_done(True)
        # What a later version says is passed over.

    def say(self, kind, body):
        if self.control:
            try:
                self.control.sendall(_FRAME.pack(len(body), kind, self.outputs) + body)
            except (BrokenPipeError, ConnectionResetError):
                self.control = None

    def tell(self, said):
        # What was made before must be on its way before.
        self.write()
        self.say(_PEER, bytes(said))

    def say_done(self, always=False):
        state = (self.inputs, self.outputs)
        if self.control and (always or (state != self.done and not self.module.held())):
            self.done = state
            self.say(_DONE, struct.pack("<QQ", *state))

    def say_dropped(self, reason):
        """Tells the runner; in a shell line, the user at the end. Reasons are few: what is over is "other"."""
        if self.control:
            self.say(_DROP, struct.pack("<Q", 1) + _text(reason[:64]))
            return
        if reason not in self.dropped and len(self.dropped) >= _REASONS_MAX:
            reason = "other"
        self.dropped[reason] = self.dropped.get(reason, 0) + 1

    def say_error(self, what):
        self.say(_ERROR, what.encode("utf-8", "replace")[:4096].decode("utf-8", "ignore").encode())


def _control(number):
    """The control channel is a socket on descriptor 3: anything else there came by accident."""
    try:
        if stat.S_ISSOCK(os.fstat(number).st_mode):
            return socket.socket(fileno=number)
    except OSError:
        pass
    return None


def _widen(descriptor):
    """Lets a pipe hold more, so that its two ends change places less often."""
    try:
        import fcntl

        fcntl.fcntl(descriptor, _F_SETPIPE_SZ, _PIPE_BYTES)
    except (ImportError, OSError):
        pass


def _text(text):
    data = text.encode()
    return struct.pack("<I", len(data)) + data


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
