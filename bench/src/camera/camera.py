"""A camera that shows a film at 30 pictures a second: camera.py SDK FILM LOG

The film is YUV4MPEG2 with planes of 4:2:0; it repeats. LOG has a line for each picture: its number in the film and its
creation time, nanoseconds of the boot clock."""

import os
import struct
import sys
import time

sys.path.insert(0, sys.argv[1])
import outboard_module

RATE_HZ = 30
FRAME = 0


class Camera(outboard_module.Device):
    format, flow_class, summary, period = "video", "timely", "a film as a camera", 1 / RATE_HZ
    number = 0

    def start(self):
        with open(sys.argv[2], "rb") as film:
            head = film.readline()
            sides = {word[:1]: int(word[1:]) for word in head.split()[1:] if word[:1] in (b"W", b"H")}
            width, height = sides[b"W"], sides[b"H"]
            bytes_each = width * height + 2 * ((width + 1) // 2) * ((height + 1) // 2)
            self.pictures = []
            while film.readline():
                self.pictures.append(film.read(bytes_each))
        self.header = struct.pack("<B4s5I", FRAME, b"YU12", width, height, width, RATE_HZ, 1)
        self.log = open(sys.argv[3], "w", buffering=1)

    def tick(self):
        number, self.number = self.number, (self.number + 1) % len(self.pictures)
        created = time.clock_gettime_ns(time.CLOCK_BOOTTIME)
        self.log.write("%d %d\n" % (number, created))
        self.send(self.header + self.pictures[number], created)


outboard_module.run(Camera())
