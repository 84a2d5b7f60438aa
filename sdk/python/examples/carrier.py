#!/usr/bin/env python3
"""A transport in UDP datagrams: --transport 'exec:./carrier.py HOST PORT' on both hosts. The device host waits at PORT, and the
application host sends to HOST; each device in use has the port of its number behind PORT."""

import os
import socket
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
import outboard_module


class Datagrams(outboard_module.Transport):
    bytes = 1400

    def start(self):
        host, port = sys.argv[1], int(sys.argv[2]) + self.driver
        self.descriptor = self.socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        if self.end == "dialled":
            self.socket.connect((host, port))
            return
        self.socket.bind(("", port))
        self.wait(self.socket)
        self.socket.connect(self.socket.recvfrom(1, socket.MSG_PEEK)[1])

    def message(self, body):
        try:
            self.socket.send(body)
        except ConnectionRefusedError:
            pass  # the other program has not started yet

    def readable(self):
        try:
            self.send(self.socket.recv(2048))
        except ConnectionRefusedError:
            pass


outboard_module.run(Datagrams())
