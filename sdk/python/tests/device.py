#!/usr/bin/env python3
"""Uses everything that a device can do, for the tests in crates/cli/tests/sdk.rs."""

import os
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
import outboard_module


class Conformance(outboard_module.Device):
    """Returns its messages, but does what the words "absent", "present", "end" and "fail" say."""

    format, back, summary, flow_class = "motion", "bytes", "conformance", "timely"

    def start(self):
        self.send(b"started", 1)

    def message(self, body, created):
        if body == b"absent":
            self.absent("asked to")
        elif body == b"present":
            self.present()
        elif body == b"end":
            self.send(b"last", 2)
            self.end()
        elif body == b"fail":
            raise outboard_module.ModuleError("asked to fail")
        else:
            self.send(body, created)

    def neutral(self):
        self.send(b"neutral", 3)

    def snapshot(self):
        self.send(b"snapshot", 4)


outboard_module.run(Conformance())
