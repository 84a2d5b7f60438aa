#!/usr/bin/env python3
"""A 3D mouse that draws a circle (docs/reference/formats-motion.md): outboard share exec:./circle.py,frame=declared

Creating the file that the first argument names unplugs it, removing that file plugs it in again."""

import math
import os
import struct
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
import outboard_module

MOTION, SNAPSHOT = 0, 2


class Circle(outboard_module.Device):
    format, summary, period = "motion", "a 3D mouse that draws a circle", 0.01
    step, axes = 0, (0, 0)

    def tick(self):
        if len(sys.argv) > 1 and os.path.exists(sys.argv[1]):
            return self.absent("pulled out")
        self.present()
        self.step += 1
        angle = self.step * 2 * math.pi / 200
        self.axes = round(350 * math.cos(angle)), round(350 * math.sin(angle))
        self.send(struct.pack("<B6iI", MOTION, *self.axes, 0, 0, 0, 0, 10_000))

    def snapshot(self):
        self.send(struct.pack("<B6i", SNAPSHOT, *self.axes, 0, 0, 0, 0))


outboard_module.run(Circle())
