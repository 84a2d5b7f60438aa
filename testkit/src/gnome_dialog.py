# Answers the dialog of GNOME's portal by the accessibility bus: allow, look or cancel. With `wait` it only waits for it, with `gone` for its end.
import sys
import time

import gi

gi.require_version("Atspi", "2.0")
from gi.repository import Atspi

END = time.monotonic() + 60


def find(parent, role, name):
    """Returns the first object below `parent` with this role, and with this text in its name."""
    if parent.get_role_name() == role and name in (parent.get_name() or ""):
        return parent
    for index in range(parent.get_child_count()):
        child = parent.get_child_at_index(index)
        found = child and find(child, role, name)
        if found:
            return found
    return None


def until(get):
    """Waits until `get` returns something. Objects may vanish while they are looked at."""
    while time.monotonic() < END:
        try:
            found = get()
            if found:
                return found
        except gi.repository.GLib.Error:
            pass
        time.sleep(0.05)
    sys.exit("no dialog, or no end of it")


def dialog():
    desktop = Atspi.get_desktop(0)
    for index in range(desktop.get_child_count()):
        child = desktop.get_child_at_index(index)
        if child and find(child, "push button", "Share"):
            return child
    return None


if sys.argv[1] == "gone":
    until(lambda: not dialog())
    sys.exit(0)
window = until(dialog)
if sys.argv[1] == "wait":
    sys.exit(0)
if sys.argv[1] == "cancel":
    find(window, "push button", "Cancel").do_action(0)
    sys.exit(0)
monitor = find(window, "list item", "")
monitor.get_parent().select_child(0)
if sys.argv[1] == "allow":
    for name in ("Allow remote interaction", "Remember"):
        box = find(window, "check box", name)
        if box:
            if not box.get_state_set().contains(Atspi.StateType.CHECKED):
                box.do_action(0)
            # The switch moves before it counts.
            until(lambda: box.get_state_set().contains(Atspi.StateType.CHECKED))
share = find(window, "push button", "Share")
until(lambda: share.get_state_set().contains(Atspi.StateType.SENSITIVE))
share.do_action(0)
