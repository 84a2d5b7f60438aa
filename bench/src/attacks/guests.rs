//! Peers that may come, and do so without end.

use super::attacker::{Assault, Caller, Came, Orders, open, part, refused};
use super::channel::{Channel, reason};
use wire::Control;

/// Pings that are said at once.
const PINGS: usize = 100;

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
    fn chat(&mut self) -> std::io::Result<Came> {
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

/// A peer that opens a device and closes it at once, again and again.
pub(super) struct Flicker {
    pub(super) caller: Caller,
    pub(super) channel: Option<Channel>,
}

impl Flicker {
    fn flicker(&mut self) -> std::io::Result<Came> {
        if let Some(refusal) = self.caller.come_in(&mut self.channel)? {
            return Ok(refusal);
        }
        let Some(channel) = &mut self.channel else { return Ok(Came::Silence) };
        channel.say(&open("toy", None).emit())?;
        loop {
            match channel.hear_on()? {
                Control::Opened { driver, .. } => {
                    channel.say(&Control::Close { driver, reason: "it has enough".into() }.emit())?;
                    return Ok(Came::Refused("opened, as it may be".into()));
                }
                Control::Refused { reason, .. } => return Ok(Came::Refused(reason)),
                said @ Control::Goodbye { .. } => {
                    self.channel = None;
                    return Ok(Came::Refused(reason(said)));
                }
                _ => {}
            }
        }
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
