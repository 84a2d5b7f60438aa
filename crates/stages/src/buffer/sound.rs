//! The sink of `mode=play` for sound: releases an unbroken sequence of quanta.
//!
//! Sound has a time of its own: the quantum at position `p` ends when the one at `p` plus its frames begins. So this sink knows when
//! each position is to be released, and does not wait for a quantum that is lost or late:
//!
//! ```text
//! state    event                                             effect
//! silent   the first quantum held is due                     release it, faded in ──► playing
//!          its end should have been released by now          drop it: late
//! playing  the next position is held, and due                release it
//!          it is held, and its time is later (shift rose)    conceal: stretch the sound until then
//!          it is not held, GRACE after its time              conceal a quantum; if it comes later, it is late
//!          the concealment has faded to silence              ──► silent
//!          the shift is above the wanted one (shift fell)    splice: leave out a piece that resembles the next
//! any      the shift is STEP_NS above the wanted one         drop what is late then, and fade over to what is due ──► silent
//!          a quantum from before the next position           drop it: late
//!          a quantum far from the next position, a new kind  release all, and begin anew ──► silent
//! ```
//!
//! Quanta are held in the order of their positions, so a network that changes the order does no harm within the delay.

use super::shift::{Release, ShiftControl};
use crate::HELD_BYTES_MAX;
use crate::adaptive::LateCost;
use crate::checkpoint::{CheckpointReader, CheckpointWriter, malformed};
use crate::playout::{HELD_MAX, LONGEST_HOLD, STEP_NS, transit};
use crate::sound::{Concealer, SPLICE_FADES, Sound, duration, frames_in, splice};
use contract::{
    Attributes, Body, Choice, Message, Offset, Options, Outbox, Port, Report, Stage, StageResult, Time,
};
use std::collections::VecDeque;
use std::time::Duration;
use wire::formats::audio::{Frames, SampleSpec};

/// Lateness that the device's own buffer absorbs.
const GRACE: Duration = Duration::from_millis(1);
/// A quantum this long after its time is of no use, although nothing else was released instead: this host has stalled.
const OVERDUE: Duration = Duration::from_millis(20);
/// The time between two positions that do not belong to the same sequence.
const RESTART: Duration = Duration::from_secs(10);
/// The pieces that a splice leaves out: at least a period of a voice, at most two of a deep one.
const SPLICES: [Duration; 2] = [Duration::from_micros(2500), Duration::from_millis(10)];
/// An excess below the longest splice waits this long, so that splices are few.
const SPLICE_AFTER: Duration = Duration::from_secs(1);

const LATE: &str = "late sound";

/// A quantum, and the properties that its body declares.
#[derive(Debug)]
struct Quantum {
    message: Message,
    /// The latest release time.
    latest: Time,
    spec: SampleSpec,
    position: u64,
    frames: usize,
}

impl Quantum {
    fn parse(message: Message, latest: Time) -> Result<Quantum, Message> {
        let bytes = message.body.clone().into_bytes();
        match Frames::parse(&bytes) {
            Ok(frames) => {
                let (spec, position, frames) = (frames.spec, frames.position, frames.count());
                Ok(Quantum { message, latest, spec, position, frames })
            }
            Err(_) => Err(message),
        }
    }

    fn end(&self) -> u64 {
        self.position.wrapping_add(self.frames as u64)
    }

    fn duration(&self) -> Duration {
        duration(&self.spec, self.frames)
    }
}

/// The sequence that is being released.
#[derive(Debug, Clone, Copy)]
struct Playing {
    spec: SampleSpec,
    /// The next position.
    position: u64,
    /// Its time.
    at: Time,
    /// Frames of the last quantum.
    quantum: usize,
}

