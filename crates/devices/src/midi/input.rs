//! Reads a line: raw bytes of a MIDI device, or events of a sequencer.

use super::event::{Decoder, EVENT_BYTES, Event, News, READ_BYTES};
use super::stream::Splitter;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use std::io;
use std::os::fd::OwnedFd;
use sys::sequencer::{ANNOUNCE, Address};
use wire::formats::midi::MidiMessage;

/// Programs that play into the node and are counted, at most.
const PLAYERS_MAX: usize = 64;
/// Bytes that a raw device returns at once, at most.
const RAW_BYTES: usize = 256;

/// The end of a line that messages come from.
#[derive(Debug)]
pub(super) enum Input {
    /// The raw bytes of a MIDI device.
    Raw(Splitter),
    /// The events of a port.
    Sequencer(Events),
}

/// Events of a sequencer's client, read and not handled yet.
#[derive(Debug)]
pub(super) struct Events {
    /// The port whose events count, and whose loss ends the line; at an application, those of all programs count.
    device: Option<Address>,
    /// Programs that are connected to an application's port.
    players: Vec<Address>,
    decoder: Decoder,
    bytes: Vec<u8>,
    /// Memory for one read.
    room: Box<[u8]>,
}

/// The result of one read.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Arrival {
    /// Messages, or something that is none.
    Some,
    Nothing,
    /// The kernel dropped events: its queue was full.
    Lost,
    /// The last program that was connected is gone.
    NoPlayer,
    /// The device is gone.
    Gone,
}

impl Input {
    pub(super) fn events(device: Option<Address>) -> Input {
        Input::Sequencer(Events {
            device,
            players: Vec::new(),
            decoder: Decoder::default(),
            bytes: Vec::new(),
            room: vec![0; READ_BYTES].into(),
        })
    }

    /// Reads once; appends the messages to `into`.
    pub(super) fn read(&mut self, line: &OwnedFd, into: &mut Vec<MidiMessage>) -> io::Result<Arrival> {
        match self {
            Input::Raw(splitter) => {
                let mut bytes = [0; RAW_BYTES];
                match rustix::io::read(line, &mut bytes) {
                    Ok(0) => Ok(Arrival::Gone),
                    Ok(count) => {
                        into.extend(bytes[..count].iter().flat_map(|byte| splitter.push(*byte)).flatten());
                        Ok(Arrival::Some)
                    }
                    // The device has no output: it was opened for writing only, and only a poll tells whether it is still there.
                    Err(Errno::BADF) if is_unplugged(line) => Ok(Arrival::Gone),
                    Err(Errno::BADF) => Ok(Arrival::Nothing),
                    Err(error) => arrival(error),
                }
            }
            Input::Sequencer(events) => {
                let arrival = events.read(line, into)?;
                if arrival == Arrival::Lost {
                    events.decoder.drop_partial();
                }
                Ok(arrival)
            }
        }
    }

    /// Returns the number of bytes that were read and made no message yet.
    pub(super) fn bytes_ahead(&self) -> usize {
        match self {
            Input::Raw(splitter) => splitter.partial_bytes(),
            Input::Sequencer(events) => events.bytes.len() + events.decoder.partial_bytes(),
        }
    }

    /// Figures: system exclusive messages dropped, bytes or events that were no message.
    pub(super) fn dropped(&self) -> [u64; 2] {
        match self {
            Input::Raw(splitter) => [splitter.too_long, splitter.stray_bytes],
            Input::Sequencer(events) => [events.decoder.sysex_dropped, events.decoder.other_events],
        }
    }
}

fn is_unplugged(line: &OwnedFd) -> bool {
    let mut polled = [PollFd::new(line, PollFlags::empty())];
    let at_once = Timespec { tv_sec: 0, tv_nsec: 0 };
    poll(&mut polled, Some(&at_once)).is_ok()
        && polled[0].revents().intersects(PollFlags::ERR | PollFlags::HUP | PollFlags::NVAL)
}

fn arrival(error: Errno) -> io::Result<Arrival> {
    match error {
        Errno::AGAIN | Errno::INTR => Ok(Arrival::Nothing),
        // A sequencer's queue was full, and the kernel emptied it. A raw device's bytes were too many.
        Errno::NOSPC => Ok(Arrival::Lost),
        Errno::NODEV | Errno::IO => Ok(Arrival::Gone),
        error => Err(error.into()),
    }
}

impl Events {
    fn read(&mut self, line: &OwnedFd, into: &mut Vec<MidiMessage>) -> io::Result<Arrival> {
        // One event at a time: events that were read would be lost with the worker. One with data needs more room, and
        // the kernel keeps it until then.
        for room in [0, EVENT_BYTES, READ_BYTES] {
            let filled = if room > 0 { self.fill(line, room) } else { Ok(()) };
            if let Some(arrival) = self.handle(into) {
                return Ok(arrival);
            }
            match filled {
                Ok(()) | Err(Errno::AGAIN) => {}
                Err(error) => return arrival(error),
            }
        }
        Ok(Arrival::Nothing)
    }

    fn fill(&mut self, line: &OwnedFd, room: usize) -> Result<(), Errno> {
        match rustix::io::read(line, &mut self.room[..room])? {
            0 => Err(Errno::NODEV),
            count => {
                self.bytes.extend(&self.room[..count]);
                Ok(())
            }
        }
    }

    /// Handles the first event, if it is complete.
    fn handle(&mut self, into: &mut Vec<MidiMessage>) -> Option<Arrival> {
        let (event, length) = Event::first(&self.bytes)?;
        let mut arrival = Arrival::Some;
        if event.source.client == ANNOUNCE.client {
            if let Some(news) = event.news() {
                arrival = news_arrival(news, self.device, &mut self.players);
            }
        } else if self.device.is_none_or(|device| device == event.source) {
            self.decoder.decode(&event, |message| into.push(message));
        }
        self.bytes.drain(..length);
        Some(arrival)
    }
}

fn news_arrival(news: News, device: Option<Address>, players: &mut Vec<Address>) -> Arrival {
    match (news, device) {
        (News::ClientExit(client), Some(device)) if client == device.client => Arrival::Gone,
        (News::PortExit(port), Some(device)) if port == device => Arrival::Gone,
        // The kernel tells these to the port's own client alone; the other end of a subscription is the sender.
        (News::Subscribed { sender, .. }, None) => {
            if players.len() < PLAYERS_MAX {
                players.push(sender);
            }
            Arrival::Some
        }
        (News::Unsubscribed { sender, .. }, None) => {
            players.retain(|player| *player != sender);
            if players.is_empty() { Arrival::NoPlayer } else { Arrival::Some }
        }
        _ => Arrival::Some,
    }
}
