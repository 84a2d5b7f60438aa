//! Kernel timestamps of the records of a traced transport (`SO_TIMESTAMPING`): when the kernel received data, and
//! when sent data reached the packet scheduler, the driver and, for TCP, the peer.
//!
//! | [`Mode`] | entered by | the kernel stamps |
//! |---|---|---|
//! | `Off` | creation, [`TraceCtl::End`] | nothing |
//! | `Sends` | [`TraceCtl::Begin`], `Arrivals(false)` | calls that carry a watched record |
//! | `SendsAndArrivals` | `Arrivals(true)` | also all received data |
//!
//! The kernel identifies a send call by a number: the offset of its last byte on a stream, a count of the timed calls
//! for datagrams. It starts to count at the first `Begin` and never restarts.

use contract::{
    Ctl, CtlReply, Moment, PartnerError, PartnerResult, Progress, Time, TraceCtl, TraceReport, TransportCtl,
};
use smallvec::SmallVec;
use std::collections::VecDeque;
use std::io;
use std::os::fd::BorrowedFd;
use sys::clock::real_to_boot_ns;
use sys::net::{SentMoment, Timestamps, keep_times, sent_time};

/// Send calls with outstanding timestamps, at most.
const CALLS_MAX: usize = 8;

/// A send call with outstanding timestamps.
#[derive(Debug)]
struct Call {
    /// The kernel's number for it.
    number: u32,
    /// The watched record, if this call sent its last byte.
    record: Option<u64>,
    /// The kernel has reported [`SentMoment::Scheduled`] and [`SentMoment::Driver`]. A retransmission reports them
    /// again; only the first report counts.
    reported: [bool; 2],
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Mode {
    Off,
    Sends,
    SendsAndArrivals,
}

/// Timestamps of one connected socket.
#[derive(Debug)]
pub(crate) struct KernelTimestamps {
    is_stream: bool,
    mode: Mode,
    /// Bytes of the stream, or timed calls, since the kernel started to count; `None` before that.
    counted: Option<u64>,
    /// The record whose last byte gets timestamps.
    watched: Option<u64>,
    calls: SmallVec<[Call; CALLS_MAX]>,
    reports: VecDeque<TraceReport>,
    /// Arrival of the data that was received last, by the wall clock. It is converted only on request.
    pub(crate) arrived_real_ns: Option<u64>,
}

impl KernelTimestamps {
    pub(crate) fn new(is_stream: bool) -> Self {
        KernelTimestamps {
            is_stream,
            mode: Mode::Off,
            counted: None,
            watched: None,
            calls: SmallVec::new(),
            reports: VecDeque::new(),
            arrived_real_ns: None,
        }
    }

    /// Returns true if the kernel stamps received data.
    pub(crate) fn has_arrivals(&self) -> bool {
        self.mode == Mode::SendsAndArrivals
    }

    /// Performs [`TransportCtl::Trace`]. `pushed` counts all records pushed so far, `written` those that the kernel has.
    pub(crate) fn ctl(
        &mut self,
        operation: Ctl<'_>,
        socket: BorrowedFd<'_>,
        (pushed, written): (u64, u64),
    ) -> PartnerResult<CtlReply> {
        let Ctl::Transport(TransportCtl::Trace(operation)) = operation else {
            return Err(PartnerError::Unsupported("this operation"));
        };
        match operation {
            TraceCtl::Begin => {
                let is_on = keep_times(socket, self.is_stream, Timestamps::Off).is_ok();
                self.mode = if is_on { Mode::Sends } else { Mode::Off };
                // A second `Begin` does not reset the kernel's count.
                self.counted = self.counted.or(is_on.then_some(0));
            }
            TraceCtl::Arrivals(on) => {
                let wanted = on && self.mode != Mode::Off;
                // If switching off fails, the kernel stamps on; nothing reads the stamps.
                let timestamps = if wanted { Timestamps::Arrivals } else { Timestamps::Off };
                let is_set = keep_times(socket, self.is_stream, timestamps).is_ok();
                self.mode = match self.mode {
                    Mode::Off => Mode::Off,
                    _ if wanted && is_set => Mode::SendsAndArrivals,
                    _ => Mode::Sends,
                };
                self.arrived_real_ns = None;
            }
            TraceCtl::End => {
                let _ = keep_times(socket, self.is_stream, Timestamps::Off);
                (self.mode, self.watched) = (Mode::Off, None);
            }
            TraceCtl::Next => self.watched = Some(pushed + 1).filter(|_| self.mode != Mode::Off),
            TraceCtl::Progress => {
                self.read_reports(socket);
                let arrived = self.arrived_real_ns.map(real_to_boot_ns).map(Time);
                let report = self.reports.pop_front();
                let expects = !self.calls.is_empty() || !self.reports.is_empty();
                return Ok(CtlReply::Progress(Progress { pushed, written, arrived, report, expects }));
            }
        }
        Ok(CtlReply::Done)
    }