pub(super) struct Sink {
    control: ShiftControl,
    /// Release minus creation in nanoseconds, as the control wants it, and as it is.
    wanted: Option<i64>,
    shift: i64,
    /// Held quanta, in the order of their positions.
    queue: VecDeque<Quantum>,
    bytes: usize,
    playing: Option<Playing>,
    concealer: Concealer,
    /// The position of the next frame released: concealment that stretches sound has positions too.
    released_position: u64,
    /// When something was last left out.
    spliced: Time,
    released: u64,
    early: u64,
    late: u64,
    concealed: u64,
    splices: u64,
}

impl Sink {
    pub(super) fn new(options: &Options) -> Self {
        Sink {
            control: ShiftControl::new(options, LateCost::Missing),
            wanted: None,
            shift: 0,
            queue: VecDeque::new(),
            bytes: 0,
            playing: None,
            concealer: Concealer::default(),
            released_position: 0,
            spliced: Time::ZERO,
            released: 0,
            early: 0,
            late: 0,
            concealed: 0,
            splices: 0,
        }
    }

    fn due(&self, quantum: &Quantum) -> Time {
        quantum.message.created.shifted(Offset(self.shift)).min(quantum.latest)
    }

    /// The first quantum, if it continues the sequence.
    fn next_in_sequence(&self, playing: &Playing) -> Option<&Quantum> {
        let next = self.queue.front()?;
        (next.spec == playing.spec && next.position == playing.position).then_some(next)
    }

    fn next_due(&self) -> Option<Time> {
        let Some(playing) = &self.playing else { return self.queue.front().map(|next| self.due(next)) };
        let conceals_at = playing.at.after(GRACE);
        Some(self.next_in_sequence(playing).map_or(conceals_at, |next| self.due(next).min(conceals_at)))
    }

    /// Releases and conceals everything that is due.
    fn run(&mut self, now: Time, out: &mut Outbox) {
        while self.next_due().is_some_and(|due| due <= now) {
            self.drop_overdue(now, out);
            let Some(playing) = self.playing else {
                self.begin(now, out);
                continue;
            };
            let due = self.next_in_sequence(&playing).map(|next| self.due(next));
            match due {
                Some(due) if due <= now => {
                    self.shorten(now);
                    self.release_first(out);
                }
                _ if self.concealer.is_silent() => self.playing = None,
                Some(due) => {
                    let frames = frames_in(&playing.spec, due.since(playing.at)).clamp(1, playing.quantum);
                    self.conceal(playing, frames, out);
                }
                None => {
                    let missing = self.queue.front().map(|next| next.position.wrapping_sub(playing.position));
                    let missing = missing.map_or(usize::MAX, |missing| missing as usize);
                    let frames = missing.min(playing.quantum).max(1);
                    let position = playing.position.wrapping_add(frames as u64);
                    self.conceal(Playing { position, ..playing }, frames, out);
                }
            }
        }
        while self.queue.len() > HELD_MAX || self.bytes > HELD_BYTES_MAX {
            self.early += 1;
            self.release_first(out);
        }
    }

    /// Ends a silence with the first quantum. Its time is never past as a whole: the sequence would begin in the past, and be
    /// concealed until now, which is more sound than the device can play.
    fn begin(&mut self, now: Time, out: &mut Outbox) {
        let ends = self.queue.front().map(|first| self.due(first).after(first.duration() + GRACE));
        match ends.is_some_and(|ends| ends < now) {
            true => self.drop_first(out),
            false => self.release_first(out),
        }
    }

    /// Follows a wanted shift that is far below: splices would take as long as the excess, and the sound be as old meanwhile.
    fn step_down(&mut self, wanted: i64) {
        if self.shift.saturating_sub(wanted) < STEP_NS {
            return;
        }
        self.shift = wanted;
        if let Some(playing) = self.playing.take() {
            // The next sound does not continue the last: it is faded in over it.
            self.concealer.conceal(&playing.spec, 0);
        }
    }

