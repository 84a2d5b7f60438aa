"""MIDI files, and unmodified programs at ports of the ALSA sequencer."""
import re
from pathlib import Path
from . import until
from .hosts import Program

# 384 ticks a beat and 120 beats a minute, as arecordmidi has them.
TICKS, TICK_S = 384, 0.5 / 384


def quantity(number):
    """A number of variable length."""
    digits = [number & 0x7f]
    while number := number >> 7:
        digits.insert(0, 0x80 | number & 0x7f)
    return bytes(digits)


def write_file(path, events):
    """A file of `(tick, message)`, with running status."""
    track, last, running = b"", 0, None
    for tick, message in events:
        track += quantity(tick - last)
        last = tick
        if message[0] == 0xf0:
            track, running = track + b"\xf0" + quantity(len(message) - 1) + message[1:], None
        else:
            track, running = track + message[message[0] == running:], message[0]
    track += quantity(0) + b"\xff\x2f\x00"
    header = b"MThd" + bytes([0, 0, 0, 6, 0, 0, 0, 1]) + TICKS.to_bytes(2, "big")
    Path(path).write_bytes(header + b"MTrk" + len(track).to_bytes(4, "big") + track)


def read_file(path):
    """`(tick, message)` of a file; long messages are joined, and events that are no MIDI message left out."""
    data, events = Path(path).read_bytes(), []
    at = data.index(b"MTrk") + 8
    tick, running = 0, 0

    def number():
        nonlocal at
        value = 0
        while True:
            value, at = value << 7 | data[at] & 0x7f, at + 1
            if data[at - 1] < 0x80:
                return value

    while at < len(data):
        tick += number()
        if data[at] >= 0x80:
            running, at = data[at], at + 1
        if running in (0xf0, 0xf7, 0xff):
            kind = data[at] if running == 0xff else None
            at += running == 0xff
            length = number()
            body, at = data[at:at + length], at + length
            if kind == 0x2f:
                break
            if running == 0xf0:
                events.append((tick, b"\xf0" + body))
            elif running == 0xf7:
                began, message = events.pop()
                events.append((began, message + body))
        else:
            length = 1 if running >> 4 in (0xc, 0xd) else 2
            events.append((tick, bytes([running]) + data[at:at + length]))
            at += length
    return events


def clients():
    return Path("/proc/asound/seq/clients").read_text()


class Recorder(Program):
    """An unmodified arecordmidi at a port."""
    COUNT = 0

    def __init__(self, host, port):
        Recorder.COUNT += 1
        self.path, before = f"/tmp/recorded-{Recorder.COUNT}.mid", clients().count('"arecordmidi"')
        super().__init__(host, "arecordmidi", "-p", port, self.path)
        until(lambda: clients().count('"arecordmidi"') > before, lambda: f"arecordmidi runs: {self.lines}")
        # It makes its port and connects it behind that.
        until(lambda: clients().count("arecordmidi") > before and self.is_connected(port), "arecordmidi is connected")

    def is_connected(self, port):
        mine = [part for part in clients().split("\nClient ") if '"arecordmidi"' in part.splitlines()[0]]
        return any(f"{port}[" in part or f"{port}," in part or f"{port}\n" in part for part in mine)

    def result(self):
        self.end()
        return read_file(self.path)


class Dump(Program):
    """An unmodified aseqdump at a port: the messages that a program there gets, as bytes."""
    KINDS = {"Note on": 0x90, "Note off": 0x80, "Control change": 0xb0, "Pitch bend": 0xe0, "Program change": 0xc0}
    LINE = re.compile(r"\s*\d+:\d+\s+(\D+?)\s{2,}(\d+)(.*)")

    def __init__(self, host, port):
        self.messages, self.changes = [], []
        super().__init__(host, "stdbuf", "-oL", "aseqdump", "-p", port)
        self.said("Source")

    def hear(self, line):
        found = self.LINE.match(line)
        if found and found[1] in self.KINDS:
            numbers = [int(number) for number in re.findall(r"-?\d+", found[3])]
            status = self.KINDS[found[1]] | int(found[2])
            if status >> 4 == 0xe:
                numbers = [numbers[0] + 8192 & 0x7f, numbers[0] + 8192 >> 7]
            self.messages.append(bytes([status, *numbers]))
