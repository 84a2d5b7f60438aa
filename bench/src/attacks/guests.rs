//! Peers that use their permissions endlessly.

use super::assault::{Assault, Attempt, Caller, Orders, open, part, refused};
use super::channel::{Channel, reason};
use std::io;
use wire::control::{AgreedFlow, FlowDirection, MISSING_RANGES_MAX};
use wire::{Control, FlowControl};

/// Pings in one write.
const PINGS: usize = 100;
/// Messages of each kind in one write.
const WORDS: usize = 16;

/// A peer that opens sessions and closes none.
pub(super) struct Opener {
    pub(super) caller: Caller,
}

impl Assault for Opener {
    fn attempt(&mut self, _: &Orders) -> Attempt {
        match self.caller.call().and_then(|mut channel| channel.greet()) {
            // A peer may open sessions.
            Ok(Control::Welcome { .. }) => Attempt::Refused("welcomed (allowed)".into()),
            Ok(other) => Attempt::Refused(reason(other)),
            Err(error) => refused(&error),
        }
    }
}

/// A peer that pings as fast as it gets answers.
pub(super) struct Chatter {
    pub(super) caller: Caller,
    pub(super) channel: Option<Channel>,
}

impl Chatter {
    fn chat(&mut self) -> io::Result<Attempt> {
        if let Some(refusal) = self.caller.enter(&mut self.channel)? {
            return Ok(refusal);
        }
        let Some(channel) = &mut self.channel else { return Ok(Attempt::Silence) };
        channel.send(&Control::Ping { id: 1, sent: 1, received: 0 }.emit().repeat(PINGS))?;
        let mut pongs = 0;
        while pongs < PINGS {
            pongs += usize::from(matches!(channel.receive()?, Control::Pong { .. }));
        }
        Ok(Attempt::Refused(format!("{PINGS} pings answered (allowed)")))
    }
}

impl Assault for Chatter {
    fn attempt(&mut self, _: &Orders) -> Attempt {
        self.chat().unwrap_or_else(|error| {
            self.channel = None;
            refused(&error)
        })
    }
}

/// Opens the toy. Returns its number and flows, or the refusal.
fn open_toy(channel: &mut Channel) -> io::Result<Result<(u32, Vec<AgreedFlow>), String>> {
    channel.send(&open("toy", None).emit())?;
    loop {
        match channel.receive_alive()? {
            Control::Opened { driver, flows, .. } => return Ok(Ok((driver, flows))),
            Control::Refused { reason, .. } => return Ok(Err(reason)),
            goodbye @ Control::Goodbye { .. } => return Err(io::Error::other(reason(goodbye))),
            _ => {}
        }
    }
}

/// A peer with an open device that sends its flows' control messages as fast as they are read.
pub(super) struct Flooder {
    caller: Caller,
    channel: Option<Channel>,
    /// True for changes of pipelines, false for acknowledgements and requests.
    changes: bool,
    /// Flows of the open device.
    flows: Vec<AgreedFlow>,
    /// The next epoch.
    epoch: u32,
}

impl Flooder {
    pub(super) fn new(caller: Caller, changes: bool) -> Flooder {
        Flooder { caller, channel: None, changes, flows: Vec::new(), epoch: 1 }
    }