    /// Drops quanta that should have been released long ago, as long as there are newer ones.
    fn drop_overdue(&mut self, now: Time, out: &mut Outbox) {
        while self.queue.len() > 1
            && let Some(first) = self.queue.front()
            && self.due(first).after(first.duration() + OVERDUE) < now
        {
            self.drop_first(out);
        }
    }

    fn drop_first(&mut self, out: &mut Outbox) {
        let Some(first) = self.queue.pop_front() else { return };
        self.bytes -= first.message.body.len();
        self.drop_late(1, out);
    }

    fn drop_late(&mut self, count: u64, out: &mut Outbox) {
        self.late += count;
        out.drop_counted(LATE, count);
    }

    fn release_first(&mut self, out: &mut Outbox) {
        let Some(quantum) = self.queue.pop_front() else { return };
        self.bytes -= quantum.message.body.len();
        let due = self.due(&quantum);
        if self.playing.is_none() {
            self.released_position = self.released_position.max(quantum.position);
        }
        let at = due.after(quantum.duration());
        let (spec, position, frames) = (quantum.spec, quantum.end(), quantum.frames);
        self.playing = Some(Playing { spec, position, at, quantum: frames });
        self.released += 1;
        self.send(quantum, out);
    }

    /// Sends a quantum; after a gap, its start is faded in.
    fn send(&mut self, quantum: Quantum, out: &mut Outbox) {
        let Some(mut sound) = Sound::parse(&quantum.message.body) else { return };
        let is_moved = sound.position != self.released_position;
        sound.position = self.released_position;
        self.released_position = self.released_position.wrapping_add(quantum.frames as u64);
        let mut message = quantum.message;
        // Unchanged sound keeps its bytes.
        if self.concealer.hear(&mut sound) || is_moved {
            let attributes = message.attributes;
            message = Message { attributes, ..sound.into_message(message.created) };
        }
        out.send(Port::MAIN, message);
    }

    /// Sends `frames` frames of concealment at the time of `playing`, which becomes the sequence with a later time.
    fn conceal(&mut self, playing: Playing, frames: usize, out: &mut Outbox) {
        let samples = self.concealer.conceal(&playing.spec, frames);
        let sound = Sound { spec: playing.spec, position: self.released_position, samples };
        self.released_position = self.released_position.wrapping_add(frames as u64);
        let created = playing.at.shifted(Offset(self.shift.saturating_neg()));
        let mut message = sound.into_message(created);
        message.attributes = Attributes { stale: true, ..Attributes::default() };
        out.send(Port::MAIN, message);
        self.concealed += 1;
        let at = playing.at.after(duration(&playing.spec, frames));
        self.playing = Some(Playing { at, ..playing });
    }

    /// Leaves out a piece of the next quanta if the shift is above the wanted one.
    fn shorten(&mut self, now: Time) {
        let (Some(playing), Some(wanted)) = (self.playing, self.wanted) else { return };
        let excess = Duration::from_nanos(u64::try_from(self.shift.saturating_sub(wanted)).unwrap_or(0));
        let has_waited = now.since(self.spliced) >= SPLICE_AFTER;
        if excess < SPLICES[usize::from(!has_waited)] {
            return;
        }
        let spec = playing.spec;
        let [shortest, longest] = SPLICES.map(|piece| frames_in(&spec, piece.min(excess)).max(1));
        let [least_fade, fade] = SPLICE_FADES.map(|fade| frames_in(&spec, fade));
        let (mut count, mut frames, mut position) = (0, 0, playing.position);
        for quantum in &self.queue {
            if frames >= longest + fade || quantum.spec != spec || quantum.position != position {
                break;
            }
            (count, frames, position) = (count + 1, frames + quantum.frames, quantum.end());
        }
        // A short delay means that little sound is here: at least a piece and its fade.
        if frames < shortest + least_fade {
            return;
        }
        let fade = fade.min(frames - shortest);
        let longest = longest.min(frames - fade);
        let pieces: Vec<Quantum> = self.queue.drain(..count).collect();
        self.bytes -= pieces.iter().map(|quantum| quantum.message.body.len()).sum::<usize>();
        let sounds = pieces.iter().filter_map(|quantum| Sound::parse(&quantum.message.body));
        let mut samples: Vec<f32> = sounds.flat_map(|sound| sound.samples).collect();
        let removed = splice(&mut samples, &spec, shortest..longest + 1, fade).unwrap_or(0);
        let created = pieces[0].message.created.after(duration(&spec, removed));
        self.requeue(&pieces, samples, playing.position.wrapping_add(removed as u64), created);
        let removed_ns = i64::try_from(spec.duration_ns(removed as u64)).unwrap_or(0);
        self.shift = self.shift.saturating_sub(removed_ns);
        self.playing = Some(Playing { position: playing.position.wrapping_add(removed as u64), ..playing });
        self.splices += u64::from(removed > 0);
        self.spliced = now;
    }

