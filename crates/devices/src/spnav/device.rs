//! The device side: the connection to a daemon as a partner. Motions, buttons and snapshots are pulled out of it.
//!
//! | event | effect |
//! |---|---|
//! | flow opened, [`Ctl::Snapshot`], queue full | the next pull returns a snapshot |
//! | the daemon has lost a device | a neutral snapshot is queued; the daemon finds the device again by itself |
//! | the daemon ends | a neutral snapshot is queued, then pulls return [`PartnerError::Gone`] |

use super::protocol::{Incoming, PACKET_BYTES, Packet};
use crate::flows::{Endpoint, FlowPartner, OUT};
use crate::stream::now;
use bytes::BytesMut;
use contract::{
    Ctl, CtlReply, Direction, FlowKey, FlowTemplate, Format, Interest, Message, Next, PartnerError,
    PartnerResult, PullSlot, Readiness, RecoveryCtl, Report, Time,
};
use std::collections::{BTreeSet, VecDeque};
use std::io::ErrorKind;
use std::os::fd::{AsFd, OwnedFd};
use sys::net::Room;
use wire::formats::motion::{AXES, Motion, Update};

/// Updates that wait for the path, at most: 8 s of a device that sends 125 a second. Then a snapshot replaces them.
pub(super) const QUEUE_MAX: usize = 1024;
/// The most bytes read at a time.
const READ_BYTES: usize = 128 * PACKET_BYTES;

/// The connection to a daemon as a partner.
#[derive(Debug)]
pub(super) struct DaemonPartner {
    name: String,
    socket: OwnedFd,
    /// Bytes of the daemon that are no whole packet yet.
    input: BytesMut,
    axes: [i32; AXES],
    pressed: BTreeSet<u16>,
    queue: VecDeque<(Time, Update)>,
    is_gone: bool,
    counts: Counts,
}

/// Figures of [`Ctl::Report`].
#[derive(Debug, Default)]
struct Counts {
    motions: u64,
    buttons: u64,
    snapshots: u64,
    dropped: u64,
}

impl DaemonPartner {
    /// Creates a partner on a connected, non-blocking socket. The cap is at rest and no button is down, as far as the daemon
    /// tells.
    pub(super) fn new(name: String, socket: OwnedFd) -> FlowPartner<Self> {
        let partner = DaemonPartner {
            name,
            socket,
            input: BytesMut::with_capacity(READ_BYTES),
            axes: [0; AXES],
            pressed: BTreeSet::new(),
            queue: VecDeque::new(),
            is_gone: false,
            counts: Counts::default(),
        };
        FlowPartner::new(partner, Some(Format::Motion), None)
    }

    fn fill(&mut self) -> PartnerResult {
        self.input.reserve(READ_BYTES);
        let room = Room { buffer: &mut self.input, limit: READ_BYTES };
        match sys::net::receive(&self.socket, [room]) {
            Ok(0) => self.on_gone(),
            Err(error) if error.kind() == ErrorKind::ConnectionReset => self.on_gone(),
            Ok(_) => {
                let time = now();
                while let Some(bytes) = self.input.first_chunk::<PACKET_BYTES>() {
                    let incoming = Incoming::parse(&Packet::from_bytes(bytes));
                    drop(self.input.split_to(PACKET_BYTES));
                    self.handle(time, incoming);
                }
            }
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => {}
            Err(error) => return Err(PartnerError::os(format!("reading {}", self.name), error)),
        }
        Ok(())
    }

    fn handle(&mut self, time: Time, incoming: Incoming) {
        match incoming {
            Incoming::Update(Update::Motion(motion)) => {
                // After a rest the daemon's period is the rest.
                let rested = self.axes == [0; AXES];
                let period_us = if rested { 0 } else { motion.period_us };
                self.axes = motion.axes;
                self.counts.motions += 1;
                self.push(time, Update::Motion(Motion { period_us, ..motion }));
            }
            Incoming::Update(update @ Update::Button { number, pressed }) => {
                let is_change =
                    if pressed { self.pressed.insert(number) } else { self.pressed.remove(&number) };
                if is_change {
                    self.counts.buttons += 1;
                    self.push(time, update);
                }
            }
            Incoming::DeviceLost => self.go_neutral(time),
            Incoming::Update(Update::Snapshot { .. }) | Incoming::Other => {}
        }
    }

    fn go_neutral(&mut self, time: Time) {
        (self.axes, self.pressed) = ([0; AXES], BTreeSet::new());
        self.push_snapshot(time);
    }

    fn on_gone(&mut self) {
        self.is_gone = true;
        self.go_neutral(now());
    }

    fn push(&mut self, time: Time, update: Update) {
        match self.queue.len() < QUEUE_MAX {
            true => self.queue.push_back((time, update)),
            false => {
                self.counts.dropped += 1;
                self.push_snapshot(time);
            }
        }
    }

    /// Replaces what is queued by the state.
    fn push_snapshot(&mut self, time: Time) {
        self.counts.dropped += self.queue.len() as u64;
        self.queue.clear();
        self.counts.snapshots += 1;
        let pressed = self.pressed.iter().copied().collect();
        self.queue.push_back((time, Update::Snapshot { axes: self.axes, pressed }));
    }

    fn report(&self) -> Vec<Report> {
        let counts = &self.counts;
        vec![
            ("motions", counts.motions as f64),
            ("buttons", counts.buttons as f64),
            ("snapshots", counts.snapshots as f64),
            ("updates dropped", counts.dropped as f64),
        ]
    }
}

impl Endpoint for DaemonPartner {
    fn opened(&mut self, _template: &FlowTemplate, _slot: &mut PullSlot) -> PartnerResult {
        self.push_snapshot(now());
        Ok(())
    }

    fn closed(&mut self, _direction: Direction, slot: &mut PullSlot) -> PartnerResult {
        self.counts.dropped += u64::from(slot.is_held()) + self.queue.len() as u64;
        *slot = PullSlot::default();
        self.queue.clear();
        Ok(())
    }

    fn next(&mut self, _now: Time) -> PartnerResult<Next> {
        if !self.is_gone {
            self.fill()?;
        }
        match self.queue.pop_front() {
            Some((created, update)) => Ok(Next::Message(Message::new(created, update.to_bytes()))),
            None if self.is_gone => Err(PartnerError::Gone(self.name.clone())),
            None => Ok(Next::Nothing),
        }
    }

    fn ctl(&mut self, flow: FlowKey, operation: Ctl<'_>, slot: &mut PullSlot) -> PartnerResult<CtlReply> {
        match operation {
            Ctl::Flush | Ctl::Finish => Ok(CtlReply::Done),
            Ctl::Snapshot => {
                self.counts.dropped += u64::from(slot.is_held());
                *slot = PullSlot::default();
                self.push_snapshot(now());
                Ok(CtlReply::Done)
            }
            Ctl::Neutral if flow == OUT => Ok(CtlReply::Done),
            Ctl::IsNeutral => Ok(CtlReply::Count((self.axes == [0; AXES] && self.pressed.is_empty()).into())),
            Ctl::Recovery(RecoveryCtl::Discarded) => Ok(CtlReply::Count(self.counts.dropped)),
            Ctl::Report => Ok(CtlReply::Report(self.report())),
            _ => Err(PartnerError::Unsupported("this control operation")),
        }
    }

    fn readiness(&self, direction: Direction) -> Readiness<'_> {
        match direction {
            Direction::In => Readiness::never(),
            Direction::Out if !self.queue.is_empty() || self.is_gone => Readiness::now(),
            Direction::Out => Readiness::descriptor(self.socket.as_fd(), Interest::Read),
        }
    }
}
