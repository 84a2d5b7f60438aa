//! The state that a service leaves to the next program through the service manager, which keeps one descriptor: a socket in
//! which a memory and the other descriptors wait.
//!
//! ```text
//! memory    magic `OUTH`, layout: u16, entries: u16, then each entry:
//! entry     key: text, bytes: blob, descriptors: u16
//! ```
//!
//! The next program accepts its own layout only. Otherwise it opens everything again, as after a stop.

use bytes::BytesMut;
use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
use std::collections::VecDeque;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::{Mutex, PoisonError};
use sys::descriptor::{DESCRIPTORS_MAX, receive_with, send_with};
use sys::memory::{Access, Shared, create};
use wire::{Reader, WireError, Writer};
use worker::Handover;

const MAGIC: [u8; 4] = *b"OUTH";
/// The layout of everything that is handed over: this module, `broker::handover`, the commands of a worker, the descriptions of
/// devices, the recovery log, and the checkpoints of stages. A change of any of them is a new layout.
const LAYOUT: u16 = 3;
/// The longest memory, key, and entry in bytes.
const BYTES_MAX: usize = 1 << 30;
const KEY_BYTES_MAX: usize = 1 << 20;

/// The state that came from the previous program, and the state that the next one gets; by key.
#[derive(Debug, Default)]
pub(super) struct Handovers {
    taken: Mutex<Vec<(String, Handover)>>,
    left: Mutex<Vec<(String, Handover)>>,
}

impl Handovers {
    pub(super) fn of(taken: Vec<(String, Handover)>) -> Handovers {
        Handovers { taken: Mutex::new(taken), left: Mutex::default() }
    }

    /// Takes the first state with this key.
    pub(super) fn take(&self, key: &str) -> Option<Handover> {
        let mut taken = self.taken.lock().unwrap_or_else(PoisonError::into_inner);
        let at = taken.iter().position(|(known, _)| known == key)?;
        Some(taken.remove(at).1)
    }

    /// Closes the state that no entry of the file has taken.
    pub(super) fn discard(&self) {
        self.taken.lock().unwrap_or_else(PoisonError::into_inner).clear();
    }

    /// Leaves the state of an entry.
    pub(super) fn leave(&self, key: String, handover: Handover) {
        self.left.lock().unwrap_or_else(PoisonError::into_inner).push((key, handover));
    }

    /// Returns everything that was left, as one descriptor.
    pub(super) fn pack(&self) -> io::Result<OwnedFd> {
        pack(std::mem::take(&mut *self.left.lock().unwrap_or_else(PoisonError::into_inner)))
    }
}

fn pack(left: Vec<(String, Handover)>) -> io::Result<OwnedFd> {
    let (mut w, mut descriptors) = (Writer::new(), Vec::new());
    w.raw(&MAGIC).u16(LAYOUT).u16(left.len() as u16);
    for (key, handover) in left {
        w.text(&key).blob(&handover.bytes).u32(handover.descriptors.len() as u32);
        descriptors.extend(handover.descriptors);
    }
    let memory = create("outboard-handover", w.bytes().len())?;
    Shared::map(&memory, Access::Write)?.copy_in(0, w.bytes());
    descriptors.insert(0, memory);
    let (ours, stored) = socketpair(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
    for some in descriptors.chunks(DESCRIPTORS_MAX) {
        send_with(&ours, &[0], some)?;
    }
    Ok(stored)
}

/// Reads the state of the previous program. An error says why it cannot be used.
pub(super) fn unpack(stored: OwnedFd) -> Result<Vec<(String, Handover)>, String> {
    let (mut ignored, mut descriptors) = (BytesMut::new(), VecDeque::new());
    while receive_with(&stored, &mut ignored, DESCRIPTORS_MAX, Some(&mut descriptors))
        .is_ok_and(|count| count > 0)
    {}
    // A program that ended before it left anything has read the socket.
    let Some(memory) = descriptors.pop_front() else { return Ok(Vec::new()) };
    let shared = Shared::map(&memory, Access::Read).map_err(|error| error.to_string())?;
    let mut bytes = vec![0; shared.bytes().min(BYTES_MAX)];
    shared.copy_out(0, &mut bytes);
    parse(&bytes, descriptors)
}

fn parse(bytes: &[u8], descriptors: VecDeque<OwnedFd>) -> Result<Vec<(String, Handover)>, String> {
    let error = |error: WireError| error.to_string();
    let mut r = Reader::new(bytes);
    let magic: [u8; 4] = r.array("magic").map_err(error)?;
    let layout = r.u16("layout").map_err(error)?;
    if magic != MAGIC || layout != LAYOUT {
        return Err(format!("it has layout {layout}, and this program has layout {LAYOUT}"));
    }
    let mut descriptors = descriptors.into_iter();
    let count = r.u16("entries").map_err(error)?;
    let mut entry = || -> Result<_, WireError> {
        let key = r.text("key", KEY_BYTES_MAX)?.to_string();
        let bytes = r.blob("entry", BYTES_MAX)?.to_vec();
        let count = r.u32("descriptors")? as usize;
        Ok((key, Handover { bytes, descriptors: descriptors.by_ref().take(count).collect() }))
    };
    (0..count).map(|_| entry()).collect::<Result<_, _>>().map_err(error)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read, Write};
    use std::os::unix::net::UnixStream;

    #[test]
    fn state_arrives_with_its_descriptors_in_order() {
        let pairs: Vec<_> = (0..200).map(|_| UnixStream::pair().unwrap()).collect();
        let (mut near, far): (Vec<_>, Vec<_>) = pairs.into_iter().unzip();
        let mut far = far.into_iter().map(OwnedFd::from);
        let entry = |key: &str, descriptors: Vec<OwnedFd>| {
            (key.to_string(), Handover { bytes: key.into(), descriptors })
        };
        let left = vec![entry("a", far.by_ref().take(150).collect()), entry("b", far.collect())];
        let mut all = Vec::new();
        for (key, handover) in unpack(pack(left).unwrap()).unwrap() {
            assert_eq!(key.as_bytes(), handover.bytes);
            all.extend(handover.descriptors);
        }
        for (number, (near, far)) in near.iter_mut().zip(all).enumerate() {
            UnixStream::from(far).write_all(&[number as u8]).unwrap();
            let mut byte = [0];
            near.read_exact(&mut byte).unwrap();
            assert_eq!(byte[0], number as u8);
        }
    }

    #[test]
    fn another_layout_is_refused() {
        let mut w = Writer::new();
        w.raw(&MAGIC).u16(LAYOUT + 1).u16(0);
        let error = parse(w.bytes(), VecDeque::new()).unwrap_err();
        assert_eq!(error, format!("it has layout {}, and this program has layout {LAYOUT}", LAYOUT + 1));
    }

    #[test]
    fn a_read_socket_has_nothing() {
        let stored = pack(Vec::new()).unwrap();
        assert!(unpack(stored.try_clone().unwrap()).unwrap().is_empty());
        assert!(unpack(stored).unwrap().is_empty());
    }
}
