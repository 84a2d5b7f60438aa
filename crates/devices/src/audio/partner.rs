//! The worker's side: messages from and to the shared memory.
//!
//! | event | effect |
//! |---|---|
//! | a flow out opens, closes | the recording begins, ends |
//! | a message comes | its frames are written to the ring; a player that is not asked for frames loses them |
//! | the link is silent, the peer's device is absent | none: the player runs out of frames, and plays silence |
//! | the device is absent, returns | [`Presence`] |
//! | the sound thread is gone | [`PartnerError::Gone`] |

use super::engine::{self, Other};
use super::memory::{Memory, Word};
use super::writer::{RingWriter, SlotReader};
use super::{CHANNELS, Frame, RATE_HZ, SPEC};
use crate::flows::{Endpoint, FlowPartner, invalid};
use contract::{
    Ctl, CtlReply, Direction, FlowKey, FlowTemplate, Format, Interest, Message, Next, PartnerError,
    PartnerResult, Presence, PullSlot, Readiness, Report, Time,
};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use wire::formats::audio::{Frames, SampleFormat, SampleSpec, decode};

/// Sound of one device or node, in a worker.
#[derive(Debug)]
pub(super) struct AudioPartner {
    name: String,
    control: OwnedFd,
    memory: Arc<Memory>,
    slots: SlotReader,
    ring: RingWriter,
    is_absent: bool,
    read_frames: u64,
    written_frames: u64,
}

impl AudioPartner {
    /// Makes the partner of the worker's ends. `has_out` and `has_in` name its flows.
    pub(super) fn new(
        name: String,
        control: OwnedFd,
        memory: OwnedFd,
        has_out: bool,
        has_in: bool,
    ) -> io::Result<FlowPartner<AudioPartner>> {
        let memory = Arc::new(Memory::map(memory)?);
        let (slots, ring) = (SlotReader::new(memory.clone()), RingWriter::new(memory.clone()));
        let partner = AudioPartner {
            name,
            control,
            memory,
            slots,
            ring,
            is_absent: false,
            read_frames: 0,
            written_frames: 0,
        };
        Ok(FlowPartner::new(partner, has_out.then_some(Format::Audio), has_in.then_some(Format::Audio)))
    }

    fn check(&self) -> PartnerResult {
        match engine::clear(self.control.as_fd()) {
            Other::Here => Ok(()),
            Other::Gone => Err(PartnerError::Gone(self.name.clone())),
        }
    }

    fn set_wanted(&mut self, is_wanted: bool) {
        self.slots.set_wanted(is_wanted);
        // A full socket wakes the thread already; an error shows in the next call.
        let _ = rustix::io::write(&self.control, &[0]);
    }

    fn report(&self) -> Vec<Report> {
        vec![
            ("frames recorded", self.read_frames as f64),
            ("frames not read in time", self.memory.load(Word::Dropped) as f64),
            ("frames written", self.written_frames as f64),
            ("frames lost before", self.ring.lost_frames as f64),
            ("frames waiting", self.ring.fill_frames() as f64),
            ("frames skipped", self.memory.load(Word::Skipped) as f64),
            ("underruns", self.memory.load(Word::Underruns) as f64),
        ]
    }
}

/// Returns the frames of a message in the format of the ring.
pub(super) fn frames(message: &Frames<'_>) -> Result<Vec<Frame>, String> {
    let SampleSpec { format, channels, rate_hz } = message.spec;
    if rate_hz != RATE_HZ {
        return Err(format!(
            "the sound has {rate_hz} frames a second, and this device takes {RATE_HZ}: add the pair `resample`"
        ));
    }
    if message.spec == SPEC {
        return Ok(message.samples.as_chunks().0.iter().map(|bytes| super::frame(*bytes)).collect());
    }
    let sample = |value: &f32| (value * 32_768.0).round() as i16;
    let samples = match format {
        SampleFormat::S16 => {
            message.samples.as_chunks().0.iter().map(|bytes| i16::from_le_bytes(*bytes)).collect()
        }
        format => decode(format, message.samples).iter().map(sample).collect::<Vec<_>>(),
    };
    // Mono is both; of more channels, the first two are left and right.
    let frame = |samples: &[i16]| [samples[0], samples[usize::from(samples.len() > 1)]];
    Ok(samples.chunks_exact(channels.into()).map(frame).collect())
}

impl Endpoint for AudioPartner {
    fn opened(&mut self, template: &FlowTemplate, slot: &mut PullSlot) -> PartnerResult {
        if template.direction == Direction::Out {
            *slot = PullSlot::default();
            self.set_wanted(true);
        }
        Ok(())
    }

    fn closed(&mut self, direction: Direction, slot: &mut PullSlot) -> PartnerResult {
        if direction == Direction::Out {
            *slot = PullSlot::default();
            self.set_wanted(false);
        }
        Ok(())
    }

    fn accept(&mut self, message: &mut Message) -> PartnerResult<bool> {
        self.check()?;
        let body = message.body.as_slice();
        let message = Frames::parse(body).map_err(invalid)?;
        let frames = frames(&message).map_err(PartnerError::Message)?;
        self.written_frames += frames.len() as u64;
        self.ring.write(message.position, frames);
        Ok(true)
    }

    fn next(&mut self, _now: Time) -> PartnerResult<Next> {
        // First, so that a quantum that comes between is not missed.
        let checked = self.check();
        match self.slots.next() {
            Some(quantum) => {
                let frames = Frames { spec: SPEC, position: quantum.position, samples: &quantum.bytes };
                self.read_frames += frames.count() as u64;
                Ok(Next::Message(Message::new(Time(quantum.created_ns), frames.emit())))
            }
            None => checked.map(|()| Next::Nothing),
        }
    }

    fn ctl(&mut self, _flow: FlowKey, operation: Ctl<'_>, _slot: &mut PullSlot) -> PartnerResult<CtlReply> {
        match operation {
            Ctl::Flush | Ctl::Finish | Ctl::Neutral => Ok(CtlReply::Done),
            Ctl::Fill => {
                let fill = self.ring.fill().ok_or(PartnerError::Unsupported("a fill: nobody plays"))?;
                Ok(CtlReply::Fill(fill))
            }
            Ctl::Report => Ok(CtlReply::Report(self.report())),
            _ => Err(PartnerError::Unsupported("this control operation")),
        }
    }

    fn readiness(&self, direction: Direction) -> Readiness<'_> {
        match direction {
            Direction::In => Readiness::now(),
            Direction::Out if self.slots.has_next() => Readiness::now(),
            Direction::Out => Readiness::descriptor(self.control.as_fd(), Interest::Read),
        }
    }

    fn presence(&mut self) -> Option<Presence> {
        let is_absent = self.memory.load(Word::IsAbsent) == 1;
        if is_absent == self.is_absent {
            return None;
        }
        self.is_absent = is_absent;
        Some(match is_absent {
            true => Presence::Absent(format!("{} is unplugged", self.name)),
            false => Presence::Present,
        })
    }
}

const _: () = assert!(CHANNELS == SPEC.channels as usize);
