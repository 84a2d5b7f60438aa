"""An unmodified user of a serial port: pyserial, as esptool uses it. Takes a command a line; answers one line for each."""
import fcntl, struct, sys, termios, time
import serial

port = serial.Serial(sys.argv[1], 115200, timeout=60)


def set_both(dtr, rts):
    status = struct.unpack("I", fcntl.ioctl(port.fileno(), termios.TIOCMGET, struct.pack("I", 0)))[0]
    for bit, is_on in ((termios.TIOCM_DTR, dtr), (termios.TIOCM_RTS, rts)):
        status = status | bit if is_on else status & ~bit
    fcntl.ioctl(port.fileno(), termios.TIOCMSET, struct.pack("I", status))


def reset_tight():
    """esptool's UnixTightReset; returns the times of the steps whose spacing counts."""
    set_both(False, False)
    set_both(True, True)
    set_both(False, True)
    times = [time.monotonic()]
    time.sleep(0.1)
    set_both(True, False)
    times.append(time.monotonic())
    time.sleep(0.05)
    set_both(False, False)
    times.append(time.monotonic())
    port.dtr = False
    return times


def reset_classic():
    """esptool's ClassicReset."""
    port.dtr = False
    port.rts = True
    times = [time.monotonic()]
    time.sleep(0.1)
    port.dtr = True
    port.rts = False
    times.append(time.monotonic())
    time.sleep(0.05)
    port.dtr = False
    times.append(time.monotonic())
    return times


def lines():
    return " ".join(name for name in ("cts", "dsr", "cd", "ri") if getattr(port, name)) or "none"


for line in sys.stdin:
    command, *words = line.split()
    if command == "tight":
        answer = " ".join(map(str, reset_tight()))
    elif command == "classic":
        answer = " ".join(map(str, reset_classic()))
    elif command == "lines":
        answer = lines()
    elif command == "set":
        port.dtr, port.rts = "dtr" in words, "rts" in words
        answer = "done"
    elif command == "write":
        port.write(words[0].encode())
        answer = "done"
    elif command == "read":
        answer = port.read(int(words[0])).hex()
    elif command == "break":
        # Its send_break(0.25) asks the kernel for 100 ms.
        port.break_condition = True
        time.sleep(0.25)
        port.break_condition = False
        answer = "done"
    elif command == "baud":
        port.baudrate = int(words[0])
        answer = "done"
    elif command == "format":
        port.bytesize, port.parity, port.stopbits = int(words[0][0]), words[0][1], int(words[0][2])
        answer = "done"
    elif command == "mark":
        # Breaks and faults among the data, as termios(3) marks them.
        attributes = termios.tcgetattr(port.fileno())
        attributes[0] |= termios.PARMRK | termios.INPCK
        termios.tcsetattr(port.fileno(), termios.TCSANOW, attributes)
        answer = "done"
    print(answer, flush=True)
