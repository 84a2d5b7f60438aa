"""Input devices as the kernel has them: recordings, devices made of them with uinput, event nodes.

Numbers and structures are those of linux/input.h, linux/input-event-codes.h and linux/uinput.h.
"""
import collections, errno, fcntl, glob, os, select, struct, time
from pathlib import Path

EV_SYN, EV_KEY, EV_REL, EV_ABS, EV_MSC, EV_SW, EV_LED, EV_SND, EV_REP, EV_FF = 0, 1, 2, 3, 4, 5, 0x11, 0x12, 0x14, 0x15
EV_UINPUT, UI_FF_UPLOAD, UI_FF_ERASE = 0x101, 1, 2
LED_CAPSL, FF_RUMBLE, FF_GAIN = 1, 0x50, 0x60
KEYS = {name: code for row, code in (("QWERTYUIOP", 16), ("ASDFGHJKL", 30), ("ZXCVBNM", 44))
        for code, name in enumerate(row, code)}
KEYS |= {"SHIFT": 42, "CAPSLOCK": 58}
BTN_LEFT, BTN_SOUTH = 0x110, 0x130
REPORT = (EV_SYN, 0, 0)
EVENT = struct.Struct("qqHHi")
# The kinds that have codes, and the request that gives a device one.
CODED = {EV_KEY: 101, EV_REL: 102, EV_ABS: 103, EV_MSC: 104, EV_LED: 105, EV_SND: 106, EV_FF: 107, EV_SW: 109}


def number(direction, letter, command, size):
    """The number of an ioctl: direction 0 none, 1 write, 2 read, 3 both (asm-generic/ioctl.h)."""
    return direction << 30 | size << 16 | ord(letter) << 8 | command


def ask(node, command, size):
    """The answer of an event node to EVIOCG...(size)."""
    buffer = bytearray(size)
    count = fcntl.ioctl(node, number(2, "E", command, size), buffer)
    return bytes(buffer[:count] if count else buffer)


def bits(data):
    """The numbers whose bits are set."""
    return {8 * at + bit for at, byte in enumerate(data) for bit in range(8) if byte >> bit & 1}


class Recording:
    """A device and what it did, in the format of `evemu-record`."""

    def __init__(self, name):
        self.ids, self.props, self.axes = (0, 0, 0, 0), set(), {}
        self.codes = collections.defaultdict(set)
        # Seconds since the beginning, and the events, with the report behind them.
        self.frames = []
        rows, events = collections.Counter(), []
        for line in (Path(__file__).parents[1] / "recordings" / f"{name}.evemu").read_text().splitlines():
            kind, _, rest = line.partition("#")[0].partition(":")
            words = rest.split()
            if kind == "N":
                self.name = rest.strip()
            elif kind == "I":
                self.ids = tuple(int(word, 16) for word in words)
            elif kind in ("P", "B"):
                into = self.props if kind == "P" else self.codes[int(words.pop(0), 16)]
                row = (kind, id(into))
                into |= {code + 64 * rows[row] for code in bits(bytes.fromhex("".join(words)))}
                rows[row] += 1
            elif kind == "A":
                self.axes[int(words[0], 16)] = tuple(map(int, words[1:]))
            elif kind == "E":
                events.append((int(words[1], 16), int(words[2], 16), int(words[3])))
                if events[-1] == REPORT:
                    self.frames.append((float(words[0]), events))
                    events = []


