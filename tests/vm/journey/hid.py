"""HID devices as their firmware is: devices made with /dev/uhid that answer, and their nodes.

Numbers and structures are those of linux/uhid.h and linux/hidraw.h; those of the DualSense are in drivers/hid/hid-playstation.c.
"""
import atexit, fcntl, glob, os, select, struct, subprocess, threading, time
from pathlib import Path
from . import check, until
from .kernel import number

DESTROY, START, OPEN, CLOSE, OUTPUT, GET, GET_REPLY, CREATE2, INPUT2, SET, SET_REPLY = 1, 2, 4, 5, 6, 9, 10, 11, 12, 13, 14
EVENT_BYTES, DATA_BYTES, EIO = 4376, 4096, 5
BUS_USB = 3
MADE = "/sys/devices/virtual/misc/uhid"


def made():
    """The devices on this kernel that programs made: the lines of `uevent` of each, by its directory."""
    found = {}
    for path in glob.glob(f"{MADE}/*/uevent"):
        try:
            found[os.path.dirname(path)] = dict(line.split("=", 1) for line in Path(path).read_text().splitlines())
        except OSError:
            pass
    return found


class Made:
    """A HID device as programs find it in sysfs."""

    def __init__(self, path):
        self.path = path
        self.hidraw = "/dev/" + os.path.basename(until(lambda: glob.glob(f"{path}/hidraw/hidraw*"), f"{path} has a hidraw")[0])
        until(lambda: os.path.exists(self.hidraw), f"{self.hidraw} exists")

    def driver(self):
        """The driver that took it."""
        link = f"{self.path}/driver"
        return os.path.basename(os.readlink(link)) if os.path.islink(link) else None

    def event_nodes(self):
        """Its event nodes by the name of the input device."""
        return {Path(name).read_text().strip(): "/dev/input/" + os.path.basename(glob.glob(os.path.dirname(name) + "/event*")[0])
                for name in glob.glob(f"{self.path}/input/input*/name") if glob.glob(os.path.dirname(name) + "/event*")}


def copy_of(name):
    """The device on this kernel that Outboard made of the one with this name."""
    def find():
        return [path for path, told in made().items()
                if told["HID_NAME"] == name and told["HID_PHYS"].startswith("outboard/")]
    return Made(until(find, lambda: f"a copy of {name}; there are {made()}")[0])


class Device:
    """A device: its descriptor, and an answer for each feature report."""

    def __init__(self, name, ids, descriptor, features=(), uniq=""):
        self.name, self.ids, self.descriptor, self.features, self.uniq = name, ids, descriptor, dict(features), uniq
        # The number and the time of each report that was asked for; output reports; feature reports that were set.
        self.asked, self.outputs, self.were_set = [], [], []
        self.plug_in()

    def plug_in(self):
        before = set(made())
        self.fd = os.open("/dev/uhid", os.O_RDWR)
        vendor, product, version = self.ids
        self.write(CREATE2, struct.pack("=128s64s64sHHIIII", self.name.encode(), f"journey/{self.name}".encode(), self.uniq.encode(),
                                        len(self.descriptor), BUS_USB, vendor, product, version, 0) + self.descriptor)
        threading.Thread(target=self.serve, args=(self.fd,), daemon=True).start()
        self.made = Made(until(lambda: set(made()) - before, f"{self.name} is made").pop())
        self.hidraw = self.made.hidraw

    def unplug(self):
        self.write(DESTROY, b"")
        os.close(self.fd)

    def write(self, kind, data):
        os.write(self.fd, struct.pack("=I", kind) + data)

    def send(self, report):
        """An input report."""
        self.write(INPUT2, struct.pack("=H", len(report)) + report)

    def serve(self, fd):
        while True:
            try:
                if not select.select([fd], [], [], 1)[0]:
                    continue
                event = os.read(fd, EVENT_BYTES)
            except (OSError, ValueError):
                return
            kind, data = struct.unpack_from("=I", event)[0], event[4:]
            if kind == OUTPUT:
                size, = struct.unpack_from("=H", data, DATA_BYTES)
                self.outputs.append((time.monotonic(), data[:size]))
                self.on_output(data[:size])
            elif kind == GET:
                request, report, _ = struct.unpack_from("=IBB", data)
                self.asked.append((time.monotonic(), report))
                answer = self.features.get(report)
                error, answer = (0, answer) if answer else (EIO, b"")
                self.write(GET_REPLY, struct.pack("=IHH", request, error, len(answer)) + answer)
            elif kind == SET:
                request, report, _, size = struct.unpack_from("=IBBH", data)
                self.were_set.append((report, data[8:8 + size]))
                self.write(SET_REPLY, struct.pack("=IH", request, 0))

    def on_output(self, report):
        """A subclass may answer an output report."""


