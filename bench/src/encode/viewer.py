"""A viewer that stores what it sees: viewer.py SDK FILM LOG

FILM gets the pictures as YUV4MPEG2. LOG has a line for each: its creation time and its arrival, nanoseconds of the boot clock."""

import struct
import sys
import time

sys.path.insert(0, sys.argv[1])
import outboard_module

HEADER_BYTES = 25


class Viewer(outboard_module.Application):
    format = "video"
    film = None

    def start(self):
        self.log = open(sys.argv[3], "w", buffering=1)

    def message(self, body, created):
        arrived = time.clock_gettime_ns(time.CLOCK_BOOTTIME)
        if self.film is None:
            width, height = struct.unpack_from("<2I", body, 5)
            self.film = open(sys.argv[2], "wb")
            self.film.write(b"YUV4MPEG2 W%d H%d F30:1 Ip A1:1 C420jpeg\n" % (width, height))
        self.film.write(b"FRAME\n")
        self.film.write(memoryview(body)[HEADER_BYTES:])
        self.log.write("%d %d\n" % (created, arrived))


outboard_module.run(Viewer())
