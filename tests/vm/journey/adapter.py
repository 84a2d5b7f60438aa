"""A real serial port for host A: a USB adapter that this test emulates on the kernel's virtual host controller (USB/IP), with a board
behind it. Written apart from Outboard's own adapter, so that both do not share a mistake."""
import glob, os, select, socket, struct, threading, time
from . import Differs, until

VHCI = "/sys/devices/platform/vhci_hcd.0"
SERIAL = "TESTBOARD"
CTS, DSR, RI, DCD = 0x10, 0x20, 0x40, 0x80
DEVICE = struct.pack("<BBHBBBBHHHBBBB", 18, 1, 0x0110, 0, 0, 0, 8, 0x0403, 0x6001, 0x0400, 1, 2, 3, 1)
CONFIGURATION = (struct.pack("<BBHBBBBB", 9, 2, 32, 1, 1, 0, 0x80, 45) + struct.pack("<BBBBBBBBB", 9, 4, 0, 0, 2, 255, 255, 255, 0)
                 + struct.pack("<BBBBHB", 7, 5, 0x81, 2, 64, 0) + struct.pack("<BBBBHB", 7, 5, 2, 2, 64, 0))


def string(text):
    data = text.encode("utf-16le")
    return bytes([len(data) + 2, 3]) + data


STRINGS = {0: bytes([4, 3, 9, 4]), 1: string("Lab"), 2: string("FT232BM board"), 3: string(SERIAL)}


def divisor(baud):
    """The divisor that ftdi_sio asks for."""
    eighths = (48000000 + baud) // (2 * baud)
    return eighths >> 3 | [0, 3, 2, 4, 1, 5, 6, 7][eighths & 7] << 14


class Board:
    """The adapter and what the board at its other end sees and does."""

    def __init__(self):
        # (seconds, DTR, RTS, break) after each change.
        self.changes = []
        self.received, self.format = b"", None
        self.inputs, self.out = 0, []
        self.lock = threading.Lock()
        self.plug()

    def plug(self):
        self.socket, kernel = socket.socketpair()
        port = next(line.split()[1] for line in open(f"{VHCI}/status") if line.startswith("hs") and line.split()[2] == "004")
        with open(f"{VHCI}/attach", "w") as attach:
            attach.write(f"{int(port)} {kernel.fileno()} 65538 2")
        kernel.close()
        self.wake, self.woken = os.pipe()
        self.reads, self.is_fresh, self.divisor = [], True, None
        self.dtr = self.rts = self.breaks = False
        self.thread = threading.Thread(target=self.serve, daemon=True)
        self.thread.start()
        self.node = until(self.find, "the kernel finds the board's adapter")

    @staticmethod
    def find():
        for port in glob.glob("/sys/bus/usb-serial/devices/ttyUSB*"):
            device = os.path.dirname(os.path.dirname(os.path.realpath(port)))
            node = "/dev/" + os.path.basename(port)
            if open(device + "/serial").read().strip() == SERIAL and os.path.exists(node):
                return node

    def unplug(self):
        os.close(self.woken)
        self.thread.join(60)
        os.close(self.wake)

    def serve(self):
        try:
            while True:
                ready, _, _ = select.select([self.socket, self.wake], [], [])
                if self.wake in ready and not os.read(self.wake, 100):
                    return
                if self.socket in ready:
                    self.packet()
                self.answer_reads()
        except ConnectionError:
            pass
        finally:
            self.socket.close()

    def exactly(self, count):
        data = self.socket.recv(count, socket.MSG_WAITALL) if count else b""
        if len(data) < count:
            raise ConnectionError
        return data

    def packet(self):
        command, number, _, is_in, endpoint, flags, length = struct.unpack(">7I", (header := self.exactly(48))[:28])
        if command == 2:
            was_pending = any(number == flags for number, _ in self.reads)
            self.reads = [read for read in self.reads if read[0] != flags]
            self.socket.sendall(struct.pack(">IIIIIi", 4, number, 0, 0, 0, -104 if was_pending else 0) + bytes(24))
            return
        data = b"" if is_in else self.exactly(length)
        if endpoint == 1:
            self.reads.append((number, length))
        elif endpoint == 2:
            self.received += data
            self.reply(number, 0, len(data))
        else:
            reply = self.control(*struct.unpack("<BBHHH", header[40:]))
            if reply is None:
                self.reply(number, -32, 0)
            elif is_in:
                self.reply(number, 0, len(reply), reply)
            else:
                self.reply(number, 0, length)

    def reply(self, number, status, length, data=b""):
        self.socket.sendall(struct.pack(">IIIIIiI", 3, number, 0, 0, 0, status, length) + bytes(20) + data)

    def control(self, kind, request, value, index, length):
        if (kind, request) == (0x80, 6):
            found = {1: DEVICE, 2: CONFIGURATION, 3: STRINGS.get(value & 255)}.get(value >> 8)
            return found and found[:length]
        if kind == 0xc0:
            return bytes([self.inputs | 1, 0x60])[:length] if request == 5 else bytes(length)
        if kind == 0x40:
            self.vendor(request, value, index)
        return b"" if kind < 0x80 else bytes(length)

    def vendor(self, request, value, index):
        before = self.dtr, self.rts, self.breaks
        if request == 1:
            self.dtr = bool(value & 1) if value & 0x100 else self.dtr
            self.rts = bool(value & 2) if value & 0x200 else self.rts
        elif request == 3:
            self.divisor = value | (index & 1) << 16
        elif request == 4:
            self.breaks, self.format = bool(value & 0x4000), value & 0x3fff
        if before != (self.dtr, self.rts, self.breaks):
            self.changes.append((time.monotonic(), self.dtr, self.rts, self.breaks))

    def answer_reads(self):
        while self.reads:
            with self.lock:
                if self.out:
                    fault, data = self.out.pop(0)
                elif self.is_fresh:
                    fault, data = 0, b""
                else:
                    return
                self.is_fresh = False
            number, _ = self.reads.pop(0)
            packet = bytes([self.inputs | 1, 0x60 | fault]) + data
            self.reply(number, 0, len(packet), packet)

    def poke(self):
        os.write(self.woken, b"x")

    def send(self, data, fault=0):
        """The board sends bytes: with a wrong parity bit (4) or as a break (0x10)."""
        with self.lock:
            self.out += [(fault, data[at:at + 62]) for at in range(0, len(data), 62)]
        self.poke()

    def set(self, inputs):
        """The board sets its lines."""
        with self.lock:
            self.inputs, self.is_fresh = inputs, True
        self.poke()

    def lines(self):
        return self.dtr, self.rts
