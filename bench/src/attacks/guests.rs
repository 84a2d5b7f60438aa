//! Peers that may come, and do so without end.

use super::attacker::{Assault, Caller, Came, Orders, open, part, refused};
use super::channel::{Channel, reason};
use std::io;
use wire::Control;
use wire::control::{AgreedFlow, FlowDirection, MISSING_RANGES_MAX};

/// Pings that are said at once.
const PINGS: usize = 100;
/// Of each kind, what is said of a flow at once.
const WORDS: usize = 16;

/// A peer that comes again and again, and never takes leave.
pub(super) struct Opener {
    pub(super) caller: Caller,
}

impl Assault for Opener {
    fn attempt(&mut self, _: &Orders) -> Came {
        match self.caller.call().and_then(|mut channel| channel.greet()) {
            // It is known, and may come.
            Ok(Control::Welcome { .. }) => Came::Refused("welcomed, as it may be".into()),
            Ok(other) => Came::Refused(reason(other)),
            Err(error) => refused(&error),
        }
    }
}

/// A peer that pings as fast as it is answered.
pub(super) struct Chatter {
    pub(super) caller: Caller,
    pub(super) channel: Option<Channel>,
}

impl Chatter {
    fn chat(&mut self) -> io::Result<Came> {
        if let Some(refusal) = self.caller.come_in(&mut self.channel)? {
            return Ok(refusal);
        }
        let Some(channel) = &mut self.channel else { return Ok(Came::Silence) };
        channel.say(&Control::Ping { id: 1, sent: 1, received: 0 }.emit().repeat(PINGS))?;
        let mut pongs = 0;
        while pongs < PINGS {
            pongs += usize::from(matches!(channel.hear()?, Control::Pong { .. }));
        }
        Ok(Came::Refused(format!("{PINGS} pings answered, as they may be")))
    }
}

impl Assault for Chatter {
    fn attempt(&mut self, _: &Orders) -> Came {
        self.chat().unwrap_or_else(|error| {
            self.channel = None;
            refused(&error)
        })
    }
}

/// Opens the toy: its number and its flows, or why not.
fn open_toy(channel: &mut Channel) -> io::Result<Result<(u32, Vec<AgreedFlow>), String>> {
    channel.say(&open("toy", None).emit())?;
    loop {
        match channel.hear_on()? {
            Control::Opened { driver, flows, .. } => return Ok(Ok((driver, flows))),
            Control::Refused { reason, .. } => return Ok(Err(reason)),
            said @ Control::Goodbye { .. } => return Err(io::Error::other(reason(said))),
            _ => {}
        }
    }
}

/// A peer that has a device open, and says of its flows what their other end may say, as fast as it is heard.
pub(super) struct Flooder {
    caller: Caller,
    channel: Option<Channel>,
    /// Other pipelines for them are said; else acknowledgements and the like.
    changes: bool,
    /// Of the device that is open, once it is: its flows.
    flows: Vec<AgreedFlow>,
    /// Rises with each that is named.
    epoch: u32,
}

impl Flooder {
    pub(super) fn new(caller: Caller, changes: bool) -> Flooder {
        Flooder { caller, channel: None, changes, flows: Vec::new(), epoch: 1 }
    }

    fn flood(&mut self) -> io::Result<Came> {
        if self.channel.is_none() {
            self.flows.clear();
        }
        if let Some(refusal) = self.caller.come_in(&mut self.channel)? {
            return Ok(refusal);
        }
        let Some(channel) = &mut self.channel else { return Ok(Came::Silence) };
        if self.flows.is_empty() {
            match open_toy(channel)? {
                Ok((_, flows)) => self.flows = flows,
                Err(reason) => return Ok(Came::Refused(reason)),
            }
        }
        let flows = self.flows.iter().map(|flow| (flow.flow, flow.direction));
        let said: Vec<u8> = match self.changes {
            true => flows.flat_map(|flow| changes(flow, &mut self.epoch)).collect(),
            false => flows.flat_map(|(flow, _)| acknowledgements(flow)).collect(),
        };
        channel.say(&[said, Control::Ping { id: 1, sent: 1, received: 0 }.emit()].concat())?;
        let (mut is_heard, mut answer) = (false, None);
        while !is_heard {
            match channel.hear_on()? {
                Control::Pong { .. } => is_heard = true,
                Control::Change { flow, epoch, .. } => {
                    let agreed = Control::Changed { flow, epoch, refusal: None }.emit();
                    channel.say(&[agreed, Control::Begun { flow, epoch }.emit()].concat())?;
                    answer = Some("changed, as it may be".to_string());
                }
                Control::Changed { refusal, .. } => {
                    answer = answer.or(Some(refusal.unwrap_or_else(|| "ready for another pipeline".into())));
                }
                said @ Control::Goodbye { .. } => return Err(io::Error::other(reason(said))),
                _ => {}
            }
        }
        Ok(Came::Refused(answer.unwrap_or_else(|| "heard, as it may be".into())))
    }
}

/// What nobody asked for, of a flow.
fn acknowledgements(flow: u32) -> Vec<u8> {
    let epoch = 1;
    let ranges = (0..MISSING_RANGES_MAX as u64).map(|range| (range * 2, range * 2 + 1)).collect();
    let said = [
        Control::Acknowledge { flow, epoch, next: 0 },
        Control::Missing { flow, epoch, ranges },
        Control::Feedback { flow, received: 1, lost: 1, delay_us: 1, jitter_us: 1 },
        Control::Resync { flow, epoch },
        Control::Begun { flow, epoch },
        Control::Gone { flow, epoch, sequence: 0 },
        Control::Pair { flow, epoch, pair: 0, body: vec![0; 64] },
    ];
    said.iter().flat_map(Control::emit).collect::<Vec<_>>().repeat(WORDS)
}

/// Other pipelines for a flow, of which this is the sink or the source.
fn changes((flow, direction): (u32, FlowDirection), epoch: &mut u32) -> Vec<u8> {
    let change = |number: usize| {
        let pipeline = ["compress(level=19)", "reorder | compress"][number % 2].to_string();
        *epoch += 1;
        match direction {
            FlowDirection::DeviceToApplication => Control::Propose { flow, pipeline }.emit(),
            FlowDirection::ApplicationToDevice => Control::Change { flow, epoch: *epoch, pipeline }.emit(),
        }
    };
    (0..WORDS).flat_map(change).collect()
}

impl Assault for Flooder {
    fn attempt(&mut self, _: &Orders) -> Came {
        self.flood().unwrap_or_else(|error| {
            self.channel = None;
            refused(&error)
        })
    }

    fn rest(&mut self) {
        part(&mut self.channel);
    }
}

/// A peer that opens a device and closes it at once, again and again.
pub(super) struct Flicker {
    pub(super) caller: Caller,
    pub(super) channel: Option<Channel>,
}

impl Flicker {
    fn flicker(&mut self) -> io::Result<Came> {
        if let Some(refusal) = self.caller.come_in(&mut self.channel)? {
            return Ok(refusal);
        }
        let Some(channel) = &mut self.channel else { return Ok(Came::Silence) };
        Ok(Came::Refused(match open_toy(channel)? {
            Ok((driver, _)) => {
                channel.say(&Control::Close { driver, reason: "it has enough".into() }.emit())?;
                "opened, as it may be".into()
            }
            Err(reason) => reason,
        }))
    }
}

impl Assault for Flicker {
    fn attempt(&mut self, _: &Orders) -> Came {
        self.flicker().unwrap_or_else(|error| {
            self.channel = None;
            refused(&error)
        })
    }

    fn rest(&mut self) {
        part(&mut self.channel);
    }
}
