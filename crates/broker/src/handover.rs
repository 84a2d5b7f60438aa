//! Sessions as one program leaves them to the next, when a service is upgraded.
//!
//! ```text
//!  program n                                                program n+1
//!    the workers exit and leave devices and nodes open        opens nothing: it has the descriptors
//!    bytes and descriptors ─► service manager ─────────────►  starts workers, which resume from the recovery logs
//!                                                             the session resumes as after the loss of its link
//! ```
//!
//! The next program needs what a new worker needs ([`worker::TakenDriver`]) and the state of the control channel. A session
//! with a part that is no descriptor (a hub, `exec`, a change of a pipeline in progress) ends as at any stop, and its
//! application host opens its devices again.

use crate::peer_session::PeerSession;
use contract::{Bytes, DeviceSpec, Opened};
use flow::types::Notice;
use session::{Limits, SavedChannel};
use std::net::{TcpListener, UdpSocket};
use std::os::fd::OwnedFd;
use sys::listening::Listening;
use sys::poller::Poller;
use trust::PeerKey;
use wire::control::FRAME_BYTES_MAX;
use wire::preamble::SessionToken;
use wire::{Control, Reader, WireError, Writer};
use worker::{Handover, Report, TakenDriver, Workers};

/// The longest driver in bytes: three commands of a worker.
const DRIVER_BYTES_MAX: usize = 64 << 20;

/// The part of a session that both roles save.
pub(crate) struct SavedSession {
    pub(crate) token: SessionToken,
    /// Number of the latest connection.
    pub(crate) attempt: u32,
    /// The peer's key, with which alone the session resumes.
    pub(crate) key: Option<PeerKey>,
    /// The peer's address.
    pub(crate) address: String,
    pub(crate) channel: SavedChannel,
}

impl SavedSession {
    pub(crate) fn write(&self, w: &mut Writer) {
        w.raw(&self.token.0).u32(self.attempt).u8(self.key.is_some().into());
        if let Some(key) = &self.key {
            w.raw(&key.0);
        }
        let SavedChannel { received, kept, kept_from } = &self.channel;
        w.text(&self.address).u64(*received).u64(*kept_from).u32(kept.len() as u32);
        for frame in kept {
            w.blob(frame);
        }
    }

    pub(crate) fn read(r: &mut Reader<'_>) -> Result<SavedSession, WireError> {
        let (token, attempt) = (SessionToken(r.array("token")?), r.u32("attempt")?);
        let key = match r.u8("key")? {
            0 => None,
            _ => Some(PeerKey(r.array("key")?)),
        };
        let address = text(r, "address")?;
        let (received, kept_from, count) = (r.u64("received")?, r.u64("kept from")?, r.u32("kept")?);
        let frame = |_| Ok(Bytes::copy_from_slice(r.blob("frame", FRAME_BYTES_MAX + 4)?));
        let kept = (0..count).map(frame).collect::<Result<_, WireError>>()?;
        Ok(SavedSession { token, attempt, key, address, channel: SavedChannel { received, kept, kept_from } })
    }
}

pub(crate) fn text(r: &mut Reader<'_>, what: &'static str) -> Result<String, WireError> {
    Ok(r.text(what, wire::control::REASON_BYTES_MAX)?.into())
}

/// Appends a driver to a session.
pub(crate) fn put_driver(w: &mut Writer, driver: Handover, descriptors: &mut Vec<OwnedFd>) {
    w.u16(driver.descriptors.len() as u16).blob(&driver.bytes);
    descriptors.extend(driver.descriptors);
}

/// Reads a driver of a session.
pub(crate) fn read_driver(
    r: &mut Reader<'_>,
    descriptors: &mut impl Iterator<Item = OwnedFd>,
) -> Result<TakenDriver, String> {
    let error = |error: WireError| error.to_string();
    let count = r.u16("descriptors").map_err(error)?;
    let descriptors = descriptors.by_ref().take(count.into()).collect();
    let bytes = r.blob("driver", DRIVER_BYTES_MAX).map_err(error)?.to_vec();
    TakenDriver::parse(Handover { bytes, descriptors })
}