    /// Sends with `send`, which makes one call that sends on the socket. Requests timestamps of it while a record is
    /// watched.
    pub(crate) fn send(
        &mut self,
        socket: BorrowedFd<'_>,
        send: impl FnOnce() -> io::Result<usize>,
    ) -> io::Result<usize> {
        let is_timed = self.watched.is_some() && self.calls.len() < CALLS_MAX;
        let (during, after) = match self.mode {
            Mode::SendsAndArrivals => (Timestamps::All, Timestamps::Arrivals),
            Mode::Off | Mode::Sends => (Timestamps::Sends, Timestamps::Off),
        };
        if is_timed {
            keep_times(socket, self.is_stream, during)?;
        }
        let sent = send();
        if is_timed {
            keep_times(socket, self.is_stream, after)?;
        }
        let count = sent?;
        if let Some(counted) = &mut self.counted {
            let before = *counted;
            *counted += if self.is_stream { count as u64 } else { u64::from(is_timed) };
            if is_timed {
                let number = if self.is_stream { *counted - 1 } else { before };
                self.calls.push(Call { number: number as u32, record: None, reported: [false; 2] });
            }
        }
        Ok(count)
    }

    /// Assigns the watched record to the last call if that call sent its end. `written` counts the records that the
    /// kernel has completely.
    pub(crate) fn on_written(&mut self, written: u64) {
        if let Some(record) = self.watched.take_if(|record| *record <= written)
            && let Some(call) = self.calls.last_mut()
        {
            call.record = Some(record);
        }
    }

