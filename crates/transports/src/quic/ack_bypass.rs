//! Lets one datagram bypass congestion control, so that an acknowledgement does not wait behind data.
//!
//! Congestion control must not delay packets that only acknowledge (RFC 9002, section 7). quinn-proto delays them while
//! data wait for the congestion window or for pacing, because it wants to put both into one packet. If both ends have
//! full windows, for example after one host was suspended, neither acknowledges anything until its probe timeout, which
//! may be as long as the suspension. [`AckMonitor`] finds an overdue acknowledgement and [`bypass`] sends it.

use super::rate_controller::RateController;
use quinn_proto::congestion::{Controller, ControllerFactory, ControllerMetrics};
use quinn_proto::{Connection, RttEstimator};
use std::any::Any;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// An acknowledgement is overdue after this time. It is longer than the 25 ms that an endpoint may delay one by default
/// (`max_ack_delay`, RFC 9000, section 18.2).
const OVERDUE_AFTER: Duration = Duration::from_millis(30);
/// Larger than any window, and pacing has no effect in it.
const UNLIMITED: u64 = u64::MAX >> 1;

/// Makes [`BypassController`]s.
pub(super) struct BypassFactory {
    pub(super) inner: Inner,
    /// Shared with the one connection that uses this factory.
    pub(super) is_bypassed: Arc<AtomicBool>,
}

impl ControllerFactory for BypassFactory {
    fn build(self: Arc<Self>, now: Instant, mtu: u16) -> Box<dyn Controller> {
        let (inner, rate): (Box<dyn Controller>, _) = match &self.inner {
            Inner::Rate => {
                let controller = RateController::new(now);
                (Box::new(controller.clone()), Some(controller))
            }
            Inner::Window(factory) => (factory.clone().build(now, mtu), None),
        };
        Box::new(BypassController { inner, rate, is_bypassed: self.is_bypassed.clone() })
    }
}

/// Makes the controllers that decide.
pub(super) enum Inner {
    /// [`RateController`]s.
    Rate,
    /// Controllers of quinn-proto.
    Window(Arc<dyn ControllerFactory + Send + Sync>),
}

/// A congestion controller that can be switched off for one call.
struct BypassController {
    inner: Box<dyn Controller>,
    /// The same controller, if it controls the rate.
    rate: Option<RateController>,
    is_bypassed: Arc<AtomicBool>,
}

impl Controller for BypassController {
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
        if self.is_bypassed.load(Ordering::Relaxed) { UNLIMITED } else { self.inner.window() }
    }

    fn metrics(&self) -> ControllerMetrics {
        self.inner.metrics()
    }

    fn clone_box(&self) -> Box<dyn Controller> {
        Box::new(BypassController {
            inner: self.inner.clone_box(),
            rate: self.rate.clone(),
            is_bypassed: self.is_bypassed.clone(),
        })
    }

    fn initial_window(&self) -> u64 {
        self.inner.initial_window()
    }

    fn into_any(self: Box<Self>) -> Box<dyn Any> {
        self
    }
}

/// Returns the connection's controller. quinn-proto gives access to it only through this downcast of a clone, which
/// shares the state.
fn controller(connection: &Connection) -> Option<Box<BypassController>> {
    connection.congestion_state().clone_box().into_any().downcast().ok()
}

/// Returns the rate control of the connection's path, if it has one.
pub(super) fn rate(connection: &Connection) -> Option<RateController> {
    controller(connection)?.rate
}

/// Returns the bytes a second that the connection may send: the pace, or without one a window a round trip.
pub(super) fn pace(connection: &Connection) -> f64 {
    rate(connection).and_then(|rate| rate.pace()).unwrap_or_else(|| {
        connection.congestion_state().window() as f64 / connection.rtt().as_secs_f64().max(f64::EPSILON)
    })
}

/// Calls `act` with congestion control switched off.
pub(super) fn bypass<T>(connection: &mut Connection, act: impl FnOnce(&mut Connection) -> T) -> Option<T> {
    let controller = controller(connection)?;
    controller.is_bypassed.store(true, Ordering::Relaxed);
    let result = act(connection);
    controller.is_bypassed.store(false, Ordering::Relaxed);
    Some(result)
}

/// Finds overdue acknowledgements from the connection's statistics.
#[derive(Debug, Default)]
pub(super) struct AckMonitor {
    /// Received frames that need an acknowledgement, counted at the last acknowledgement.
    acknowledged_frames: u64,
    /// Acknowledgements sent.
    sent_acks: u64,
    /// First check that found an unacknowledged frame.
    since: Option<Instant>,
    /// Datagrams received until the last check.
    received: u64,
}

impl AckMonitor {
    /// Returns true, once, if an acknowledgement is overdue. `received` counts all datagrams of the connection.
    pub(super) fn is_overdue(&mut self, connection: &Connection, received: u64, now: Instant) -> bool {
        if std::mem::replace(&mut self.received, received) == received && self.since.is_none() {
            return false;
        }
        let stats = connection.stats();
        let frames = stats.frame_rx.stream + stats.frame_rx.datagram + stats.frame_rx.ping;
        if stats.frame_tx.acks != self.sent_acks {
            (self.sent_acks, self.acknowledged_frames, self.since) = (stats.frame_tx.acks, frames, None);
        }
        if frames == self.acknowledged_frames || connection.is_closed() {
            self.since = None;
            return false;
        }
        let is_overdue = now.saturating_duration_since(*self.since.get_or_insert(now)) >= OVERDUE_AFTER;
        if is_overdue {
            (self.acknowledged_frames, self.since) = (frames, None);
        }
        is_overdue
    }

    /// Returns the time of the next check.
    pub(super) fn due(&self) -> Option<Instant> {
        self.since.map(|since| since + OVERDUE_AFTER)
    }
}
