"""Files of a user of a disk. As a program, `disk.py DIRECTORY FIRST END`: writes them one after the other, each durable before the next."""
import hashlib, os, sys
from pathlib import Path


def content(number):
    """The content of a file: 1 MiB and a bit, different for each number."""
    block = hashlib.sha256(str(number).encode()).digest()
    return block * ((1 << 20) // len(block)) + bytes([number % 256]) * (number % 4000)


def write(directory, numbers):
    for number in numbers:
        with open(Path(directory) / str(number), "wb") as out:
            out.write(content(number))
            out.flush()
            os.fsync(out.fileno())
        print("wrote", number, flush=True)


if __name__ == "__main__":
    write(sys.argv[1], range(int(sys.argv[2]), int(sys.argv[3])))
    print("done", flush=True)
