//! Congestion control that can be passed by: an acknowledgement must not wait behind data.
//!
//! RFC 9002, section 7, holds back no packet that only acknowledges. quinn-proto does, while there are data that the
//! congestion window or its pacing hold back: it would put both into one packet. Where both ends have as much under way as
//! they may, as after one of them slept, neither acknowledges anything then, until a probe goes out, and after a sleep of
//! ten seconds that is ten seconds later. So one datagram that is owed to the peer may pass.

use quinn_proto::congestion::{Controller, ControllerFactory, ControllerMetrics};
use quinn_proto::{Connection, RttEstimator};
use std::any::Any;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// After so long an acknowledgement is owed: longer than one is put off by itself (RFC 9000, section 18.2).
const OWED_AFTER: Duration = Duration::from_millis(30);
/// No window is larger, and nothing is paced in it.
const NO_BOUND: u64 = u64::MAX >> 1;

/// Makes controllers that can be passed by.
pub(super) struct Gates {
    pub(super) inner: Arc<dyn ControllerFactory + Send + Sync>,
    /// Of the connection that is set up with this.
    pub(super) is_open: Arc<AtomicBool>,
}

impl ControllerFactory for Gates {
    fn build(self: Arc<Self>, now: Instant, mtu: u16) -> Box<dyn Controller> {
        Box::new(Gate { inner: self.inner.clone().build(now, mtu), is_open: self.is_open.clone() })
    }
}

struct Gate {
    inner: Box<dyn Controller>,
    is_open: Arc<AtomicBool>,
}

impl Controller for Gate {
    fn on_sent(&mut self, now: Instant, bytes: u64, last_packet_number: u64) {
        self.inner.on_sent(now, bytes, last_packet_number);
    }

    fn on_ack(&mut self, now: Instant, sent: Instant, bytes: u64, app_limited: bool, rtt: &RttEstimator) {
        self.inner.on_ack(now, sent, bytes, app_limited, rtt);
    }

    fn on_end_acks(&mut self, now: Instant, in_flight: u64, app_limited: bool, largest_acked: Option<u64>) {
        self.inner.on_end_acks(now, in_flight, app_limited, largest_acked);
    }

    fn on_congestion_event(&mut self, now: Instant, sent: Instant, is_persistent: bool, lost_bytes: u64) {
        self.inner.on_congestion_event(now, sent, is_persistent, lost_bytes);
    }

    fn on_mtu_update(&mut self, new_mtu: u16) {
        self.inner.on_mtu_update(new_mtu);
    }

    fn window(&self) -> u64 {
        if self.is_open.load(Ordering::Relaxed) { NO_BOUND } else { self.inner.window() }
    }

    fn metrics(&self) -> ControllerMetrics {
        self.inner.metrics()
    }

    fn clone_box(&self) -> Box<dyn Controller> {
        Box::new(Gate { inner: self.inner.clone_box(), is_open: self.is_open.clone() })
    }

    fn initial_window(&self) -> u64 {
        self.inner.initial_window()
    }

    fn into_any(self: Box<Self>) -> Box<dyn Any> {
        self
    }
}

/// Has `act` done as if there were no congestion control.
pub(super) fn pass<T>(connection: &mut Connection, act: impl FnOnce(&mut Connection) -> T) -> Option<T> {
    let gate = connection.congestion_state().clone_box().into_any().downcast::<Gate>().ok()?;
    gate.is_open.store(true, Ordering::Relaxed);
    let done = act(connection);
    gate.is_open.store(false, Ordering::Relaxed);
    Some(done)
}

/// What of the peer's is to be acknowledged, and since when.
#[derive(Debug, Default)]
pub(super) struct Owed {
    /// Frames that came when something was last acknowledged, and how often that was.
    heard: u64,
    acknowledged: u64,
    since: Option<Instant>,
    /// Datagrams that had come when this was looked at last.
    received: u64,
}

impl Owed {
    /// So many datagrams came until now; says whether an acknowledgement is overdue. It is said once.
    pub(super) fn look(&mut self, connection: &Connection, received: u64, now: Instant) -> bool {
        if std::mem::replace(&mut self.received, received) == received && self.since.is_none() {
            return false;
        }
        let stats = connection.stats();
        let frames = stats.frame_rx;
        let heard = frames.stream + frames.datagram + frames.ping;
        if stats.frame_tx.acks != self.acknowledged {
            (self.acknowledged, self.heard, self.since) = (stats.frame_tx.acks, heard, None);
        }
        if heard == self.heard || connection.is_closed() {
            self.since = None;
            return false;
        }
        let is_overdue = now.saturating_duration_since(*self.since.get_or_insert(now)) >= OWED_AFTER;
        if is_overdue {
            (self.heard, self.since) = (heard, None);
        }
        is_overdue
    }

    /// When to look again at the latest.
    pub(super) fn at(&self) -> Option<Instant> {
        self.since.map(|since| since + OWED_AFTER)
    }
}