/// The sockets and sessions that the previous program has left at an address.
pub struct Left {
    listening: Option<Listening>,
    pub(crate) sessions: Vec<LeftSession>,
}

/// A session of the previous program.
pub(crate) struct LeftSession {
    pub(crate) saved: SavedSession,
    pub(crate) name: String,
    pub(crate) has_catalogue: bool,
    pub(crate) drivers: Vec<LeftDriver>,
}

/// A driver with the name and the specification of its device, by which the device is found among those on offer.
pub(crate) struct LeftDriver {
    pub(crate) name: String,
    spec: String,
    pub(crate) taken: TakenDriver,
}

impl Left {
    /// Reads the state of the previous program.
    pub fn parse(handover: Handover) -> Result<Left, String> {
        let Handover { bytes, descriptors } = handover;
        let (mut r, mut descriptors) = (Reader::new(&bytes), descriptors.into_iter());
        let tcp = descriptors.next().map(TcpListener::from);
        let udp = descriptors.next().map(UdpSocket::from);
        let (tcp, udp) = tcp.zip(udp).ok_or("it has no sockets")?;
        let listening = Some(Listening::on(tcp, udp).map_err(|error| error.to_string())?);
        let count = r.u16("sessions").map_err(|error| error.to_string())?;
        let session = |_| LeftSession::read(&mut r, &mut descriptors);
        let sessions = (0..count).map(session).collect::<Result<_, String>>()?;
        r.end("sessions").map_err(|error| error.to_string())?;
        Ok(Left { listening, sessions })
    }

    /// Takes the sockets.
    pub fn take_listening(&mut self) -> Option<Listening> {
        self.listening.take()
    }

    /// Returns the open device with this name and specification, if a session uses it.
    pub(crate) fn device(&self, name: &str, spec: &DeviceSpec) -> Option<&Opened> {
        let spec = spec_text(spec);
        let mut drivers = self.sessions.iter().flat_map(|session| &session.drivers);
        let found = drivers.find(|driver| driver.name == name && driver.spec == spec)?;
        Some(&found.taken.opened)
    }
}

impl LeftSession {
    fn read(
        r: &mut Reader<'_>,
        descriptors: &mut impl Iterator<Item = OwnedFd>,
    ) -> Result<LeftSession, String> {
        let error = |error: WireError| error.to_string();
        let saved = SavedSession::read(r).map_err(error)?;
        let name = text(r, "name").map_err(error)?;
        let has_catalogue = r.u8("catalogue").map_err(error)? != 0;
        let count = r.u16("drivers").map_err(error)?;
        let mut drivers = Vec::new();
        for _ in 0..count {
            let (name, spec) = (text(r, "device").map_err(error)?, text(r, "spec").map_err(error)?);
            drivers.push(LeftDriver { name, spec, taken: read_driver(r, descriptors)? });
        }
        Ok(LeftSession { saved, name, has_catalogue, drivers })
    }
}

/// Returns a specification as text. Equal texts mean the same device.
pub(crate) fn spec_text(spec: &DeviceSpec) -> String {
    let options: String = spec.options.iter().map(|(name, value)| format!(",{name}={value}")).collect();
    format!("{}:{}{options}", spec.class, spec.target)
}

impl<D> PeerSession<D> {
    /// Returns whether the next program can continue the session.
    pub(crate) fn can_hand_over(&self) -> bool {
        self.workers.can_hand_over() && !self.is_changing()
    }

    /// Ends the workers and closes the connection; the peer is told nothing. Returns the drivers and the state of the control
    /// channel.
    pub(crate) fn hand_over(
        &mut self,
        poller: &mut Poller,
    ) -> std::io::Result<(Vec<(u32, Handover)>, SavedChannel)> {
        for report in self.workers.leave() {
            if let Report::Notice { notice: Notice::Flow { flow, message }, .. } = report {
                // A full channel ends the session at the next program.
                let _ = self.link.put(&Control::Flow { flow, message });
            }
        }
        self.link.disconnect(poller);
        self.workers.forget(poller);
        let workers = std::mem::replace(&mut self.workers, Workers::new(String::new(), Limits::default()));
        Ok((workers.hand_over()?, self.link.save()))
    }
}