    /// Holds `samples` again in front of the queue, cut as the longest of the quanta from which they came: the first one may be the
    /// rest of an earlier splice.
    fn requeue(&mut self, pieces: &[Quantum], samples: Vec<f32>, position: u64, created: Time) {
        let spec = pieces[0].spec;
        let channels = usize::from(spec.channels);
        let quantum = pieces.iter().map(|piece| piece.frames).max().unwrap_or(1).max(1);
        let mut held = Vec::new();
        for (number, part) in samples.chunks(quantum * channels).enumerate() {
            let before = number * quantum;
            let position = position.wrapping_add(before as u64);
            let sound = Sound { spec, position, samples: part.to_vec() };
            let frames = sound.frames();
            let mut message = sound.into_message(created.after(duration(&spec, before)));
            message.attributes = pieces[0].message.attributes;
            held.push(Quantum { message, latest: pieces[0].latest, spec, position, frames });
        }
        for quantum in held.into_iter().rev() {
            self.bytes += quantum.message.body.len();
            self.queue.push_front(quantum);
        }
    }

    /// Inserts a quantum at its place.
    fn hold(&mut self, quantum: Quantum, out: &mut Outbox) {
        let reach = frames_in(&quantum.spec, RESTART) as u64;
        let last = self.queue.back().map(|last| (last.spec, last.end()));
        let known = last.or(self.playing.map(|playing| (playing.spec, playing.position)));
        let is_near = known.is_none_or(|(spec, position)| {
            spec == quantum.spec && distance(position, quantum.position).unsigned_abs() < reach
        });
        if !is_near {
            // The source began anew, or its sound is of another kind.
            while !self.queue.is_empty() {
                self.release_first(out);
            }
            self.playing = None;
        }
        let quantum = match &self.playing {
            Some(playing) => match trimmed(quantum, playing.position) {
                Some(quantum) => quantum,
                None => return self.drop_late(1, out),
            },
            None => quantum,
        };
        let position = quantum.position;
        let place = self.queue.partition_point(|held| distance(held.position, position) < 0);
        let is_held = self.queue.get(place).is_some_and(|held| held.position == position);
        if is_held {
            return self.drop_late(1, out);
        }
        self.bytes += quantum.message.body.len();
        self.queue.insert(place, quantum);
    }
}

/// Frames from `to` to `position`; negative if `position` is before it.
fn distance(position: u64, to: u64) -> i64 {
    position.wrapping_sub(to).cast_signed()
}

/// The part of a quantum from `position` on; `None` if it ends before.
fn trimmed(quantum: Quantum, position: u64) -> Option<Quantum> {
    let before = distance(position, quantum.position);
    let before = usize::try_from(before).ok().filter(|before| *before > 0);
    let Some(before) = before else { return Some(quantum) };
    let sound = Sound::parse(&quantum.message.body).filter(|_| before < quantum.frames)?;
    let spec = quantum.spec;
    let samples = sound.samples[before * usize::from(spec.channels)..].to_vec();
    let frames = quantum.frames - before;
    let created = quantum.message.created.after(duration(&spec, before));
    let message = Message {
        attributes: quantum.message.attributes,
        ..Sound { spec, position, samples }.into_message(created)
    };
    Some(Quantum { message, latest: quantum.latest, spec, position, frames })
}

