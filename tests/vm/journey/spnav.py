#!/usr/bin/python3
"""An unmodified user of a 3D mouse: libspnav, as Blender uses it. Prints a line for each event."""
import ctypes, sys


class Motion(ctypes.Structure):
    _fields_ = [("type", ctypes.c_int), ("axes", ctypes.c_int * 6), ("period_ms", ctypes.c_uint),
                ("data", ctypes.POINTER(ctypes.c_int))]


class Button(ctypes.Structure):
    _fields_ = [("type", ctypes.c_int), ("pressed", ctypes.c_int), ("number", ctypes.c_int)]


class Event(ctypes.Union):
    _fields_ = [("type", ctypes.c_int), ("motion", Motion), ("button", Button), ("room", ctypes.c_char * 128)]


if __name__ == "__main__":
    spnav = ctypes.CDLL("libspnav.so.0")
    if spnav.spnav_open() == -1:
        sys.exit("no daemon")
    name = ctypes.create_string_buffer(256)
    spnav.spnav_dev_name(name, len(name))
    print("connected", name.value.decode(), flush=True)
    event = Event()
    while kind := spnav.spnav_wait_event(ctypes.byref(event)):
        if kind == 1:
            print("motion", *event.motion.axes, event.motion.period_ms, flush=True)
        elif kind == 2:
            print("button", event.button.number, event.button.pressed, flush=True)
    print("the daemon is gone", flush=True)
