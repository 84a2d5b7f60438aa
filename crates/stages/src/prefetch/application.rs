//! The halves at the application: requests go out, and answers come in.

use super::cache::Cache;
use super::guess::Guess;
use super::header::Header;
use contract::{Bytes, Message, Options, Outbox, Port, Report, Site, Stage, StageError, Time};
use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

const ANSWERED_HERE: &str = "answered by what was made ahead";
const UNUSED: &str = "made ahead, and not asked for";
const TOO_LATE: &str = "not waited for any more";

/// What the two halves have in common.
#[derive(Default)]
struct Meeting(Mutex<State>);

impl Meeting {
    fn at(site: &Site) -> Arc<Meeting> {
        site.shared.state("prefetch at the application")
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[derive(Default)]
struct State {
    /// Given by the half of the requests.
    limits: Option<Limits>,
    /// There is a half for the answers, and it knows which is which.
    pairs: bool,
    /// Requests whose answers the application has not got, in its order.
    owed: VecDeque<Owed>,
    /// Requests made ahead that are not answered.
    flights: Vec<Flight>,
    cache: Cache,
    unanswered: u64,
}

#[derive(Clone, Copy)]
struct Limits {
    cache_bytes: usize,
    keeps: bool,
    fresh: Duration,
    wait: Duration,
}

struct Owed {
    number: u64,
    since: Time,
    /// The request, if its answer is to be kept.
    request: Option<Bytes>,
    answer: Option<Message>,
}

struct Flight {
    number: u64,
    since: Time,
    request: Bytes,
}

impl State {
    /// Relies on nothing that the device said: it may say something else now.
    fn forget(&mut self, out: &mut Outbox) {
        self.flights.clear();
        self.owed.iter_mut().for_each(|owed| owed.request = None);
        out.drop_counted(UNUSED, self.cache.clear());
    }

    fn keep(&mut self, request: Bytes, answer: Message, asked_for: bool, now: Time, out: &mut Outbox) {
        let cache_bytes = self.limits.map_or(0, |limits| limits.cache_bytes);
        out.drop_counted(UNUSED, self.cache.keep(request, answer, asked_for, now, cache_bytes));
    }

    /// Sends the answers whose turn it is.
    fn deliver(&mut self, out: &mut Outbox) {
        while let Some(answer) = self.owed.front_mut().and_then(|first| first.answer.take()) {
            self.owed.pop_front();
            out.send(Port::MAIN, answer);
        }
    }

    /// When the first answer was waited for long enough; at once if it is there.
    fn next_due(&self) -> Option<Time> {
        let first = self.owed.front()?;
        let wait = self.limits.map_or(Duration::ZERO, |limits| limits.wait);
        Some(if first.answer.is_some() { Time::ZERO } else { first.since.after(wait) })
    }

    /// Answers that wait for their turn.
    fn ready(&self) -> usize {
        self.owed.iter().filter(|owed| owed.answer.is_some()).count()
    }
}

/// The half that makes requests ahead: the source half of the requests' flow.
pub(super) struct Requests {
    meeting: Arc<Meeting>,
    limits: Limits,
    guess: Guess,
    ahead: usize,
    owed_max: usize,
    others_are_answered: bool,
    number: u64,
    asked: u64,
    hits: u64,
    joined: u64,
    made_ahead: u64,
}

impl Requests {
    pub(super) fn new(options: &Options, site: &Site) -> Self {
        let limits = Limits {
            cache_bytes: options.size("cache"),
            keeps: options.flag("keep"),
            fresh: options.duration("fresh"),
            wait: options.duration("wait"),
        };
        let meeting = Meeting::at(site);
        meeting.lock().limits = Some(limits);
        let mut first = [0; 8];
        first.copy_from_slice(&site.seed[..8]);
        Requests {
            meeting,
            limits,
            guess: Guess::new(options),
            ahead: options.count("ahead"),
            owed_max: options.count("asked"),
            others_are_answered: options.text("others") == "answered",
            // Anywhere: an answer from before this half was made anew must not be taken for another.
            number: u64::from_le_bytes(first),
            asked: 0,
            hits: 0,
            joined: 0,
            made_ahead: 0,
        }
    }

    fn next_number(&mut self) -> u64 {
        self.number = self.number.wrapping_add(1);
        self.number
    }

    /// A request of the kind that is made ahead, unless its answer is here: says what goes to the device.
    fn ask(&mut self, request: &Bytes, now: Time, state: &mut State) -> Option<Header> {
        let Limits { keeps, fresh, .. } = self.limits;
        let owed =
            |number, answer| Owed { number, since: now, request: keeps.then(|| request.clone()), answer };
        if let Some(answer) = state.cache.ask(request, keeps, now, fresh) {
            self.hits += 1;
            state.owed.push_back(owed(self.next_number(), Some(answer)));
            return None;
        }
        let flying = state.flights.iter().position(|flight| flight.request == request);
        let header = match flying.map(|index| state.flights.swap_remove(index)) {
            Some(flight) => {
                self.joined += 1;
                state.owed.push_back(owed(flight.number, None));
                Header::AskedAfterAll(flight.number)
            }
            None => {
                let number = self.next_number();
                state.owed.push_back(owed(number, None));
                Header::Asked(number)
            }
        };
        Some(header)
    }

    /// Makes the requests ahead that probably follow this one.
    fn make_ahead(&mut self, request: &Bytes, number: u64, now: Time, state: &mut State, out: &mut Outbox) {
        let Limits { fresh, wait, .. } = self.limits;
        state.flights.retain(|flight| now.since(flight.since) < wait);
        for next in self.guess.next(number) {
            if state.flights.len() >= self.ahead {
                break;
            }
            let request = self.guess.request(request, next);
            let is_here = state.cache.has(&request, now, fresh);
            if is_here || state.flights.iter().any(|flight| flight.request == request) {
                continue;
            }
            let number = self.next_number();
            let mut message = Message::new(now, request.clone());
            message.attributes.droppable = true;
            state.flights.push(Flight { number, since: now, request });
            self.made_ahead += 1;
            send(Header::Ahead(number), message, out);
        }
    }
}

fn send(header: Header, mut message: Message, out: &mut Outbox) {
    header.put(&mut message.body);
    out.send(Port::MAIN, message);
}

impl Stage for Requests {
    fn handle(
        &mut self,
        _port: Port,
        message: Message,
        now: Time,
        out: &mut Outbox,
    ) -> Result<(), StageError> {
        let meeting = self.meeting.clone();
        let mut state = meeting.lock();
        self.asked += 1;
        if !state.pairs {
            let number = self.next_number();
            send(Header::Asked(number), message, out);
            return Ok(());
        }
        let Some(number) = self.guess.number(&message.body) else {
            state.forget(out);
            let number = self.next_number();
            if self.others_are_answered {
                state.owed.push_back(Owed { number, since: now, request: None, answer: None });
            }
            send(Header::Other(number), message, out);
            return Ok(());
        };
        let request = message.body.clone().into_bytes();
        match self.ask(&request, now, &mut state) {
            Some(header) => send(header, message, out),
            None => out.drop_counted(ANSWERED_HERE, 1),
        }
        self.make_ahead(&request, number, now, &mut state, out);
        Ok(())
    }

    fn has_room(&self) -> bool {
        self.meeting.lock().owed.len() < self.owed_max
    }

    fn report(&self) -> Vec<Report> {
        vec![
            ("asked", self.asked as f64),
            ("hits", self.hits as f64),
            ("joined", self.joined as f64),
            ("made_ahead", self.made_ahead as f64),
            ("kept_bytes", self.meeting.lock().cache.bytes() as f64),
        ]
    }
}

/// The half that keeps answers until they are asked for: the sink half of the answers' flow.
pub(super) struct Answers {
    meeting: Arc<Meeting>,
}

impl Answers {
    pub(super) fn new(site: &Site) -> Self {
        let meeting = Meeting::at(site);
        let mut state = meeting.lock();
        state.pairs = true;
        // Behind a new epoch there may be another device.
        state.flights.clear();
        state.cache.clear();
        drop(state);
        Answers { meeting }
    }
}

impl Stage for Answers {
    fn handle(
        &mut self,
        port: Port,
        mut message: Message,
        now: Time,
        out: &mut Outbox,
    ) -> Result<(), StageError> {
        let header = Header::take(&mut message.body)?;
        let mut state = self.meeting.lock();
        let number = match header {
            Header::Answer(number) if state.pairs => number,
            Header::Answer(_) | Header::Unasked => {
                out.send(port, message);
                return Ok(());
            }
            Header::Unknown => {
                state.pairs = false;
                state.forget(out);
                state.owed.retain(|owed| owed.answer.is_some());
                state.deliver(out);
                out.send(port, message);
                return Ok(());
            }
            other => return Err(StageError::Input(format!("{other:?} is no answer"))),
        };
        if let Some(owed) = state.owed.iter_mut().find(|owed| owed.number == number && owed.answer.is_none())
        {
            let request = owed.request.take();
            owed.answer = Some(message.clone());
            if let Some(request) = request {
                state.keep(request, message, true, now, out);
            }
            state.deliver(out);
        } else if let Some(index) = state.flights.iter().position(|flight| flight.number == number) {
            let flight = state.flights.swap_remove(index);
            state.keep(flight.request, message, false, now, out);
        } else {
            out.drop_counted(TOO_LATE, 1);
        }
        Ok(())
    }

    fn handle_end(&mut self, _port: Port, _now: Time, out: &mut Outbox) -> Result<(), StageError> {
        // An answer before its turn would be taken for another: what waits for one leaves by the next half.
        self.meeting.lock().deliver(out);
        Ok(())
    }

    fn poll_timeout(&self) -> Option<Time> {
        self.meeting.lock().next_due()
    }

    fn handle_timeout(&mut self, now: Time, out: &mut Outbox) -> Result<(), StageError> {
        let mut state = self.meeting.lock();
        state.deliver(out);
        while state.next_due().is_some_and(|at| at <= now) {
            state.owed.pop_front();
            state.unanswered += 1;
            state.deliver(out);
        }
        Ok(())
    }

    fn held(&self) -> usize {
        self.meeting.lock().ready()
    }

    fn report(&self) -> Vec<Report> {
        let state = self.meeting.lock();
        vec![
            ("held", state.ready() as f64),
            ("unanswered", state.unanswered as f64),
            ("pairs", f64::from(u8::from(state.pairs))),
        ]
    }
}