class Source:
    """A device made with uinput: who drives it here is the device's firmware to all others."""

    def __init__(self, recording, effects=0):
        self.recording = recording
        self.fd = os.open("/dev/uinput", os.O_RDWR | os.O_NONBLOCK)
        for kind in recording.codes[0]:
            fcntl.ioctl(self.fd, number(1, "U", 100, 4), kind)
            for code in recording.codes.get(kind, ()) if kind in CODED else ():
                fcntl.ioctl(self.fd, number(1, "U", CODED[kind], 4), code)
        for prop in recording.props:
            fcntl.ioctl(self.fd, number(1, "U", 110, 4), prop)
        for code, (low, high, fuzz, flat, resolution) in recording.axes.items():
            setup = struct.pack("H2xiiiiii", code, 0, low, high, fuzz, flat, resolution)
            fcntl.ioctl(self.fd, number(1, "U", 4, len(setup)), setup)
        fcntl.ioctl(self.fd, number(1, "U", 108, 8), f"journey/{recording.name}".encode() + b"\0")
        setup = struct.pack("HHHH80sI", *recording.ids, recording.name.encode(), effects)
        fcntl.ioctl(self.fd, number(1, "U", 3, len(setup)), setup)
        fcntl.ioctl(self.fd, number(0, "U", 1, 0))
        buffer = bytearray(64)
        fcntl.ioctl(self.fd, number(2, "U", 44, len(buffer)), buffer)
        system_name = buffer.partition(b"\0")[0].decode()
        event = glob.glob(f"/sys/devices/virtual/input/{system_name}/event*")[0]
        self.node = f"/dev/input/{os.path.basename(event)}"
        end = time.monotonic() + 10
        while not os.path.exists(self.node) and time.monotonic() < end:
            time.sleep(0.01)

    def write(self, *events):
        """A frame: the events, and the report behind them."""
        os.write(self.fd, b"".join(EVENT.pack(0, 0, *event) for event in events + (REPORT,)))

    def key(self, code, *values):
        """Presses (1) and releases (0) a key, a frame each, 30 ms apart."""
        for value in values:
            self.write((EV_KEY, code, value))
            time.sleep(0.03)

    def read(self, seconds=None):
        """Waits for what programs tell the device, or so long."""
        if not select.select([self.fd], [], [], seconds)[0]:
            return []
        return [event[2:] for event in EVENT.iter_unpack(os.read(self.fd, 64 * EVENT.size))]

    def answer_upload(self, request):
        """Takes an effect that a program uploads: kind, number, strong and weak of a rumble."""
        upload = bytearray(struct.pack("Ii", request, 0) + bytes(2 * 48))
        fcntl.ioctl(self.fd, number(3, "U", 200, len(upload)), upload)
        kind, effect = struct.unpack_from("Hh", upload, 8)
        strong, weak = struct.unpack_from("HH", upload, 8 + 16)
        fcntl.ioctl(self.fd, number(1, "U", 201, len(upload)), upload)
        return kind, effect, strong, weak

    def answer_erase(self, request):
        """Lets go of an effect; its number."""
        erase = bytearray(struct.pack("IiI", request, 0, 0))
        fcntl.ioctl(self.fd, number(3, "U", 202, len(erase)), erase)
        fcntl.ioctl(self.fd, number(1, "U", 203, len(erase)), erase)
        return struct.unpack("IiI", erase)[2]

    def unplug(self):
        os.close(self.fd)


class Node:
    """An event node, opened as an application does."""

    def __init__(self, path):
        self.path = path
        self.fd = os.open(path, os.O_RDWR | os.O_NONBLOCK)

    def read(self):
        """The events that wait: type, code, value."""
        events = []
        while True:
            try:
                data = os.read(self.fd, 64 * EVENT.size)
            except OSError as error:
                if error.errno == errno.EAGAIN:
                    return events
                raise
            events += [event[2:] for event in EVENT.iter_unpack(data)]

    def write(self, *events):
        os.write(self.fd, b"".join(EVENT.pack(0, 0, *event) for event in events + (REPORT,)))

    def keys(self):
        """The keys that are down (EVIOCGKEY)."""
        return bits(ask(self.fd, 0x18, 96))

    def lights(self):
        """The lights that are on (EVIOCGLED)."""
        return bits(ask(self.fd, 0x19, 8))

    def positions(self):
        """The positions of the axes."""
        axes = bits(ask(self.fd, 0x20 + EV_ABS, 8))
        return {code: struct.unpack("6i", ask(self.fd, 0x40 + code, 24))[0] for code in axes}

    def set_repeat_ms(self, delay, period):
        fcntl.ioctl(self.fd, number(1, "E", 3, 8), struct.pack("II", delay, period))

    def upload_rumble(self, strong, weak, length_ms, effect=-1):
        """Gives the device an effect (EVIOCSFF); its number."""
        data = bytearray(struct.pack("HhHHHHH2xHH28x", FF_RUMBLE, effect, 0, 0, 0, length_ms, 0, strong, weak))
        fcntl.ioctl(self.fd, number(1, "E", 0x80, len(data)), data)
        return struct.unpack_from("Hh", data)[1]

    def erase_effect(self, effect):
        fcntl.ioctl(self.fd, number(1, "E", 0x81, 4), effect)

    def describe(self):
        """All that an application can ask of what the device is."""
        kinds = bits(ask(self.fd, 0x20, 8))
        told = {"ids": struct.unpack("4H", ask(self.fd, 2, 8)), "name": ask(self.fd, 6, 256),
                "properties": bits(ask(self.fd, 9, 8)), "types": kinds}
        for kind in kinds & set(CODED):
            told[f"codes of type {kind}"] = bits(ask(self.fd, 0x20 + kind, 96))
        for code in told.get(f"codes of type {EV_ABS}", ()):
            # The first number is where the axis stands, which is no part of what it is.
            told[f"axis {code}"] = struct.unpack("6i", ask(self.fd, 0x40 + code, 24))[1:]
        if EV_REP in kinds:
            told["repeat"] = struct.unpack("II", ask(self.fd, 3, 8))
        if EV_FF in kinds:
            told["effects"] = struct.unpack("i", ask(self.fd, 0x84, 4))
        return told