class Raw:
    """A `hidraw` node, opened as a program does. `cat` reads its reports, which all have the same length."""

    def __init__(self, path, report_bytes):
        self.fd, self.report_bytes = os.open(path, os.O_RDWR), report_bytes
        self.file = f"/tmp/{os.path.basename(path)}"
        with open(self.file, "wb") as out:
            self.cat = subprocess.Popen(["cat", path], stdout=out)
        atexit.register(self.cat.kill)

    def reports(self):
        data = Path(self.file).read_bytes()
        return [data[at:at + self.report_bytes] for at in range(0, len(data), self.report_bytes)]

    def feature(self, report, size):
        """HIDIOCGFEATURE: the report, or the error, and the seconds that it took."""
        began, data = time.monotonic(), bytearray([report] + [0] * (size - 1))
        try:
            data = bytes(data[:fcntl.ioctl(self.fd, number(3, "H", 7, size), data)])
        except OSError as error:
            data = error
        return data, time.monotonic() - began

    def set_feature(self, data):
        """HIDIOCSFEATURE."""
        data = bytearray(data)
        fcntl.ioctl(self.fd, number(3, "H", 6, len(data)), data)


# The report descriptor of a DualSense by USB.
DUALSENSE = bytes.fromhex("""
05 01 09 05 a1 01 85 01 09 30 09 31 09 32 09 35 09 33 09 34 15 00 26 ff 00 75 08 95 06 81 02 06 00 ff 09 20 95 01 81 02
05 01 09 39 15 00 25 07 35 00 46 3b 01 65 14 75 04 95 01 81 42 65 00 05 09 19 01 29 0f 15 00 25 01 75 01 95 0f 81 02
06 00 ff 09 21 95 0d 81 02 06 00 ff 09 22 15 00 26 ff 00 75 08 95 34 81 02 85 02 09 23 95 2f 91 02
85 05 09 33 95 28 b1 02 85 08 09 34 95 2f b1 02 85 09 09 24 95 13 b1 02 85 0a 09 25 95 1a b1 02 85 20 09 26 95 3f b1 02
85 21 09 27 95 04 b1 02 85 22 09 40 95 3f b1 02 85 80 09 28 95 3f b1 02 85 81 09 29 95 3f b1 02 85 82 09 2a 95 09 b1 02
85 83 09 2b 95 3f b1 02 85 84 09 2c 95 3f b1 02 85 85 09 2d 95 02 b1 02 85 a0 09 2e 95 01 b1 02 85 e0 09 2f 95 3f b1 02
85 f0 09 30 95 3f b1 02 85 f1 09 31 95 3f b1 02 85 f2 09 32 95 0f b1 02 85 f4 09 35 95 3f b1 02 85 f5 09 36 95 03 b1 02 c0
""")
CALIBRATION, PAIRING, FIRMWARE, OTHER = 0x05, 0x09, 0x20, 0x22
ADDRESS = bytes.fromhex("66554433221a")


def dualsense_features():
    """The feature reports of a DualSense. Its calibration leaves the raw values as they are, apart from their units."""
    gyro = [0, 0, 0, 8192, -8192, 8192, -8192, 8192, -8192, 540, 540]
    acceleration = [8192, -8192] * 3
    calibration = struct.pack("<B17h", CALIBRATION, *gyro, *acceleration).ljust(41, b"\0")
    firmware = bytearray([FIRMWARE] + 63 * [0])
    firmware[24:28], firmware[28:32] = struct.pack("<I", 0x617), struct.pack("<I", 0x1000004)
    return {CALIBRATION: calibration, PAIRING: (bytes([PAIRING]) + ADDRESS).ljust(20, b"\0"), FIRMWARE: bytes(firmware),
            OTHER: bytes([OTHER]) + bytes(range(63))}


class DualSense(Device):
    """A DualSense by USB that hid-generic has taken: the driver refuses one address twice in one kernel."""
    SPECIAL = Path("/sys/module/hid/parameters/ignore_special_drivers")
    NAME = "Sony Interactive Entertainment Wireless Controller"

    def __init__(self):
        self.count, self.time = 0, 1000
        super().__init__(self.NAME, (0x54c, 0xce6, 0x111), DUALSENSE, dualsense_features())

    def plug_in(self):
        self.SPECIAL.write_text("1")
        super().plug_in()
        until(lambda: self.made.driver(), "a driver took the DualSense of A")
        self.SPECIAL.write_text("0")
        check(self.made.driver() == "hid-generic", f"the driver at A is {self.made.driver()}")

    def state(self, sticks=(0x80,) * 4, triggers=(0, 0), buttons=(8, 0, 0), gyro=(0, 0, 0), finger=None):
        """The next input report."""
        self.count, self.time = (self.count + 1) % 256, self.time + 12000
        report = bytearray(64)
        report[0], report[1:5], report[5:7], report[7] = 1, bytes(sticks), bytes(triggers), self.count
        report[8:11] = bytes(buttons)
        report[16:28] = struct.pack("<3h3h", *gyro, 0, 8192, 0)
        report[28:32] = struct.pack("<I", self.time)
        report[33], report[37], report[53] = 0x80, 0x80, 0x08
        if finger:
            x, y = finger
            report[33:37] = bytes([1, x & 0xff, x >> 8 | (y & 0xf) << 4, y >> 4])
        return bytes(report)
