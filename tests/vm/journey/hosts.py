"""The two hosts of lab/in-vm/netns.sh and the programs that run in them."""
import atexit, json, os, re, signal, subprocess, sys, threading
from . import check, until

A, B, PORT = "10.9.0.1", "10.9.0.2", 7845
PROGRAMS = []


def lab(*words):
    """A word of netns.sh, such as `cut` or `link delay 20ms`."""
    subprocess.run([os.environ["LAB"] + "/netns.sh", *map(str, words)], check=True)


class Program:
    """A program that runs in a host; its lines are gathered while it does."""

    def __init__(self, host, *words, **streams):
        self.words = list(map(str, words))
        self.lines = []
        command = ["ip", "netns", "exec", host, *self.words]
        streams = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.STDOUT} | streams
        self.process = subprocess.Popen(command, **streams)
        PROGRAMS.append(self)
        if self.process.stdout:
            threading.Thread(target=self.gather, daemon=True).start()

    def gather(self):
        for line in self.process.stdout:
            line = line.decode(errors="replace").rstrip("\n")
            self.hear(line)
            self.lines.append(line)

    def hear(self, line):
        """A program of a kind that is understood takes the line in here."""

    def runs(self):
        return self.process.poll() is None

    def said(self, words, seconds=60):
        """Waits for a line with these words."""
        def find():
            found = next((line for line in self.lines if words in line), None)
            check(found or self.runs(), f"{' '.join(self.words)} ended before it said {words!r}: {self.lines[-9:]}")
            return found
        return until(find, lambda: f"{self.words} says {words!r}; it said {self.lines[-9:]}", seconds)

    def end(self):
        """Tells it to end, and waits for that."""
        if self.runs():
            self.process.terminate()
        self.process.wait(20)


@atexit.register
def end_all():
    for program in PROGRAMS:
        if program.runs():
            program.process.kill()


class Outboard(Program):
    """The program under test; its lines are JSON objects."""

    def __init__(self, host, command, *words, **streams):
        self.told = []
        super().__init__(host, os.environ["OUTBOARD"], command, *words, "--json", "--stats", **streams)

    def hear(self, line):
        if line.startswith("{"):
            self.told.append(json.loads(line))

    def events(self, kind, name=None):
        """What it told of this kind (and device) so far."""
        return [event for event in self.told if event["event"] == kind and name in (None, event.get("name"))]

    def event(self, kind, name=None, after=0, seconds=60):
        """Waits for it to tell more than `after` of this kind; the newest."""
        def find():
            check(self.runs(), f"outboard ended: {self.lines[-9:]}")
            return self.events(kind, name)[after:]
        return until(find, lambda: f"{self.words[1]} tells {kind!r} of {name}; it told {self.lines[-3:]}", seconds)[-1]

    def stats(self, name):
        """Its newest figures of a device."""
        return self.events("stats", name)[-1]["stats"]

    def kill_worker(self):
        """Kills the process that it has for its only session, and waits until another goes on."""
        workers = lambda: subprocess.run(["pgrep", "-P", str(self.process.pid)], capture_output=True).stdout.split()
        check(len(killed := workers()) == 1, f"its workers are {killed}")
        os.kill(int(killed[0]), signal.SIGKILL)
        until(lambda: workers() not in ([], killed), "another worker goes on")


def explain(*error):
    """After a failure, what the programs under test told last."""
    sys.__excepthook__(*error)
    for program in PROGRAMS:
        if isinstance(program, Outboard):
            told = [event for event in program.told if event["event"] != "stats"]
            print(*program.words[1:3], *told[-8:], *program.events("stats")[-2:], sep="\n  ", flush=True)


sys.excepthook = explain


def share(devices, silence="700ms"):
    """Host A shares devices, `{name: device}`; 700 ms is what it takes for silence by itself."""
    file = f"/tmp/{'-'.join(devices)}.toml"
    with open(file, "w") as out:
        for name, device in devices.items():
            out.write(f'[[share]]\ndevice = "{device}"\nname = "{name}"\nlisten = "{A}:{PORT}"\ninsecure = true\n'
                      f'limits = "silence={silence}"\n')
    sharer = Outboard("a", "run", file)
    sharer.event("listening")
    return sharer


def attach(names, transport="tcp", *words):
    """Host B attaches devices; returns the program and `{name: node}`, once their state has come."""
    attacher = Outboard("b", "attach", *(f"{transport}://{A}/{name}" for name in names), "--insecure", *words)
    nodes = {name: attacher.event("attached", name)["node"] for name in names}
    for name in names:
        def is_live():
            told = attacher.events("stats", name)
            return told and told[-1]["stats"]["linked"] and told[-1]["stats"]["incoming"]["messages"]
        until(is_live, lambda: f"{name} flows; the attacher told {attacher.lines[-3:]}", 60)
    return attacher, nodes


def event_node(place):
    """`/dev/input/eventN` out of what attach tells."""
    found = re.search(r"/dev/input/event\d+", place)
    check(found, f"attach names no event node: {place!r}")
    return found[0]


class Evtest(Program):
    """An unmodified `evtest` on a node of host B."""
    LINE = re.compile(r"Event: time (\d+\.\d+), (?:type (\d+) \(\S+\), code (\d+) \(.*\), value (-?\w+)|-+ (SYN_\w+) -+)")

    def __init__(self, node):
        # Seconds since the epoch, type, code, value of each event.
        self.events = []
        super().__init__("b", "stdbuf", "-oL", "evtest", node)
        self.said("Testing")

    def hear(self, line):
        if not line.startswith("Event: "):
            return
        found = self.LINE.match(line)
        if not found or found[5] not in (None, "SYN_REPORT"):
            self.events.append((0.0, line))
            return
        seconds, kind, code, value, report = found.groups()
        # The values of MSC_RAW and MSC_SCAN are the only ones in hexadecimal.
        base = 16 if (kind, code) in (("4", "3"), ("4", "4")) else 10
        event = (0, 0, 0) if report else (int(kind), int(code), int(value, base))
        self.events.append((float(seconds), *event))

    def keys(self, code=None):
        """Time and value of each press and release; of a key, or with the code in the middle, of all."""
        keys = [event for event in self.events if event[1] == 1 and event[3] != 2]
        if code is None:
            return [(seconds, key, value) for seconds, _, key, value in keys]
        return [(seconds, value) for seconds, _, key, value in keys if key == code]
