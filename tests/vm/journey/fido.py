"""A FIDO key as its firmware is: CTAP 2.0 over HID reports (Client to Authenticator Protocol, 6 and 8), as far as libfido2 asks for it."""
import hashlib, os, struct, threading, time
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from .hid import Device

DESCRIPTOR = bytes.fromhex("06 d0 f1 09 01 a1 01 09 20 15 00 26 ff 00 75 08 95 40 81 02 09 21 15 00 26 ff 00 75 08 95 40 91 02 c0")
PING, INIT, CBOR, CANCEL, KEEPALIVE, ERROR = 0x01, 0x06, 0x10, 0x11, 0x3b, 0x3f
MAKE_CREDENTIAL, GET_ASSERTION, GET_INFO = 1, 2, 4
BROADCAST, REPORT_BYTES = 0xffffffff, 64
AAGUID = b"outboard journey"
OK, INVALID_COMMAND, NO_CREDENTIALS = b"\x00", b"\x01", b"\x2e"


def encode(value):
    """CBOR."""
    def head(kind, number):
        for size, form in ((24, None), (1 << 8, ">B"), (1 << 16, ">H"), (1 << 32, ">I")):
            if number < size:
                return bytes([kind << 5 | number]) if form is None else bytes(
                    [kind << 5 | 24 + (">B", ">H", ">I").index(form)]) + struct.pack(form, number)
    if isinstance(value, bool):
        return b"\xf5" if value else b"\xf4"
    if isinstance(value, int):
        return head(0, value) if value >= 0 else head(1, -1 - value)
    if isinstance(value, bytes):
        return head(2, len(value)) + value
    if isinstance(value, str):
        return head(3, len(value.encode())) + value.encode()
    if isinstance(value, list):
        return head(4, len(value)) + b"".join(map(encode, value))
    return head(5, len(value)) + b"".join(encode(key) + encode(item) for key, item in value.items())


def decode(data):
    """A value, and the bytes behind it."""
    kind, number, data = data[0] >> 5, data[0] & 31, data[1:]
    if kind == 7:
        return number == 21, data
    if number >= 24:
        size = 1 << number - 24
        number, data = int.from_bytes(data[:size], "big"), data[size:]
    if kind < 2:
        return number if kind == 0 else -1 - number, data
    if kind < 4:
        return (data[:number] if kind == 2 else data[:number].decode()), data[number:]
    items = []
    for _ in range(number * (1 if kind == 4 else 2)):
        item, data = decode(data)
        items.append(item)
    return (items if kind == 4 else dict(zip(items[::2], items[1::2]))), data


class SecurityKey(Device):
    """A key with one channel after the other. It waits for a touch before it signs."""
    NAME = "Journey FIDO Key"

    def __init__(self):
        self.channels, self.messages, self.credentials, self.counter = 0, {}, {}, 0
        self.touched, self.waits, self.packets = threading.Event(), threading.Event(), 0
        self.touched.set()
        super().__init__(self.NAME, (0x1209, 0xf1d0, 0x111), DESCRIPTOR)

    def on_output(self, report):
        # Without numbers of reports, a zero is in the place of the number.
        packet = report[-REPORT_BYTES:]
        self.packets += 1
        channel, command = struct.unpack_from(">IB", packet)
        if command & 0x80:
            size, = struct.unpack_from(">H", packet, 5)
            self.messages[channel] = [command & 0x7f, size, packet[7:]]
        elif channel in self.messages:
            self.messages[channel][2] += packet[5:]
        else:
            return
        command, size, data = self.messages[channel]
        if len(data) >= size:
            del self.messages[channel]
            threading.Thread(target=self.handle, args=(channel, command, data[:size]), daemon=True).start()

    def reply(self, channel, command, data):
        first, rest = data[:57], data[57:]
        self.send((struct.pack(">IBH", channel, 0x80 | command, len(data)) + first).ljust(REPORT_BYTES, b"\0"))
        for sequence, at in enumerate(range(0, len(rest), 59)):
            self.send((struct.pack(">IB", channel, sequence) + rest[at:at + 59]).ljust(REPORT_BYTES, b"\0"))

    def handle(self, channel, command, data):
        if command == INIT:
            self.channels += 1
            # It knows CBOR, and no messages of U2F.
            self.reply(channel, INIT, data[:8] + struct.pack(">IBBBBB", self.channels, 2, 1, 0, 0, 0x04 | 0x08))
        elif command == PING:
            self.reply(channel, PING, data)
        elif command == CBOR:
            self.reply(channel, CBOR, self.answer(channel, data[0], decode(data[1:])[0] if len(data) > 1 else {}))
        elif command != CANCEL:
            self.reply(channel, ERROR, INVALID_COMMAND)

    def wait_for_touch(self, channel):
        self.waits.set()
        while not self.touched.wait(0.1):
            self.reply(channel, KEEPALIVE, b"\x02")
        self.waits.clear()

    def answer(self, channel, command, asked):
        if command == GET_INFO:
            return OK + encode({1: ["FIDO_2_0"], 3: AAGUID, 4: {"rk": False, "up": True}, 5: 1200})
        if command == MAKE_CREDENTIAL:
            self.wait_for_touch(channel)
            private, identity = ec.generate_private_key(ec.SECP256R1()), os.urandom(200)
            self.credentials[identity] = private
            place = private.public_key().public_numbers()
            key = {1: 2, 3: -7, -1: 1, -2: place.x.to_bytes(32, "big"), -3: place.y.to_bytes(32, "big")}
            attested = AAGUID + struct.pack(">H", len(identity)) + identity + encode(key)
            data = self.data(asked[2]["id"], 0x41) + attested
            statement = {"alg": -7, "sig": private.sign(data + asked[1], ec.ECDSA(hashes.SHA256()))}
            return OK + encode({1: "packed", 2: data, 3: statement})
        if command == GET_ASSERTION:
            known = [entry["id"] for entry in asked.get(3, []) if entry["id"] in self.credentials]
            if not known:
                return NO_CREDENTIALS
            if asked.get(5, {}).get("up", True):
                self.wait_for_touch(channel)
            data = self.data(asked[1], 0x01)
            signature = self.credentials[known[0]].sign(data + asked[2], ec.ECDSA(hashes.SHA256()))
            return OK + encode({1: {"id": known[0], "type": "public-key"}, 2: data, 3: signature})
        return INVALID_COMMAND

    def data(self, party, flags):
        """The data that is signed: the relying party, flags and the counter."""
        self.counter += 1
        return hashlib.sha256(party.encode()).digest() + struct.pack(">BI", flags, self.counter)
