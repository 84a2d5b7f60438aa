//! The halves at the application. [`Requests`] sends requests and prefetches; [`Answers`] receives
//! answers and fills the cache.

use super::UNANSWERED_MAX;
use super::cache::Cache;
use super::header::Header;
use super::predict::Predictor;
use contract::{Bytes, Message, Options, Outbox, Port, Report, Site, Stage, StageError, StageResult, Time};
use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

const FROM_CACHE: &str = "answered from the cache";
const NEVER_REQUESTED: &str = "prefetched but never requested";
const TOO_LATE: &str = "answer after its timeout";

/// The state that both halves share.
#[derive(Default)]
struct SharedState(Mutex<State>);

impl SharedState {
    fn of_host(site: &Site) -> Arc<SharedState> {
        site.shared.state("prefetch at the application")
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[derive(Default)]
struct State {
    /// Set by [`Requests`].
    limits: Option<Limits>,
    /// Existing [`Answers`]: two during a change, because the new one is made before the old one is dropped.
    answers: usize,
    /// True while [`Answers`] exists and the device half can match answers to requests.
    is_matching: bool,
    /// Requests of the application that it has no answer to, in its order.
    pending: VecDeque<PendingRequest>,
    /// Prefetched requests without an answer.
    prefetches: Vec<InFlightPrefetch>,
    cache: Cache,
    unanswered: u64,
}

#[derive(Clone, Copy)]
struct Limits {
    cache_bytes: usize,
    fresh: Duration,
    wait: Duration,
}

struct PendingRequest {
    number: u64,
    since: Time,
    answer: Option<Message>,
}

struct InFlightPrefetch {
    number: u64,
    since: Time,
    request: Bytes,
}

impl State {
    /// Discards all answers: the device may answer differently now.
    fn invalidate(&mut self, out: &mut Outbox) {
        self.prefetches.clear();
        out.drop_counted(NEVER_REQUESTED, self.cache.clear());
    }

    fn keep(&mut self, request: Bytes, answer: Message, now: Time, out: &mut Outbox) {
        let cache_bytes = self.limits.map_or(0, |limits| limits.cache_bytes);
        out.drop_counted(NEVER_REQUESTED, self.cache.insert(request, answer, now, cache_bytes));
    }

    /// Sends the answers whose turn has come.
    fn deliver(&mut self, out: &mut Outbox) {
        while let Some(answer) = self.pending.front_mut().and_then(|first| first.answer.take()) {
            self.pending.pop_front();
            out.send(Port::MAIN, answer);
        }
    }

    /// The time at which the first pending request times out; now if its answer is there.
    fn next_deadline(&self) -> Option<Time> {
        let first = self.pending.front()?;
        let wait = self.limits.map_or(Duration::ZERO, |limits| limits.wait);
        Some(if first.answer.is_some() { Time::ZERO } else { first.since.after(wait) })
    }

    /// Answers that wait for an earlier one.
    fn answered(&self) -> usize {
        self.pending.iter().filter(|pending| pending.answer.is_some()).count()
    }
}

/// The source half of the flow of requests. It prefetches.
pub(super) struct Requests {
    shared: Arc<SharedState>,
    limits: Limits,
    predictor: Predictor,
    ahead: usize,
    others_are_answered: bool,
    number: u64,
    requests: u64,
    hits: u64,
    joined: u64,
    prefetched: u64,
}

impl Requests {
    pub(super) fn new(options: &Options, site: &Site) -> Self {
        let limits = Limits {
            cache_bytes: options.size("cache"),
            fresh: options.duration("fresh"),
            wait: options.duration("wait"),
        };
        let shared = SharedState::of_host(site);
        shared.lock().limits = Some(limits);
        let mut first = [0; 8];
        first.copy_from_slice(&site.seed[..8]);
        Requests {
            shared,
            limits,
            predictor: Predictor::new(options),
            ahead: options.count("ahead"),
            others_are_answered: options.text("others") == "answered",
            // A random start: answers to requests of a predecessor of this half must not match.
            number: u64::from_le_bytes(first),
            requests: 0,
            hits: 0,
            joined: 0,
            prefetched: 0,
        }
    }

    fn next_number(&mut self) -> u64 {
        self.number = self.number.wrapping_add(1);
        self.number
    }

    /// Handles a request that may be cached. Returns the header to send it with, or `None` if the
    /// cache answered it.
    fn lookup(&mut self, request: &Bytes, now: Time, state: &mut State) -> Option<Header> {
        let pending = |number, answer| PendingRequest { number, since: now, answer };
        if let Some(answer) = state.cache.take(request, now, self.limits.fresh) {
            self.hits += 1;
            state.pending.push_back(pending(self.next_number(), Some(answer)));
            return None;
        }
        let in_flight = state.prefetches.iter().position(|prefetch| prefetch.request == request);
        let header = match in_flight.map(|index| state.prefetches.swap_remove(index)) {
            Some(prefetch) => {
                self.joined += 1;
                state.pending.push_back(pending(prefetch.number, None));
                Header::Confirmed(prefetch.number)
            }
            None => {
                let number = self.next_number();
                state.pending.push_back(pending(number, None));
                Header::Request(number)
            }
        };
        Some(header)
    }

    /// Prefetches the requests that probably follow this one.
    fn prefetch(&mut self, request: &Bytes, number: u64, now: Time, state: &mut State, out: &mut Outbox) {
        let Limits { fresh, wait, .. } = self.limits;
        state.prefetches.retain(|prefetch| now.since(prefetch.since) < wait);
        for next in self.predictor.predict(number) {
            if state.prefetches.len() >= self.ahead {
                break;
            }
            let request = self.predictor.request(request, next);
            let is_cached = state.cache.has(&request, now, fresh);
            if is_cached || state.prefetches.iter().any(|prefetch| prefetch.request == request) {
                continue;
            }
            let number = self.next_number();
            let mut message = Message::new(now, request.clone());
            message.attributes.droppable = true;
            state.prefetches.push(InFlightPrefetch { number, since: now, request });
            self.prefetched += 1;
            send(Header::Prefetch(number), message, out);
        }
    }
}

fn send(header: Header, mut message: Message, out: &mut Outbox) {
    header.put(&mut message.body);
    out.send(Port::MAIN, message);
}

impl Stage for Requests {
    fn handle(&mut self, _port: Port, message: Message, now: Time, out: &mut Outbox) -> StageResult {
        let shared = self.shared.clone();
        let mut state = shared.lock();
        self.requests += 1;
        if !state.is_matching {
            let number = self.next_number();
            send(Header::Request(number), message, out);
            return Ok(());
        }
        let Some(number) = self.predictor.number(&message.body) else {
            state.invalidate(out);
            let number = self.next_number();
            if self.others_are_answered {
                state.pending.push_back(PendingRequest { number, since: now, answer: None });
            }
            send(Header::Other(number), message, out);
            return Ok(());
        };
        let request = message.body.clone().into_bytes();
        match self.lookup(&request, now, &mut state) {
            Some(header) => send(header, message, out),
            None => out.drop_counted(FROM_CACHE, 1),
        }
        self.prefetch(&request, number, now, &mut state, out);
        Ok(())
    }

    fn has_room(&self) -> bool {
        self.shared.lock().pending.len() < UNANSWERED_MAX
    }

    fn report(&self) -> Vec<Report> {
        vec![
            ("requests", self.requests as f64),
            ("hits", self.hits as f64),
            ("joined", self.joined as f64),
            ("prefetched", self.prefetched as f64),
            ("cache_bytes", self.shared.lock().cache.bytes() as f64),
        ]
    }
}

/// The sink half of the flow of answers. It caches and orders them.
pub(super) struct Answers {
    shared: Arc<SharedState>,
}

impl Answers {
    pub(super) fn new(site: &Site) -> Self {
        let shared = SharedState::of_host(site);
        let mut state = shared.lock();
        state.answers += 1;
        state.is_matching = true;
        // A new epoch may mean another device.
        state.prefetches.clear();
        state.cache.clear();
        drop(state);
        Answers { shared }
    }
}

impl Drop for Answers {
    /// Without this half, requests must not be answered from the cache, and nothing completes the pending ones.
    /// Its answers for them are in `held`: its owner counts those.
    fn drop(&mut self) {
        let mut state = self.shared.lock();
        state.answers -= 1;
        if state.answers == 0 {
            state.is_matching = false;
            state.pending.clear();
            state.prefetches.clear();
            state.cache.clear();
        }
    }
}

impl Stage for Answers {
    fn handle(&mut self, port: Port, mut message: Message, now: Time, out: &mut Outbox) -> StageResult {
        let header = Header::take(&mut message.body)?;
        let mut state = self.shared.lock();
        let number = match header {
            Header::Answer(number) if state.is_matching => number,
            Header::Answer(_) | Header::Unsolicited => {
                out.send(port, message);
                return Ok(());
            }
            Header::Unmatched => {
                state.is_matching = false;
                state.invalidate(out);
                state.pending.retain(|pending| pending.answer.is_some());
                state.deliver(out);
                out.send(port, message);
                return Ok(());
            }
            other => return Err(StageError::Input(format!("{other:?} is no answer"))),
        };
        if let Some(pending) =
            state.pending.iter_mut().find(|pending| pending.number == number && pending.answer.is_none())
        {
            pending.answer = Some(message);
            state.deliver(out);
        } else if let Some(index) = state.prefetches.iter().position(|prefetch| prefetch.number == number) {
            let prefetch = state.prefetches.swap_remove(index);
            state.keep(prefetch.request, message, now, out);
        } else {
            out.drop_counted(TOO_LATE, 1);
        }
        Ok(())
    }

    fn handle_end(&mut self, _port: Port, _now: Time, out: &mut Outbox) -> StageResult {
        // Only the answers whose turn has come: another would be taken for the answer to an earlier
        // request. The next half delivers the rest.
        self.shared.lock().deliver(out);
        Ok(())
    }

    fn poll_timeout(&self) -> Option<Time> {
        self.shared.lock().next_deadline()
    }

    fn handle_timeout(&mut self, now: Time, out: &mut Outbox) -> StageResult {
        let mut state = self.shared.lock();
        state.deliver(out);
        while state.next_deadline().is_some_and(|at| at <= now) {
            state.pending.pop_front();
            state.unanswered += 1;
            state.deliver(out);
        }
        Ok(())
    }

    fn held(&self) -> usize {
        self.shared.lock().answered()
    }

    fn report(&self) -> Vec<Report> {
        let state = self.shared.lock();
        vec![
            ("held", state.answered() as f64),
            ("unanswered", state.unanswered as f64),
            ("matching", f64::from(u8::from(state.is_matching))),
        ]
    }
}
