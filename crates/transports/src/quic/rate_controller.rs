//! [`RateControl`] as quinn-proto's congestion controller. quinn-proto limits the data in flight to the window; the
//! connection asks [`RateController::permission`] before it sends, because quinn-proto paces only by the window.

use crate::rate::{PathView, RateControl, Sample};
use contract::Time;
use quinn_proto::RttEstimator;
use quinn_proto::congestion::{Controller, ControllerMetrics};
use std::any::Any;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// The rate control of one path. Clones share it.
#[derive(Debug, Clone)]
pub(super) struct RateController {
    begun: Instant,
    state: Arc<Mutex<State>>,
}

#[derive(Debug)]
struct State {
    rate: RateControl,
    mtu: u16,
    /// All acknowledged bytes.
    received_bytes: u64,
    /// Of the acknowledgements that are being processed.
    acknowledged: usize,
    round_trip: Option<Duration>,
    /// Since the last sample. quinn-proto detects a loss after it has processed the acknowledgements.
    lost: usize,
}

/// Permission to send.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Permission {
    /// This many bytes.
    Bytes(usize),
    /// Nothing before this time.
    At(Instant),
}

/// Smallest amount that quinn-proto is asked for, so that one datagram always fits.
const DATAGRAM_BYTES: u16 = 1200;

impl RateController {
    pub(super) fn new(now: Instant) -> RateController {
        let state = State {
            rate: RateControl::new(),
            mtu: DATAGRAM_BYTES,
            received_bytes: 0,
            acknowledged: 0,
            round_trip: None,
            lost: 0,
        };
        RateController { begun: now, state: Arc::new(Mutex::new(state)) }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Converts to the time of [`RateControl`], which starts above 0.
    fn time(&self, at: Instant) -> Time {
        Time::from_millis(1).after(at.saturating_duration_since(self.begun))
    }

    /// Returns the amount that the rate permits now. A few small datagrams never wait: the timer of each would cost
    /// more than the datagram.
    pub(super) fn permission(&self, now: Instant) -> Permission {
        match self.lock().rate.permission(self.time(now)) {
            Ok(bytes) => Permission::Bytes(bytes),
            Err(at) => Permission::At(self.begun + at.since(Time::from_millis(1))),
        }
    }

    /// Returns the pace in bytes a second; `None` in slow start.
    pub(super) fn pace(&self) -> Option<f64> {
        self.lock().rate.pace()
    }

    /// Sets the pace, bytes a second.
    #[cfg(test)]
    pub(super) fn pace_at(&self, pace: f64, now: Instant) {
        self.lock().rate.pace_at(pace, self.time(now));
    }

    /// Describes the path.
    pub(super) fn view(&self) -> PathView {
        self.lock().rate.view()
    }
}

impl Controller for RateController {
    fn on_sent(&mut self, now: Instant, bytes: u64, _last_packet_number: u64) {
        let now = self.time(now);
        self.lock().rate.sent(bytes as usize, now);
    }

    fn on_ack(&mut self, now: Instant, sent: Instant, bytes: u64, _app_limited: bool, _rtt: &RttEstimator) {
        let mut state = self.lock();
        state.acknowledged += bytes as usize;
        state.received_bytes += bytes;
        // Packets are acknowledged in ascending order: the last one is the newest.
        state.round_trip = Some(now.saturating_duration_since(sent));
    }

    fn on_end_acks(&mut self, now: Instant, in_flight: u64, app_limited: bool, _largest_acked: Option<u64>) {
        let now = self.time(now);
        let mut state = self.lock();
        let acknowledged = std::mem::take(&mut state.acknowledged);
        let sample = Sample {
            round_trip: state.round_trip.take(),
            came: now,
            received_bytes: state.received_bytes,
            acknowledged,
            lost: std::mem::take(&mut state.lost),
            room: usize::MAX,
            is_limited: !app_limited && 2 * (in_flight as usize + acknowledged) >= state.rate.window(),
            is_idle: app_limited,
        };
        state.rate.on_receipt(&sample, now);
    }

    fn on_congestion_event(&mut self, _now: Instant, _sent: Instant, is_persistent: bool, lost_bytes: u64) {
        let mut state = self.lock();
        // A mark (ECN) stands for the datagram that a queue would have lost.
        state.lost += if lost_bytes == 0 { usize::from(state.mtu) } else { lost_bytes as usize };
        if is_persistent {
            /// Timeouts after which everything in flight is lost.
            const PERSISTENT: u32 = 2;
            state.rate.on_timeout(PERSISTENT);
        }
    }

    fn on_mtu_update(&mut self, new_mtu: u16) {
        self.lock().mtu = new_mtu;
    }

    fn window(&self) -> u64 {
        self.lock().rate.window() as u64
    }

    fn metrics(&self) -> ControllerMetrics {
        let mut metrics = ControllerMetrics::default();
        metrics.congestion_window = self.window();
        metrics
    }

    fn clone_box(&self) -> Box<dyn Controller> {
        Box::new(self.clone())
    }

    fn initial_window(&self) -> u64 {
        self.window()
    }

    fn into_any(self: Box<Self>) -> Box<dyn Any> {
        self
    }
}
