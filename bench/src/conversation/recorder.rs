//! Programs that record: their raw output, with the time of arrival of each part.

use super::stamp;
use super::tone::{self, RATE_HZ};
use crate::camera::PICTURE_BYTES;
use crate::processes::with_descendants;
use crate::setting::Failure;
use rustix::process::{Pid, Signal, kill_process};
use std::io::Read;
use std::process::{Child, Command, Stdio};
use std::thread::{self, JoinHandle};

/// The most sound read at once: more than a program writes at once, because all that is read in one part came when its end did.
const SOUND_BYTES: usize = 1 << 16;

/// A program whose output a thread reads.
pub(super) struct Recorder<T> {
    child: Child,
    reader: JoinHandle<T>,
}

impl<T: Send + 'static> Recorder<T> {
    fn start(
        command: &mut Command,
        read: impl FnOnce(Box<dyn Read + Send>) -> T + Send + 'static,
    ) -> Result<Self, Failure> {
        let name = command.get_program().to_string_lossy().into_owned();
        let started = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null()).spawn();
        let mut child = started.map_err(|error| format!("cannot start {name}: {error}"))?;
        let output = child.stdout.take().ok_or("a recorder has no output")?;
        let reader = thread::spawn(move || read(Box::new(output)));
        Ok(Recorder { child, reader })
    }

    /// The process and its descendants.
    pub(super) fn processes(&self) -> Vec<u32> {
        with_descendants(self.child.id())
    }

    /// Ends the program, and returns its record.
    pub(super) fn end(mut self) -> Result<T, Failure> {
        for process in self.processes().into_iter().rev() {
            let _ = Pid::from_raw(process as i32).map(|process| kill_process(process, Signal::KILL));
        }
        self.child.wait()?;
        self.reader.join().map_err(|_| "a thread panicked".into())
    }
}

/// A picture that a program got.
#[derive(Debug, Clone, Copy)]
pub(super) struct Shown {
    /// The number of the picture in the film; `None` if it shows none.
    pub(super) number: Option<usize>,
    pub(super) arrived_ns: u64,
}

/// Records pictures: a program that writes planes of 4:2:0.
pub(super) fn pictures(command: &mut Command) -> Result<Recorder<Vec<Shown>>, Failure> {
    Recorder::start(command, |mut output| {
        let (mut picture, mut shown) = (vec![0; PICTURE_BYTES], Vec::new());
        while output.read_exact(&mut picture).is_ok() {
            let arrived_ns = sys::clock::boot_ns();
            shown.push(Shown { number: stamp::read(&picture), arrived_ns });
        }
        shown
    })
}

/// Recorded sound.
#[derive(Debug, Default)]
pub(super) struct Sound {
    samples: Vec<i16>,
    /// The end of each part, in samples, and the time of its arrival.
    arrivals: Vec<(usize, u64)>,
}

impl Sound {
    /// Returns the time at which a sample came.
    fn time_ns(&self, at: usize) -> u64 {
        let next = self.arrivals.partition_point(|(end, _)| *end <= at);
        self.arrivals.get(next).map_or(0, |(end, arrived_ns)| {
            arrived_ns.saturating_sub(((end - at) * 1_000_000_000 / RATE_HZ) as u64)
        })
    }

    /// Returns the part that came in this time.
    pub(super) fn within(&self, time: &std::ops::Range<u64>) -> Sound {
        let place = |at: u64| {
            let next = self.arrivals.partition_point(|(_, arrived_ns)| *arrived_ns < at);
            (next, next.checked_sub(1).map_or(0, |before| self.arrivals[before].0))
        };
        let ((first, from), (last, to)) = (place(time.start), place(time.end));
        let arrivals = self.arrivals[first..last].iter().map(|(end, at)| (end - from, *at)).collect();
        Sound { samples: self.samples[from..to].to_vec(), arrivals }
    }

    /// Returns the time of the first sound that is no silence.
    pub(super) fn first_ns(&self) -> Option<u64> {
        let at = self.samples.iter().position(|sample| sample.unsigned_abs() > 1000)?;
        Some(self.time_ns(at))
    }

    /// The length in seconds.
    pub(super) fn seconds(&self) -> f64 {
        self.samples.len() as f64 / RATE_HZ as f64
    }

    pub(super) fn read(&self) -> tone::Heard {
        tone::read(&self.samples)
    }

    /// Returns the beeps with their times.
    pub(super) fn beeps(&self, heard: &tone::Heard) -> Vec<(usize, u64)> {
        heard.beeps.iter().map(|beep| (beep.pitch, self.time_ns(beep.at))).collect()
    }
}

/// Records sound: a program that writes samples of one channel, 16 bits, at 48 kHz.
pub(super) fn sound(command: &mut Command) -> Result<Recorder<Sound>, Failure> {
    Recorder::start(command, |mut output| {
        let (mut sound, mut bytes, mut kept) = (Sound::default(), vec![0; SOUND_BYTES], 0);
        while let Ok(count @ 1..) = output.read(&mut bytes[kept..]) {
            let arrived_ns = sys::clock::boot_ns();
            let whole = (kept + count) / 2 * 2;
            sound
                .samples
                .extend(bytes[..whole].chunks_exact(2).map(|pair| i16::from_le_bytes([pair[0], pair[1]])));
            bytes.copy_within(whole..kept + count, 0);
            kept = kept + count - whole;
            sound.arrivals.push((sound.samples.len(), arrived_ns));
        }
        sound
    })
}
