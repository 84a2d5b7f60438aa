"""The part of tests/vm/long/service-classes with devices and programs: makes the devices, lets the service begin through the FIFO
that it is given, and uses each device through it."""
import os, pwd, re, subprocess, sys, tempfile, time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from journey import check, say, until
from journey.adapter import Board
from journey.fido import SecurityKey
from journey.hid import DualSense, Raw, copy_of
from journey.kernel import *

SERVICE, ELSEWHERE = "127.0.0.1", "127.0.0.1:7846"
USER = Path(__file__).parent / "spnav.py"
NOTE = "Note on                 0, note 60, velocity 100"


class Here:
    """A program beside the service, and what it said."""

    def __init__(self, *words, **more):
        self.out = tempfile.NamedTemporaryFile("w+b", suffix="-attach.log", dir=".", delete=False)
        self.process = subprocess.Popen(list(map(str, words)), stdout=self.out, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL, **more)
        self.words = words

    def text(self):
        return Path(self.out.name).read_text(errors="replace")

    def said(self, pattern):
        def find():
            found = re.search(pattern, self.text())
            check(found or self.process.poll() is None, f"{self.words} ended: {self.text()[-900:]}")
            return found
        return until(find, lambda: f"{self.words} says {pattern!r}; it said {self.text()[-900:]}")


def attached(name, *words):
    """Attaches a device of the service."""
    return Here("outboard", "attach", f"{SERVICE}/{name}", *words)


def notes(port_in, port_out, what):
    """A note that is played into one port arrives at the other."""
    dump = Here("stdbuf", "-oL", "aseqdump", "-p", port_out)
    dump.said("Source")
    Path("note.mid").write_bytes(bytes.fromhex("4d546864 00000006 0000 0001 0060 4d54726b 0000000c 00 903c64 60 803c40 00 ff2f00"))
    subprocess.run(["aplaymidi", "-d", "0", "-p", port_in, "note.mid"], check=True)
    dump.said(NOTE)
    dump.process.terminate()
    say(f"{what}: a note arrives")


def moves(source, program, what):
    def moved():
        source.write((EV_ABS, 0, -100))
        source.write((EV_ABS, 0, 0))
        time.sleep(0.3)
        return "motion -143 " in program.text()
    until(moved, lambda: f"{what} moves: {program.text()[-300:]}")
    say(f"{what}: it moves")


board = Board()
check(board.node == "/dev/ttyUSB0", f"the board is {board.node}")
pad, key = DualSense(), SecurityKey()
source = Source(Recording("3d-mouse"))
daemon = Here("env", "-C", "/", "spacenavd", "-d", "-v")
until(lambda: os.path.exists("/run/spnav.sock"), "the socket of spacenavd")

main, line = os.openpty()
Path("elsewhere.toml").write_text("".join(
    f'[[share]]\ndevice = "{device}"\nname = "{name}"\nlisten = "{ELSEWHERE}"\nlimits = "silence=10s"\n'
    for name, device in (("key", f"hid:{key.hidraw}"), ("line", f"serial:{os.ttyname(line)}"),
                         ("keys", "midi:Virtual Raw MIDI 0-0:0"), ("puck", "spnav"))))
elsewhere = Here("outboard", "run", "elsewhere.toml")
elsewhere.said("(?s)(key.*line|puck)")
Path(sys.argv[1]).write_text("begin\n")

# The service shares.
offered = lambda: subprocess.run(["outboard", "devices", SERVICE], capture_output=True, text=True).stdout
until(lambda: all(name in offered() for name in ("pad", "piano", "cap", "board")), lambda: f"the service offers {offered()}")
attached("pad", "--as", "hid")
copy = copy_of(DualSense.NAME)
raw = Raw(copy.hidraw, 64)
def pushed():
    pad.send(pad.state((0xe0, 0x80, 0x80, 0x80)))
    return any(report[1] == 0xe0 for report in raw.reports())
until(pushed, "a report of the pad through the service")
say("hid, shared: its report arrives")

at = attached("piano", "--as", "midi").said(r"MIDI port (\d+:\d+)")[1]
notes("14:0", at, "midi, shared")

attached("cap", "--as", "spnav:/tmp/cap.sock").said("cap.sock")
moves(source, Here(sys.executable, USER, env=os.environ | {"SPNAV_SOCKET": "/tmp/cap.sock"}), "spnav, shared")

attached("board", "--as", "pty:/tmp/board").said("/tmp/board")
terminal = os.open("/tmp/board", os.O_RDWR | os.O_NOCTTY)
os.write(terminal, b"to the board\n")
until(lambda: b"to the board" in board.received, lambda: f"bytes at the board: {board.received}")
say("serial, shared: its bytes arrive")

# The service attaches.
copy = copy_of(SecurityKey.NAME)
say(f"hid, attached: {copy.hidraw}")
listed = subprocess.run(["fido2-token", "-I", copy.hidraw], capture_output=True, text=True, timeout=300)
check("aaguid" in listed.stdout, f"fido2-token: {listed}")
say("hid, attached: fido2-token reads the key")

until(lambda: os.path.exists("/run/outboard/line"), "the terminal of the service")
terminal = os.open("/run/outboard/line", os.O_RDWR | os.O_NOCTTY)
os.write(terminal, b"to the line\n")
heard = b""
def hears():
    global heard
    heard += os.read(main, 100)
    return b"to the line" in heard
until(hears, lambda: f"bytes of the line: {heard}")
say("tty, attached: its bytes arrive")

def port():
    clients = subprocess.run(["aconnect", "-l"], capture_output=True, text=True).stdout
    # The client of the service has the name of the device that the other host shares.
    found = re.findall(r"client (\d+): '([^']*)' \[type=user", clients)
    return [number for number, name in found if "Virtual" in name] or None
until(port, lambda: "the service's MIDI client: " + subprocess.run(["aconnect", "-l"], capture_output=True, text=True).stdout)
with open(next(Path("/dev/snd").glob("midiC*D0")), "wb", buffering=0) as cable:
    dump = Here("stdbuf", "-oL", "aseqdump", "-p", f"{port()[0]}:0")
    dump.said("Source")
    def noted():
        cable.write(b"\x90\x3c\x64\x80\x3c\x40")
        time.sleep(0.5)
        return NOTE in dump.text()
    until(noted, lambda: f"a note: {dump.text()[-300:]}")
say("midi, attached: a note arrives")

# A program of any user.
nobody = pwd.getpwnam("nobody")
user = Here(sys.executable, USER, env=os.environ | {"SPNAV_SOCKET": "/run/outboard/spnav.sock"}, user=nobody.pw_uid, group=nobody.pw_gid)
moves(source, user, "spnav, attached, to a program of nobody")
