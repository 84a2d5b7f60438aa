//! What the kernel does with the records of a traced transport: when it had what came, and when it passes on
//! what a call took. Nothing of this is there while nobody traces.

use contract::{Ctl, CtlReply, Moment, PartnerError, Progress, Time, Told};
use smallvec::SmallVec;
use std::collections::VecDeque;
use std::io::{self, IoSlice};
use std::os::fd::BorrowedFd;
use sys::clock::real_to_boot_ns;
use sys::net::{SentMoment, keep_times, send, send_datagrams, send_timed, sent_time};

/// Calls of which the kernel has not told everything yet.
const CALLS_MAX: usize = 8;

/// A call that the kernel tells of.
#[derive(Debug)]
struct Call {
    /// As the kernel numbers it.
    number: u32,
    /// The watched record that it took the end of.
    record: Option<u64>,
    /// Whether the kernel told of [`SentMoment::Scheduled`] and of [`SentMoment::Driver`]: what is sent again
    /// passes there again.
    told: [bool; 2],
}

/// The watch on one connected socket.
#[derive(Debug)]
pub(crate) struct Watch {
    /// Numbers count bytes, and the peer acknowledges.
    is_stream: bool,
    /// The kernel tells of what it passes on.
    is_on: bool,
    /// It notes when data comes.
    notes_arrivals: bool,
    /// A stream's bytes, or the timed calls, since the kernel began to count; `None` if it does not.
    counted: Option<u64>,
    /// The record whose last byte is watched.
    next: Option<u64>,
    calls: SmallVec<[Call; CALLS_MAX]>,
    told: VecDeque<Told>,
    /// When the kernel had what was received last. It is asked for now and then: by its own clock until then.
    pub(crate) arrived_real_ns: Option<u64>,
}

impl Watch {
    /// For a stream, or for datagrams.
    pub(crate) fn new(is_stream: bool) -> Self {
        Watch {
            is_stream,
            is_on: false,
            notes_arrivals: false,
            counted: None,
            next: None,
            calls: SmallVec::new(),
            told: VecDeque::new(),
            arrived_real_ns: None,
        }
    }

    /// Whether the kernel tells when data came.
    pub(crate) fn notes_arrivals(&self) -> bool {
        self.notes_arrivals
    }

    /// Answers [`Ctl::Watch`]; of all records, `pushed` were pushed and `written` are with the kernel.
    pub(crate) fn answer(
        &mut self,
        operation: Ctl<'_>,
        socket: BorrowedFd<'_>,
        (pushed, written): (u64, u64),
    ) -> Result<CtlReply, PartnerError> {
        let Ctl::Watch(operation) = operation else {
            return Err(PartnerError::Unsupported("this operation"));
        };
        match operation {
            contract::Watch::Begin => {
                self.is_on = keep_times(socket, self.is_stream, false).is_ok();
                // Once begun, the kernel goes on counting where it is.
                self.counted = self.counted.or(self.is_on.then_some(0));
            }
            contract::Watch::Arrivals(on) => {
                // If it does not end, arrivals are noted on, and nobody looks.
                let is_told = keep_times(socket, self.is_stream, on && self.is_on).is_ok();
                self.notes_arrivals = on && self.is_on && is_told;
                self.arrived_real_ns = None;
            }
            contract::Watch::End => {
                let _ = keep_times(socket, self.is_stream, false);
                (self.is_on, self.notes_arrivals, self.next) = (false, false, None);
            }
            contract::Watch::Next => self.next = Some(pushed + 1).filter(|_| self.is_on),
            contract::Watch::Progress => {
                self.hear(socket);
                let arrived = self.arrived_real_ns.map(real_to_boot_ns).map(Time);
                let told = self.told.pop_front();
                let expects = !self.calls.is_empty() || !self.told.is_empty();
                return Ok(CtlReply::Progress(Progress { pushed, written, arrived, told, expects }));
            }
        }
        Ok(CtlReply::Done)
    }