impl Stage for Sink {
    fn handle(&mut self, port: Port, message: Message, now: Time, out: &mut Outbox) -> StageResult {
        self.run(now, out);
        let quantum = match Quantum::parse(message, now.after(LONGEST_HOLD)) {
            Ok(quantum) => quantum,
            Err(message) => {
                out.send(port, message);
                return Ok(());
            }
        };
        let created = quantum.message.created;
        let release = Release {
            shift: self.wanted,
            first_created: self.queue.front().map(|first| first.message.created),
            has_begun: self.released > 0,
        };
        let wanted = self.control.update(created, transit(&quantum.message, now), now, release);
        self.wanted = Some(wanted);
        self.step_down(wanted);
        // Nothing is to be spliced while nothing plays.
        if wanted > self.shift || self.playing.is_none() {
            self.shift = wanted;
        }
        self.hold(quantum, out);
        self.run(now, out);
        Ok(())
    }

    fn handle_end(&mut self, _port: Port, _now: Time, out: &mut Outbox) -> StageResult {
        while !self.queue.is_empty() {
            self.release_first(out);
        }
        self.playing = None;
        Ok(())
    }

    fn poll_timeout(&self) -> Option<Time> {
        self.next_due()
    }

    fn handle_timeout(&mut self, now: Time, out: &mut Outbox) -> StageResult {
        self.run(now, out);
        Ok(())
    }

    fn held(&self) -> usize {
        self.queue.len()
    }

    fn finished(&self, last: u32) -> Option<u32> {
        let marks = self.queue.iter().map(|held| held.message.attributes.mark);
        Some(marks.min().map_or(last, |first| first.wrapping_sub(1)))
    }

    fn checkpoint(&self) -> Option<Body> {
        let mut checkpoint = CheckpointWriter::default();
        let wanted = self.wanted.unwrap_or(0).cast_unsigned();
        checkpoint.put([
            self.wanted.is_some().into(),
            wanted,
            self.shift.cast_unsigned(),
            self.released_position,
        ]);
        for quantum in &self.queue {
            checkpoint.put([quantum.latest.0]);
            checkpoint.put_message(&quantum.message);
        }
        Some(checkpoint.finish())
    }

    fn restore(&mut self, checkpoint: Body) -> StageResult {
        let mut reader = CheckpointReader(checkpoint);
        let has_wanted = reader.number_below(2)? == 1;
        let wanted = reader.number()?.cast_signed();
        self.wanted = has_wanted.then_some(wanted);
        self.shift = reader.number()?.cast_signed();
        self.released_position = reader.number()?;
        while !reader.is_empty() {
            let latest = Time(reader.number()?);
            let quantum = Quantum::parse(reader.message()?, latest).map_err(|_| malformed())?;
            self.bytes += quantum.message.body.len();
            self.queue.push_back(quantum);
            if self.queue.len() > HELD_MAX || self.bytes > HELD_BYTES_MAX {
                return Err(malformed());
            }
        }
        Ok(())
    }

    fn report(&self) -> Vec<Report> {
        let fastest = self.control.fastest().unwrap_or(self.shift);
        let delay = if self.wanted.is_some() { self.shift.saturating_sub(fastest) } else { 0 };
        vec![
            ("held", self.queue.len() as f64),
            ("released", self.released as f64),
            ("early", self.early as f64),
            ("late", self.late as f64),
            ("delay_ms", delay as f64 / 1e6),
            ("steps", self.control.steps() as f64),
            ("concealed", self.concealed as f64),
            ("splices", self.splices as f64),
        ]
    }

    fn choices(&self) -> Vec<Choice> {
        self.control.choices(self.wanted.map(|_| self.shift))
    }
}
