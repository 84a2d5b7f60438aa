#!/usr/bin/env python3
"""Shows the negative of a video flow (docs/reference/formats-video.md): exec(source="./invert.py")."""

import os
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
import outboard_module

NEGATIVE = bytes(255 - value for value in range(256))
HEADER_BYTES, FRAME, PACKED = 25, 0, (b"GREY", b"RGB3", b"XR24")


def invert(body, created):
    if len(body) < HEADER_BYTES:
        raise outboard_module.Drop("no video: shorter than its header")
    if body[0] != FRAME or body[1:5] not in PACKED:
        return body
    return body[:HEADER_BYTES] + body[HEADER_BYTES:].translate(NEGATIVE)


outboard_module.run(invert)