    /// Reads the kernel's reports of sent data.
    fn read_reports(&mut self, socket: BorrowedFd<'_>) {
        if self.calls.is_empty() {
            return;
        }
        let last = if self.is_stream { SentMoment::Acknowledged } else { SentMoment::Driver };
        // The next call that moves data returns the socket's error.
        while let Ok(Some(sent)) = sent_time(socket) {
            let Some(place) = self.calls.iter().position(|call| call.number == sent.number) else { continue };
            let call = &mut self.calls[place];
            let (moment, is_first) = match sent.moment {
                SentMoment::Scheduled => (Moment::Scheduled, !std::mem::replace(&mut call.reported[0], true)),
                SentMoment::Driver => (Moment::Sent, !std::mem::replace(&mut call.reported[1], true)),
                SentMoment::Acknowledged => (Moment::Acknowledged, true),
            };
            if let Some(record) = call.record.filter(|_| is_first) {
                self.reports.push_back(TraceReport { record, moment, at: Time(sent.at_ns) });
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
    use contract::{FlowKey, Partner, Pull, Pulled, TraceCtl, TransportClass};
    use std::net::{TcpListener, TcpStream, UdpSocket};
    use std::os::fd::{AsFd, OwnedFd};
    use std::time::Instant;

    fn watch(partner: &mut dyn Partner, operation: TraceCtl) -> Progress {
        match partner.ctl(FlowKey::DEFAULT, Ctl::Transport(TransportCtl::Trace(operation))) {
            Ok(CtlReply::Progress(progress)) => progress,
            Ok(CtlReply::Done) => Progress::default(),
            other => panic!("{other:?}"),
        }
    }

    /// Collects reports behind `all` until one of `last` arrives.
    fn reports_until(
        [partner, peer]: [&mut dyn Partner; 2],
        mut all: Vec<TraceReport>,
        last: Moment,
    ) -> Vec<TraceReport> {
        let begun = Instant::now();
        while all.last().is_none_or(|report: &TraceReport| report.moment != last) {
            assert!(begun.elapsed() < WATCHDOG, "{all:?}");
            all.extend(watch(partner, TraceCtl::Progress).report);
            // The peer must read to make room for the rest.
            let _ = peer.pull(FlowKey::DEFAULT, Pull::Yours);
        }
        all
    }

    fn reports_watched_records(class: &dyn TransportClass, sockets: [OwnedFd; 2], is_stream: bool) {
        let other = UdpSocket::bind("127.0.0.1:0").unwrap();
        if let Err(error) = keep_times(other.as_fd(), false, Timestamps::Off) {
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
            watch(&mut **partner, TraceCtl::Begin);
        }
        let last = if is_stream { Moment::Acknowledged } else { Moment::Sent };
        for sequence in 1..9 {
            if sequence != 5 {
                watch(&mut *here, TraceCtl::Next);
            }
            send(&mut *here, &mut *there, sequence);
            let (begun, mut reports) = (Instant::now(), Vec::new());
            // A stream accepts a large record in parts, as fast as the peer reads.
            loop {
                let progress = watch(&mut *here, TraceCtl::Progress);
                reports.extend(progress.report);
                if progress.written > sequence {
                    break;
                }
                assert!(begun.elapsed() < WATCHDOG, "the record is never written");
                let _ = there.pull(FlowKey::DEFAULT, Pull::Yours);
                let _ = here.pull(FlowKey::DEFAULT, Pull::Yours);
                let _ = here.ctl(FlowKey::DEFAULT, Ctl::Flush);
            }
            if sequence == 5 {
                continue;
            }
            let reports = reports_until([&mut *here, &mut *there], reports, last);
            assert!(reports.iter().all(|report| report.record == sequence + 1), "{reports:?}");
            assert!(reports.len() >= 2, "{reports:?}");
            assert!(!watch(&mut *here, TraceCtl::Progress).expects);
        }
        // Arrivals are reported only between `Arrivals(true)` and `Arrivals(false)`.
        assert_eq!(watch(&mut *there, TraceCtl::Progress).arrived, None);
        watch(&mut *there, TraceCtl::Arrivals(true));
        let begun = Instant::now();
        let mut sequence = 9;
        while watch(&mut *there, TraceCtl::Progress).arrived.is_none() {
            assert!(begun.elapsed() < WATCHDOG, "no arrival time");
            send(&mut *here, &mut *there, 3 + 4 * sequence);
            while let Ok(Pulled::Message(..)) = there.pull(FlowKey::DEFAULT, Pull::Yours) {}
            sequence += 1;
        }
        watch(&mut *there, TraceCtl::Arrivals(false));
        assert_eq!(watch(&mut *there, TraceCtl::Progress).arrived, None);
        watch(&mut *here, TraceCtl::End);
        watch(&mut *here, TraceCtl::Next);
        send(&mut *here, &mut *there, 3);
        let progress = watch(&mut *here, TraceCtl::Progress);
        assert_eq!((progress.report, progress.expects), (None, false), "nothing is watched after the end");
        assert_eq!(progress.pushed, progress.written);
    }

    #[test]
    fn tcp_reports_watched_records() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let here = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (there, _) = listener.accept().unwrap();
        for socket in [&here, &there] {
            socket.set_nonblocking(true).unwrap();
        }
        reports_watched_records(&crate::tcp::Tcp, [here.into(), there.into()], true);
    }

    #[test]
    fn udp_reports_watched_records() {
        let [here, there] = [(); 2].map(|()| UdpSocket::bind("127.0.0.1:0").unwrap());
        here.connect(there.local_addr().unwrap()).unwrap();
        there.connect(here.local_addr().unwrap()).unwrap();
        reports_watched_records(&crate::udp::Udp, [here.into(), there.into()], false);
    }
}
