# Prints PESQ (wide band) and ViSQOL (audio mode) of two WAV files of 48 kHz: the sound as sent, and as heard.
import sys

from pesq import pesq
from scipy.io import wavfile
from scipy.signal import resample_poly
from visqol import VisqolApi

sent, heard = sys.argv[1:3]
at_16_khz = [resample_poly(wavfile.read(file)[1] / 32768, 1, 3) for file in (sent, heard)]
visqol = VisqolApi()
visqol.create(mode="audio")
print(pesq(16000, *at_16_khz, "wb"), visqol.measure(sent, heard).moslqo)
