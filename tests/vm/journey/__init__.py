"""Parts of every journey: input devices (kernel), the two hosts and their programs (hosts), and requests to both."""
import time


class Differs(AssertionError):
    """The program under test did not do what it must."""


def check(holds, what):
    """Fails with `what` unless it holds."""
    if not holds:
        raise Differs(what)


def same(found, expected, what):
    """Fails with the first place in which two lists differ."""
    for at, (one, other) in enumerate(zip(found, expected)):
        check(one == other, f"{what}: number {at} is {one}, not {other}; before it: {found[max(0, at - 6):at]}")
    extra = (found if len(found) > len(expected) else expected)[min(len(found), len(expected)):]
    check(len(found) == len(expected), f"{what}: {len(found)} instead of {len(expected)}; the rest: {extra[:6]}")


def until(condition, what, seconds=300):
    """Waits for a condition to be true; gives its value."""
    end = time.monotonic() + seconds
    while True:
        value = condition()
        if value:
            return value
        if time.monotonic() > end:
            raise Differs(f"{what() if callable(what) else what}: not within {seconds} s")
        time.sleep(0.05)


def say(text):
    """A line for the reader of a test that passed."""
    print(f"# {text}", flush=True)
