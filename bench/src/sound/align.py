# Finds the sound of one WAV file in a recording of it, and writes the recording's part to a third file. Prints the place, in seconds.
# A recording that has the sound twice is compared with the second one.
import sys

import numpy
from scipy.io import wavfile
from scipy.signal import fftconvolve

rate, sent = wavfile.read(sys.argv[1])
_, recorded = wavfile.read(sys.argv[2])
recorded = recorded[:, 0] if recorded.ndim > 1 else recorded
likeness = fftconvolve(recorded.astype(float), sent[::-1].astype(float))
place = int(likeness.argmax())
later = place + len(sent) * 9 // 10
if later < len(likeness) and likeness[later:].max() > likeness[place] / 2:
    place = later + int(likeness[later:].argmax())
place -= len(sent) - 1
heard = numpy.zeros(len(sent), "int16")
part = recorded[max(place, 0):place + len(sent)]
heard[max(-place, 0):max(-place, 0) + len(part)] = part
wavfile.write(sys.argv[3], rate, heard)
print(place / rate)