    fn flood(&mut self) -> io::Result<Attempt> {
        if self.channel.is_none() {
            self.flows.clear();
        }
        if let Some(refusal) = self.caller.enter(&mut self.channel)? {
            return Ok(refusal);
        }
        let Some(channel) = &mut self.channel else { return Ok(Attempt::Silence) };
        if self.flows.is_empty() {
            match open_toy(channel)? {
                Ok((_, flows)) => self.flows = flows,
                Err(reason) => return Ok(Attempt::Refused(reason)),
            }
        }
        let flows = self.flows.iter().map(|flow| (flow.flow, flow.direction));
        let messages: Vec<u8> = match self.changes {
            true => flows.flat_map(|flow| changes(flow, &mut self.epoch)).collect(),
            false => flows.flat_map(|(flow, _)| acknowledgements(flow)).collect(),
        };
        channel.send(&[messages, Control::Ping { id: 1, sent: 1, received: 0 }.emit()].concat())?;
        let (mut is_read, mut answer) = (false, None);
        while !is_read {
            match channel.receive_alive()? {
                Control::Pong { .. } => is_read = true,
                Control::Flow { flow, message: FlowControl::Change { epoch, .. } } => {
                    let agreed =
                        Control::Flow { flow, message: FlowControl::Changed { epoch, refusal: None } }.emit();
                    let begun = Control::Flow { flow, message: FlowControl::Begun { epoch } }.emit();
                    channel.send(&[agreed, begun].concat())?;
                    answer = Some("changed (allowed)".to_string());
                }
                Control::Flow { message: FlowControl::Changed { refusal, .. }, .. } => {
                    answer = answer.or(Some(refusal.unwrap_or_else(|| "ready for another pipeline".into())));
                }
                goodbye @ Control::Goodbye { .. } => return Err(io::Error::other(reason(goodbye))),
                _ => {}
            }
        }
        Ok(Attempt::Refused(answer.unwrap_or_else(|| "read (allowed)".into())))
    }
}

/// Returns acknowledgements and requests for records that were never sent.
fn acknowledgements(flow: u32) -> Vec<u8> {
    let epoch = 1;
    let ranges = (0..MISSING_RANGES_MAX as u64).map(|range| (range * 2, range * 2 + 1)).collect();
    let messages = [
        Control::Flow { flow, message: FlowControl::Acknowledge { epoch, next: 0 } },
        Control::Flow { flow, message: FlowControl::Missing { epoch, ranges } },
        Control::Flow {
            flow,
            message: FlowControl::Feedback { received: 1, lost: 1, delay_us: 1, jitter_us: 1 },
        },
        Control::Flow { flow, message: FlowControl::Resync { epoch } },
        Control::Flow { flow, message: FlowControl::Begun { epoch } },
        Control::Flow { flow, message: FlowControl::Trimmed { epoch, sequence: 0 } },
        Control::Flow { flow, message: FlowControl::Pair { epoch, pair: 0, body: vec![0; 64] } },
    ];
    messages.iter().flat_map(Control::emit).collect::<Vec<_>>().repeat(WORDS)
}

/// Returns changes of a flow's pipeline, as its sink or as its source.
fn changes((flow, direction): (u32, FlowDirection), epoch: &mut u32) -> Vec<u8> {
    let change = |number: usize| {
        let pipeline = ["compress(level=19)", "reorder | compress"][number % 2].to_string();
        *epoch += 1;
        match direction {
            FlowDirection::DeviceToApplication => {
                Control::Flow { flow, message: FlowControl::Propose { pipeline } }.emit()
            }
            FlowDirection::ApplicationToDevice => {
                Control::Flow { flow, message: FlowControl::Change { epoch: *epoch, pipeline } }.emit()
            }
        }
    };
    (0..WORDS).flat_map(change).collect()
}

impl Assault for Flooder {
    fn attempt(&mut self, _: &Orders) -> Attempt {
        self.flood().unwrap_or_else(|error| {
            self.channel = None;
            refused(&error)
        })
    }

    fn rest(&mut self) {
        part(&mut self.channel);
    }
}

/// A peer that opens a device and closes it at once.
pub(super) struct Flicker {
    pub(super) caller: Caller,
    pub(super) channel: Option<Channel>,
}

impl Flicker {
    fn flicker(&mut self) -> io::Result<Attempt> {
        if let Some(refusal) = self.caller.enter(&mut self.channel)? {
            return Ok(refusal);
        }
        let Some(channel) = &mut self.channel else { return Ok(Attempt::Silence) };
        Ok(Attempt::Refused(match open_toy(channel)? {
            Ok((driver, _)) => {
                channel.send(&Control::Close { driver, reason: "it has enough".into() }.emit())?;
                "opened (allowed)".into()
            }
            Err(reason) => reason,
        }))
    }
}

impl Assault for Flicker {
    fn attempt(&mut self, _: &Orders) -> Attempt {
        self.flicker().unwrap_or_else(|error| {
            self.channel = None;
            refused(&error)
        })
    }

    fn rest(&mut self) {
        part(&mut self.channel);
    }
}
