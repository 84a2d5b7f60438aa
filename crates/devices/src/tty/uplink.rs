//! The messages between a terminal's thread in the broker and its worker: packets of a socket pair, one message each.
//!
//! | direction | packet |
//! |---|---|
//! | thread → worker | creation time: u64, a message of the format `serial` |
//! | worker → thread | a message of the format `serial`, or [`SNAPSHOT`] |
//!
//! Beyond [`WAITING_MAX`] changes of lines and settings only the last state is kept.

use crate::serial::{OutputLines, Outputs, SerialMessage, Settings};
use contract::{Body, Time};
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags, recv, send};
use std::collections::VecDeque;
use std::os::fd::OwnedFd;

/// Request of the worker: the state of the program.
pub(super) const SNAPSHOT: u8 = 0xff;
/// The most bytes of the line in a packet.
pub(super) const PIECE_BYTES: usize = 4096;
/// The most bytes of a packet.
pub(super) const PACKET_BYTES_MAX: usize = PIECE_BYTES + 64;
/// Messages that wait for the worker.
pub(super) const WAITING_MAX: usize = 256;

/// A connection ended.
#[derive(Debug)]
pub(super) struct Ended;

/// A change that the program made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Change {
    Settings(Settings),
    Outputs(OutputLines),
}

/// Messages that wait for the worker.
#[derive(Debug, Default)]
pub(super) struct Uplink {
    waiting: VecDeque<Vec<u8>>,
    /// Changes were dropped, so the state has to follow.
    is_stale: bool,
    /// The last change of the program's lines.
    changed_at: Option<Time>,
}

impl Uplink {
    /// Returns true if there is room for data.
    pub(super) fn has_room(&self) -> bool {
        self.waiting.len() < WAITING_MAX
    }

    /// The number of messages that wait.
    pub(super) fn len(&self) -> usize {
        self.waiting.len()
    }

    /// The bytes of the line that wait.
    pub(super) fn data_bytes(&self) -> usize {
        self.waiting.iter().filter(|packet| is_data(packet)).map(|packet| packet.len() - 9).sum()
    }

    /// Drops the data that wait.
    pub(super) fn drop_data(&mut self) {
        self.waiting.retain(|packet| !is_data(packet));
    }

    pub(super) fn send_data(&mut self, data: &[u8], now: Time) {
        for piece in data.chunks(PIECE_BYTES) {
            self.send(SerialMessage::Data(Body::from(piece.to_vec())), now);
        }
    }

    pub(super) fn send_change(&mut self, change: Change, now: Time) {
        if self.is_stale || self.waiting.len() >= WAITING_MAX {
            self.is_stale = true;
            return;
        }
        let message = match change {
            Change::Settings(settings) => SerialMessage::Settings(settings),
            Change::Outputs(lines) => {
                let since = self.changed_at.replace(now).map(|last| now.since(last).as_micros());
                let since_us =
                    since.and_then(|since_us| since_us.try_into().ok()).unwrap_or(Outputs::UNRELATED);
                SerialMessage::Outputs(Outputs { lines, since_us })
            }
        };
        self.send(message, now);
    }

    /// The worker requests the state.
    pub(super) fn request_state(&mut self) {
        self.is_stale = true;
    }

    /// Returns true if the state has to be sent, and there is room for it.
    pub(super) fn wants_state(&self) -> bool {
        self.is_stale && self.waiting.len() < WAITING_MAX / 2
    }

    /// Sends the state of the program.
    pub(super) fn send_state(&mut self, (settings, lines): (Settings, OutputLines), now: Time) {
        self.is_stale = false;
        if settings != Settings::default() {
            self.send(SerialMessage::Settings(settings), now);
        }
        self.send(SerialMessage::Outputs(Outputs { lines, since_us: Outputs::UNRELATED }), now);
    }

    fn send(&mut self, message: SerialMessage, now: Time) {
        self.waiting.push_back([&now.0.to_le_bytes()[..], &message.emit().into_bytes()].concat());
    }

    /// Writes as much as the socket takes. Returns true if it took a packet.
    pub(super) fn write(&mut self, socket: &OwnedFd) -> Result<bool, Ended> {
        let before = self.waiting.len();
        while let Some(packet) = self.waiting.front() {
            match send(socket, packet, SendFlags::DONTWAIT | SendFlags::NOSIGNAL) {
                Ok(_) => drop(self.take_packet()),
                Err(Errno::AGAIN | Errno::INTR) => break,
                Err(_) => return Err(Ended),
            }
        }
        Ok(self.waiting.len() < before)
    }

    /// Takes the next packet, as a worker does.
    pub(super) fn take_packet(&mut self) -> Option<Vec<u8>> {
        self.waiting.pop_front()
    }
}

/// Returns true if this packet to the worker has data: the kind is behind the creation time.
fn is_data(packet: &[u8]) -> bool {
    packet.get(8) == Some(&0)
}

/// Reads a packet of the worker. Without room only the end of the connection is noticed.
pub(super) fn read(socket: &OwnedFd, has_room: bool) -> Result<Option<Vec<u8>>, Ended> {
    let mut packet = [0; PACKET_BYTES_MAX];
    let peek = if has_room { RecvFlags::empty() } else { RecvFlags::PEEK };
    match recv(socket, &mut packet[..], RecvFlags::DONTWAIT | peek) {
        Ok((0, _)) => Err(Ended),
        Ok((count, _)) if has_room => Ok(Some(packet[..count].to_vec())),
        Ok(_) | Err(Errno::AGAIN | Errno::INTR) => Ok(None),
        Err(_) => Err(Ended),
    }
}
