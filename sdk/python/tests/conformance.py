#!/usr/bin/env python3
"""Uses every frame that a module can send, for the tests in crates/cli/tests/sdk.rs."""

import os
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
import outboard_module


class Conformance(outboard_module.Module):
    """Keeps back messages that begin with "keep" until a flush; drops "drop"; fails at "fail"."""

    kept = []

    def start(self):
        if "greeting" in self.options:
            self.send_to_peer(("%s %s %s" % (self.role, self.format, self.options["greeting"])).encode())

    def message(self, body, created):
        if body == b"drop":
            raise outboard_module.Drop("asked to")
        if body == b"fail":
            raise outboard_module.ModuleError("asked to fail")
        if body.startswith(b"keep"):
            self.kept.append((body, created))
        elif body == b"twice":
            return [body, (body, created + 1)]
        else:
            return body

    def peer(self, control):
        self.send_to_peer(b"got " + control)
        return b"peer " + control, 7

    def gap(self):
        return b"gap", 8

    def flush(self):
        kept, self.kept = self.kept, []
        return kept

    def held(self):
        return bool(self.kept)


outboard_module.run(Conformance())
