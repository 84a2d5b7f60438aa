#!/usr/bin/env python3
"""A transport over one TCP connection, for the tests in crates/transports/src/exec/tests.rs: carrier.py HOST PORT"""

import os
import socket
import struct
import sys
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
import outboard_module


def small(stream):
    """Both directions of a busy connection are full soon."""
    for option in socket.SO_SNDBUF, socket.SO_RCVBUF:
        stream.setsockopt(socket.SOL_SOCKET, option, 32 << 10)
    stream.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return stream


class Stream(outboard_module.Transport):
    reliable = ordered = True
    arrived = b""

    def start(self):
        address = sys.argv[1], int(sys.argv[2]) + self.driver
        if self.end == "accepted":
            listener = socket.create_server(address)
            small(listener)
            self.wait(listener)
            self.descriptor = listener.accept()[0]
        while self.descriptor is None:
            try:
                self.descriptor = small(socket.create_connection(address))
            except ConnectionRefusedError:
                time.sleep(0.05)

    def message(self, body):
        self.carry_all(struct.pack("<I", len(body)) + body)

    def readable(self):
        piece = self.descriptor.recv(1 << 18)
        if not piece:
            raise outboard_module.Closed("the other program has closed the connection")
        self.arrived += piece
        while len(self.arrived) >= 4 and len(self.arrived) >= 4 + struct.unpack_from("<I", self.arrived)[0]:
            end = 4 + struct.unpack_from("<I", self.arrived)[0]
            self.send(self.arrived[4:end])
            self.arrived = self.arrived[end:]


outboard_module.run(Stream())