    /// Sends as [`send`] does, or [`send_datagrams`] where there is a segment.
    pub(crate) fn send(
        &mut self,
        socket: BorrowedFd<'_>,
        slices: &[IoSlice<'_>],
        segment: Option<u16>,
    ) -> io::Result<usize> {
        let is_timed = self.next.is_some() && self.calls.len() < CALLS_MAX;
        let count = match (is_timed, segment) {
            (true, segment) => send_timed(socket, slices, segment)?,
            (false, None) => send(socket, slices)?,
            (false, Some(segment)) => send_datagrams(socket, slices, segment)?,
        };
        if let Some(counted) = &mut self.counted {
            let before = *counted;
            *counted += if self.is_stream { count as u64 } else { u64::from(is_timed) };
            if is_timed {
                let number = if self.is_stream { *counted - 1 } else { before };
                self.calls.push(Call { number: number as u32, record: None, told: [false; 2] });
            }
        }
        Ok(count)
    }

    /// After a call: the kernel has so many whole records by now.
    pub(crate) fn written(&mut self, written: u64) {
        if let Some(next) = self.next.filter(|next| *next <= written) {
            self.next = None;
            if let Some(call) = self.calls.last_mut() {
                call.record = Some(next);
            }
        }
    }

    /// Takes what the kernel has to tell.
    fn hear(&mut self, socket: BorrowedFd<'_>) {
        if self.calls.is_empty() {
            return;
        }
        let last = if self.is_stream { SentMoment::Acknowledged } else { SentMoment::Driver };
        // An error of the socket shows at the next call that moves data.
        while let Ok(Some(sent)) = sent_time(socket) {
            let Some(place) = self.calls.iter().position(|call| call.number == sent.number) else { continue };
            let call = &mut self.calls[place];
            let (moment, is_first) = match sent.moment {
                SentMoment::Scheduled => (Moment::Scheduled, !std::mem::replace(&mut call.told[0], true)),
                SentMoment::Driver => (Moment::Sent, !std::mem::replace(&mut call.told[1], true)),
                SentMoment::Acknowledged => (Moment::Acknowledged, true),
            };
            if let Some(record) = call.record.filter(|_| is_first) {
                self.told.push_back(Told { record, moment, at: Time(sent.at_ns) });
            }
            if sent.moment == last {
                self.calls.remove(place);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::test_records::{WATCHDOG, partner, pattern, push_to, record};
    use contract::{FlowKey, Partner, Pull, Pulled, TransportClass, Watch as Asked};
    use std::net::{TcpListener, TcpStream, UdpSocket};
    use std::os::fd::{AsFd, OwnedFd};
    use std::time::Instant;

    fn watch(partner: &mut dyn Partner, operation: Asked) -> Progress {
        match partner.ctl(FlowKey::DEFAULT, Ctl::Watch(operation)) {
            Ok(CtlReply::Progress(progress)) => progress,
            Ok(CtlReply::Done) => Progress::default(),
            other => panic!("{other:?}"),
        }
    }

    /// Everything that the kernel tells, behind what it told already, until it has told of this place.
    fn told_until([partner, peer]: [&mut dyn Partner; 2], mut all: Vec<Told>, last: Moment) -> Vec<Told> {
        let begun = Instant::now();
        while all.last().is_none_or(|told: &Told| told.moment != last) {
            assert!(begun.elapsed() < WATCHDOG, "{all:?}");
            all.extend(watch(partner, Asked::Progress).told);
            // What a peer does not read leaves no room for more.
            let _ = peer.pull(FlowKey::DEFAULT, Pull::Yours);
        }
        all
    }

    fn follows_its_records(class: &dyn TransportClass, sockets: [OwnedFd; 2], is_stream: bool) {
        let other = UdpSocket::bind("127.0.0.1:0").unwrap();
        if let Err(error) = keep_times(other.as_fd(), false, false) {
            return eprintln!("SKIPPED: this kernel keeps no times: {error}");
        }
        let [mut here, mut there] = sockets.map(|socket| partner(class, socket, &[]));
        let bytes = [100, 40_000, 200_000, 10];
        let send = |here: &mut dyn Partner, there: &mut dyn Partner, sequence: u64| {
            let body = pattern(bytes[sequence as usize % bytes.len()], sequence);
            push_to(here, there, record(1, sequence, &body));
        };
        send(&mut *here, &mut *there, 0);
        for partner in [&mut here, &mut there] {
            watch(&mut **partner, Asked::Begin);
        }
        let last = if is_stream { Moment::Acknowledged } else { Moment::Sent };
        for sequence in 1..9 {
            if sequence != 5 {
                watch(&mut *here, Asked::Next);
            }
            send(&mut *here, &mut *there, sequence);
            let (begun, mut told) = (Instant::now(), Vec::new());
            // A stream takes a large record in parts, as the other side reads.
            loop {
                let progress = watch(&mut *here, Asked::Progress);
                told.extend(progress.told);
                if progress.written > sequence {
                    break;
                }
                assert!(begun.elapsed() < WATCHDOG, "it is never written");
                let _ = there.pull(FlowKey::DEFAULT, Pull::Yours);
                let _ = here.pull(FlowKey::DEFAULT, Pull::Yours);
                let _ = here.ctl(FlowKey::DEFAULT, Ctl::Flush);
            }
            if sequence == 5 {
                continue;
            }
            let told = told_until([&mut *here, &mut *there], told, last);
            assert!(told.iter().all(|told| told.record == sequence + 1), "{told:?}");
            assert!(told.len() >= 2, "{told:?}");
            assert!(!watch(&mut *here, Asked::Progress).expects);
        }
        // Arrivals are told of as long as they are asked for.
        assert_eq!(watch(&mut *there, Asked::Progress).arrived, None);
        watch(&mut *there, Asked::Arrivals(true));
        let begun = Instant::now();
        let mut sequence = 9;
        while watch(&mut *there, Asked::Progress).arrived.is_none() {
            assert!(begun.elapsed() < WATCHDOG, "no time of arrival");
            send(&mut *here, &mut *there, 3 + 4 * sequence);
            while let Ok(Pulled::Message(..)) = there.pull(FlowKey::DEFAULT, Pull::Yours) {}
            sequence += 1;
        }
        watch(&mut *there, Asked::Arrivals(false));
        assert_eq!(watch(&mut *there, Asked::Progress).arrived, None);
        watch(&mut *here, Asked::End);
        watch(&mut *here, Asked::Next);
        send(&mut *here, &mut *there, 3);
        let progress = watch(&mut *here, Asked::Progress);
        assert_eq!((progress.told, progress.expects), (None, false), "nobody asks any more");
        assert_eq!(progress.pushed, progress.written);
    }

    #[test]
    fn tcp_is_followed() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let here = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (there, _) = listener.accept().unwrap();
        for socket in [&here, &there] {
            socket.set_nonblocking(true).unwrap();
        }
        follows_its_records(&crate::tcp::Tcp, [here.into(), there.into()], true);
    }

    #[test]
    fn udp_is_followed() {
        let [here, there] = [(); 2].map(|()| UdpSocket::bind("127.0.0.1:0").unwrap());
        here.connect(there.local_addr().unwrap()).unwrap();
        there.connect(here.local_addr().unwrap()).unwrap();
        follows_its_records(&crate::udp::Udp, [here.into(), there.into()], false);
    }
}
