//! The halves at the device. [`Requests`] hands requests to the device; [`Answers`] labels each
//! answer with the number of its request.

use super::header::Header;
use super::{PREFETCH_BYTES_MAX, UNANSWERED_MAX};
use contract::{Message, Options, Outbox, Port, Report, Site, Stage, StageError, StageResult, Time};
use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

const ALREADY_PREFETCHED: &str = "already prefetched";
/// Prefetched requests remembered after they were handed to the device.
const RECENT_MAX: usize = 256;

/// The state that both halves share.
#[derive(Default)]
struct SharedState(Mutex<State>);

impl SharedState {
    fn of_host(site: &Site) -> Arc<SharedState> {
        site.shared.state("prefetch at the device")
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// How answers are matched to requests.
#[derive(Clone, Copy, PartialEq, Eq, Default)]
enum Matching {
    /// Not at all: this host has no half for the answers.
    #[default]
    NoAnswers,
    /// The device answers each request in order.
    InOrder,
    /// The device left a request without an answer, so the order says nothing until the next epoch.
    Lost,
}

#[derive(Default)]
struct State {
    matching: Matching,
    /// Numbers of the requests that the device has not answered, in its order, and when it got
    /// them.
    outstanding: VecDeque<(u64, Time)>,
    /// Prefetches for the device to do when it is idle.
    queue: VecDeque<(u64, Message)>,
    /// Numbers of the last prefetches handed to the device.
    recent: VecDeque<u64>,
}

impl State {
    fn is_matching(&self) -> bool {
        self.matching == Matching::InOrder
    }
}

/// The sink half of the flow of requests. It hands them to the device.
pub(super) struct Requests {
    shared: Arc<SharedState>,
    ahead: usize,
    wait: Duration,
    others_are_answered: bool,
    prefetched: u64,
    skipped: u64,
}

impl Requests {
    pub(super) fn new(options: &Options, site: &Site) -> Self {
        Requests {
            shared: SharedState::of_host(site),
            ahead: options.count("ahead"),
            wait: options.duration("wait"),
            others_are_answered: options.text("others") == "answered",
            prefetched: 0,
            skipped: 0,
        }
    }

    /// Hands one prefetch to the device if it is idle.
    fn prefetch(&mut self, now: Time, out: &mut Outbox) {
        let mut state = self.shared.lock();
        if !state.outstanding.is_empty() {
            return;
        }
        if let Some((number, message)) = state.queue.pop_front() {
            self.prefetched += 1;
            state.recent.push_back(number);
            if state.recent.len() > RECENT_MAX {
                state.recent.pop_front();
            }
            state.outstanding.push_back((number, now));
            out.send(Port::MAIN, message);
        }
    }

    fn trim_queue(&mut self, state: &mut State, max: usize) {
        let excess = state.queue.len().saturating_sub(max);
        self.skipped += excess as u64;
        state.queue.drain(..excess);
    }
}

impl Stage for Requests {
    fn handle(&mut self, port: Port, mut message: Message, now: Time, out: &mut Outbox) -> StageResult {
        let header = Header::take(&mut message.body)?;
        let shared = self.shared.clone();
        let mut state = shared.lock();
        let number = match header {
            Header::Request(number) => Some(number),
            Header::Other(number) => {
                // The application has discarded all earlier prefetches.
                self.trim_queue(&mut state, 0);
                self.others_are_answered.then_some(number)
            }
            Header::Confirmed(number) if state.recent.contains(&number) => {
                out.drop_counted(ALREADY_PREFETCHED, 1);
                return Ok(());
            }
            Header::Confirmed(number) => {
                state.queue.retain(|(queued, _)| *queued != number);
                Some(number)
            }
            Header::Prefetch(_) if message.body.len() > PREFETCH_BYTES_MAX => {
                let (what, bytes) = ("a prefetched request", message.body.len());
                return Err(StageError::TooLarge { what, bytes, limit: PREFETCH_BYTES_MAX });
            }
            Header::Prefetch(number) => {
                state.queue.push_back((number, message));
                let max = if state.is_matching() { self.ahead } else { 0 };
                self.trim_queue(&mut state, max);
                drop(state);
                self.prefetch(now, out);
                return Ok(());
            }
            other => return Err(StageError::Input(format!("{other:?} is no request"))),
        };
        if let Some(number) = number.filter(|_| state.is_matching()) {
            state.outstanding.push_back((number, now));
        }
        out.send(port, message);
        Ok(())
    }

    fn handle_end(&mut self, _port: Port, _now: Time, _out: &mut Outbox) -> StageResult {
        let shared = self.shared.clone();
        self.trim_queue(&mut shared.lock(), 0);
        Ok(())
    }

    fn poll_timeout(&self) -> Option<Time> {
        let state = self.shared.lock();
        match state.outstanding.front() {
            Some((_, since)) => Some(since.after(self.wait)),
            None => state.queue.front().map(|_| Time::ZERO),
        }
    }

    fn handle_timeout(&mut self, now: Time, out: &mut Outbox) -> StageResult {
        let shared = self.shared.clone();
        let mut state = shared.lock();
        if state.outstanding.front().is_some_and(|(_, since)| since.after(self.wait) <= now) {
            state.matching = Matching::Lost;
            state.outstanding.clear();
            self.trim_queue(&mut state, 0);
        }
        drop(state);
        self.prefetch(now, out);
        Ok(())
    }

    fn has_room(&self) -> bool {
        self.shared.lock().outstanding.len() < UNANSWERED_MAX
    }

    fn report(&self) -> Vec<Report> {
        let state = self.shared.lock();
        vec![
            ("outstanding", state.outstanding.len() as f64),
            ("prefetched", self.prefetched as f64),
            ("skipped", self.skipped as f64),
            ("unmatched", f64::from(u8::from(state.matching == Matching::Lost))),
        ]
    }
}

/// The source half of the flow of answers. It labels each with its request.
pub(super) struct Answers {
    shared: Arc<SharedState>,
}

impl Answers {
    pub(super) fn new(site: &Site) -> Self {
        let shared = SharedState::of_host(site);
        // A new epoch may mean another device, without outstanding requests.
        *shared.lock() = State { matching: Matching::InOrder, ..State::default() };
        Answers { shared }
    }
}

impl Stage for Answers {
    fn handle(&mut self, port: Port, mut message: Message, _now: Time, out: &mut Outbox) -> StageResult {
        let mut state = self.shared.lock();
        let header = match state.outstanding.pop_front() {
            _ if state.matching == Matching::Lost => Header::Unmatched,
            Some((number, _)) => Header::Answer(number),
            None => Header::Unsolicited,
        };
        header.put(&mut message.body);
        out.send(port, message);
        Ok(())
    }
}
