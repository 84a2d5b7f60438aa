#!/usr/bin/python3
"""systemd-logind as far as a suspend goes (org.freedesktop.login1(5)), on a system bus of its own: announces a suspend and its end at
each line of input, and prints `locked` and `unlocked` as the lock of a program comes and goes. It suspends nothing."""
import os, sys, threading, gi
gi.require_version("Gio", "2.0")
from gi.repository import Gio, GLib

NAME, PATH, MANAGER = "org.freedesktop.login1", "/org/freedesktop/login1", "org.freedesktop.login1.Manager"
INTERFACE = f"""<node><interface name="{MANAGER}">
  <method name="Inhibit"><arg type="s" direction="in"/><arg type="s" direction="in"/><arg type="s" direction="in"/>
    <arg type="s" direction="in"/><arg type="h" direction="out"/></method>
  <signal name="PrepareForSleep"><arg type="b"/></signal></interface></node>"""


def say(word):
    print(word, flush=True)


def handle_call(bus, sender, path, interface, method, words, invocation):
    what, _who, _why, mode = words.unpack()
    assert (what, mode) == ("sleep", "delay"), words
    ours, theirs = os.pipe()
    handles = Gio.UnixFDList.new_from_array([theirs])
    invocation.return_value_with_unix_fd_list(GLib.Variant("(h)", (0,)), handles)
    say("locked")
    threading.Thread(target=lambda: (os.read(ours, 1), say("unlocked")), daemon=True).start()


def announce(bus):
    is_before = True
    for _ in sys.stdin:
        bus.emit_signal(None, PATH, MANAGER, "PrepareForSleep", GLib.Variant("(b)", (is_before,)))
        is_before = not is_before


bus = Gio.DBusConnection.new_for_address_sync(
    sys.argv[1], Gio.DBusConnectionFlags.AUTHENTICATION_CLIENT | Gio.DBusConnectionFlags.MESSAGE_BUS_CONNECTION, None, None)
bus.register_object(PATH, Gio.DBusNodeInfo.new_for_xml(INTERFACE).interfaces[0], handle_call, None, None)
Gio.bus_own_name_on_connection(bus, NAME, Gio.BusNameOwnerFlags.NONE, lambda *_: say("ready"), None)
threading.Thread(target=announce, args=[bus], daemon=True).start()
GLib.MainLoop().run()
