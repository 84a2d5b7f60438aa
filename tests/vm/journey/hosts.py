"""The two hosts of lab/in-vm/netns.sh and the programs that run in them."""
import atexit, json, os, re, signal, subprocess, sys, threading
from . import check, until

A, B, PORT = "10.9.0.1", "10.9.0.2", 7845
PROGRAMS = []


def lab(*words):
    """Runs a command of netns.sh, such as `cut` or `link delay 20ms`."""
    subprocess.run([os.environ["LAB"] + "/netns.sh", *map(str, words)], check=True)


class Program:
    """A program that runs on a host; a thread collects its output lines."""

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
        """Handles a line; a subclass may parse it."""

    def runs(self):
        return self.process.poll() is None

    def said(self, words, seconds=300):
        """Waits for a line with these words."""
        def find():
            found = next((line for line in self.lines if words in line), None)
            check(found or self.runs(), f"{' '.join(self.words)} ended before it said {words!r}: {self.lines[-9:]}")
            return found
        return until(find, lambda: f"{self.words} says {words!r}; it said {self.lines[-9:]}", seconds)

    def end(self):
        """Terminates the program and waits for its exit."""
        if self.runs():
            self.process.terminate()
        self.process.wait(300)


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
        """Returns all events of this kind (and device)."""
        return [event for event in self.told if event["event"] == kind and name in (None, event.get("name"))]

    def event(self, kind, name=None, after=0, seconds=300):
        """Waits for more than `after` events of this kind and returns the newest."""
        def find():
            check(self.runs(), f"outboard ended: {self.lines[-9:]}")
            return self.events(kind, name)[after:]
        return until(find, lambda: f"{self.words[1]} tells {kind!r} of {name}; it told {self.lines[-3:]}", seconds)[-1]

    def stats(self, name):
        """Returns the newest statistics of a device."""
        return self.events("stats", name)[-1]["stats"]

    def kill_worker(self):
        """Kills the worker of its only session, and waits for the next worker."""
        workers = lambda: subprocess.run(["pgrep", "-P", str(self.process.pid)], capture_output=True).stdout.split()
        check(len(killed := workers()) == 1, f"its workers are {killed}")
        os.kill(int(killed[0]), signal.SIGKILL)
        until(lambda: workers() not in ([], killed), "the next worker runs")


def explain(*error):
    """Prints the last events of the programs under test after a failure."""
    sys.__excepthook__(*error)
    for program in PROGRAMS:
        if isinstance(program, Outboard):
            told = [event for event in program.told if event["event"] != "stats"]
            print(*program.words[1:3], *told[-8:], *program.events("stats")[-2:], sep="\n  ", flush=True)


sys.excepthook = explain


# Silence timeout of these tests: an emulated processor may pause for longer than the default, 700 ms.
SILENCE = "10s"


def share(devices, more=""):
    """Host A shares devices, `{name: device}`. `more` are further lines of each."""
    file = f"/tmp/{'-'.join(devices)}.toml"
    with open(file, "w") as out:
        for name, device in devices.items():
            out.write(f'[[share]]\ndevice = "{device}"\nname = "{name}"\nlisten = "{A}:{PORT}"\ninsecure = true\n'
                      f'limits = "silence={SILENCE}"\n{more}')
    device_host = Outboard("a", "run", file)
    device_host.event("listening")
    return device_host


def attach(names, transport="tcp", *words):
    """Host B attaches devices. Returns the program and `{name: node}` after their state has arrived."""
    from_a = [f"{transport}://{A}/{name}" for name in names]
    application_host = Outboard("b", "attach", *from_a, "--insecure", "--silence", SILENCE, *words)
    nodes = {name: application_host.event("attached", name)["node"] for name in names}
    for name in names:
        def is_live():
            told = application_host.events("stats", name)
            return told and told[-1]["stats"]["linked"] and told[-1]["stats"]["incoming"]["messages"]
        until(is_live, lambda: f"{name} flows; the application host reported {application_host.lines[-3:]}")
    return application_host, nodes


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
        # Presses and releases, without repeats.
        self.strokes = 0
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
        self.strokes += event[0] == 1 and event[2] != 2

    def keys(self, code=None):
        """Time and value of each press and release; of a key, or with the code in the middle, of all."""
        keys = [event for event in self.events if event[1] == 1 and event[3] != 2]
        if code is None:
            return [(seconds, key, value) for seconds, _, key, value in keys]
        return [(seconds, value) for seconds, _, key, value in keys if key == code]
