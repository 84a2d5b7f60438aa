#!/usr/bin/env python3
"""Finds faces with OpenCV and draws a box around each (docs/reference/formats-video.md): exec(source="./faces.py", makes=same)

Takes pictures of the layouts GREY, RGB3 and XR24; others pass unchanged."""

import os
import struct
import sys

import cv2
import numpy

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
import outboard_module

HEADER = struct.Struct("<B4s5I")
FRAME, BYTES, GREYS = 0, {b"GREY": 1, b"RGB3": 3, b"XR24": 4}, {3: cv2.COLOR_RGB2GRAY, 4: cv2.COLOR_BGRA2GRAY}
FINDER = cv2.CascadeClassifier(cv2.data.haarcascades + "haarcascade_frontalface_default.xml")


def draw(body, created):
    if len(body) < HEADER.size:
        raise outboard_module.Drop("no video: shorter than its header")
    kind, pixels, width, height, stride, _, _ = HEADER.unpack_from(body)
    depth = BYTES.get(pixels)
    if kind != FRAME or not depth or stride < width * depth or len(body) < HEADER.size + stride * height:
        return body
    made = bytearray(body)
    rows = numpy.frombuffer(made, numpy.uint8, stride * height, HEADER.size).reshape(height, stride)
    picture = numpy.ascontiguousarray(rows[:, : width * depth]).reshape(height, width, depth)
    grey = picture[:, :, 0] if depth == 1 else cv2.cvtColor(picture, GREYS[depth])
    for x, y, across, down in FINDER.detectMultiScale(grey, 1.2, 5):
        cv2.rectangle(picture, (int(x), int(y)), (int(x + across), int(y + down)), (255,) * depth, 2)
    rows[:, : width * depth] = picture.reshape(height, width * depth)
    return bytes(made)


outboard_module.run(draw)
