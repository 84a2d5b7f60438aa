//! The halves at the device: requests come in, and answers go out.

use super::AHEAD_BYTES_MAX;
use super::header::Header;
use contract::{Message, Options, Outbox, Port, Report, Site, Stage, StageError, Time};
use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

const MADE_ALREADY: &str = "made ahead already";
/// Requests made ahead that are remembered to have been handed to the device.
const MADE_MAX: usize = 256;

/// What the two halves have in common.
#[derive(Default)]
struct Meeting(Mutex<State>);

impl Meeting {
    fn at(site: &Site) -> Arc<Meeting> {
        site.shared.state("prefetch at the device")
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[derive(Default)]
struct State {
    /// There is a half for the answers.
    has_answers: bool,
    /// A request was left without an answer: which answer is which is not known any more.
    is_unsure: bool,
    /// Requests that the device has not answered, in its order, and when it got them.
    handed: VecDeque<(u64, Time)>,
    /// Requests to be made ahead while the device has nothing else to do.
    waiting: VecDeque<(u64, Message)>,
    /// Those that were, the last ones.
    made: VecDeque<u64>,
}

impl State {
    fn pairs(&self) -> bool {
        self.has_answers && !self.is_unsure
    }
}

/// The half that hands requests to the device: the sink half of the requests' flow.
pub(super) struct Requests {
    meeting: Arc<Meeting>,
    ahead: usize,
    handed_max: usize,
    wait: Duration,
    others_are_answered: bool,
    made_ahead: u64,
    left_out: u64,
}

impl Requests {
    pub(super) fn new(options: &Options, site: &Site) -> Self {
        Requests {
            meeting: Meeting::at(site),
            ahead: options.count("ahead"),
            handed_max: options.count("asked"),
            wait: options.duration("wait"),
            others_are_answered: options.text("others") == "answered",
            made_ahead: 0,
            left_out: 0,
        }
    }

    /// Makes one request ahead if the device has nothing to do.
    fn make_ahead(&mut self, now: Time, out: &mut Outbox) {
        let mut state = self.meeting.lock();
        if !state.handed.is_empty() {
            return;
        }
        if let Some((number, message)) = state.waiting.pop_front() {
            self.made_ahead += 1;
            state.made.push_back(number);
            if state.made.len() > MADE_MAX {
                state.made.pop_front();
            }
            state.handed.push_back((number, now));
            out.send(Port::MAIN, message);
        }
    }

    fn leave_out(&mut self, state: &mut State, most: usize) {
        let more = state.waiting.len().saturating_sub(most);
        self.left_out += more as u64;
        state.waiting.drain(..more);
    }
}

impl Stage for Requests {
    fn handle(
        &mut self,
        port: Port,
        mut message: Message,
        now: Time,
        out: &mut Outbox,
    ) -> Result<(), StageError> {
        let header = Header::take(&mut message.body)?;
        let meeting = self.meeting.clone();
        let mut state = meeting.lock();
        let number = match header {
            Header::Asked(number) => Some(number),
            Header::Other(number) => {
                // The application waits for nothing that was made ahead before this.
                self.leave_out(&mut state, 0);
                self.others_are_answered.then_some(number)
            }
            Header::AskedAfterAll(number) if state.made.contains(&number) => {
                out.drop_counted(MADE_ALREADY, 1);
                return Ok(());
            }
            Header::AskedAfterAll(number) => {
                state.waiting.retain(|(waiting, _)| *waiting != number);
                Some(number)
            }
            Header::Ahead(_) if message.body.len() > AHEAD_BYTES_MAX => {
                let (what, bytes) = ("a request made ahead", message.body.len());
                return Err(StageError::TooLarge { what, bytes, limit: AHEAD_BYTES_MAX });
            }
            Header::Ahead(number) => {
                state.waiting.push_back((number, message));
                let most = if state.pairs() { self.ahead } else { 0 };
                self.leave_out(&mut state, most);
                drop(state);
                self.make_ahead(now, out);
                return Ok(());
            }
            other => return Err(StageError::Input(format!("{other:?} is no request"))),
        };
        if let Some(number) = number.filter(|_| state.pairs()) {
            state.handed.push_back((number, now));
        }
        out.send(port, message);
        Ok(())
    }

    fn handle_end(&mut self, _port: Port, _now: Time, _out: &mut Outbox) -> Result<(), StageError> {
        let meeting = self.meeting.clone();
        self.leave_out(&mut meeting.lock(), 0);
        Ok(())
    }

    fn poll_timeout(&self) -> Option<Time> {
        let state = self.meeting.lock();
        match state.handed.front() {
            Some((_, since)) => Some(since.after(self.wait)),
            None => state.waiting.front().map(|_| Time::ZERO),
        }
    }

    fn handle_timeout(&mut self, now: Time, out: &mut Outbox) -> Result<(), StageError> {
        let meeting = self.meeting.clone();
        let mut state = meeting.lock();
        if state.handed.front().is_some_and(|(_, since)| since.after(self.wait) <= now) {
            state.is_unsure = true;
            state.handed.clear();
            self.leave_out(&mut state, 0);
        }
        drop(state);
        self.make_ahead(now, out);
        Ok(())
    }

    fn has_room(&self) -> bool {
        self.meeting.lock().handed.len() < self.handed_max
    }

    fn report(&self) -> Vec<Report> {
        let state = self.meeting.lock();
        vec![
            ("handed", state.handed.len() as f64),
            ("made_ahead", self.made_ahead as f64),
            ("left_out", self.left_out as f64),
            ("unsure", f64::from(u8::from(state.is_unsure))),
        ]
    }
}

/// The half that says which request an answer belongs to: the source half of the answers' flow.
pub(super) struct Answers {
    meeting: Arc<Meeting>,
}

impl Answers {
    pub(super) fn new(site: &Site) -> Self {
        let meeting = Meeting::at(site);
        // A new epoch: the device may be another, and knows of no request.
        *meeting.lock() = State { has_answers: true, ..State::default() };
        Answers { meeting }
    }
}

impl Stage for Answers {
    fn handle(
        &mut self,
        port: Port,
        mut message: Message,
        _now: Time,
        out: &mut Outbox,
    ) -> Result<(), StageError> {
        let mut state = self.meeting.lock();
        let header = match state.handed.pop_front() {
            _ if state.is_unsure => Header::Unknown,
            Some((number, _)) => Header::Answer(number),
            None => Header::Unasked,
        };
        header.put(&mut message.body);
        out.send(port, message);
        Ok(())
    }
}
