//! The device side: a disk as a partner. Requests are pushed into it, answers are pulled out of it.
//!
//! Threads do the requests, in any order. A read of data in the page cache is done at once, without a thread.
//!
//! | state | event | action | next |
//! |---|---|---|---|
//! | closed | the partner begins | *ready* | closed |
//! | closed, beginning | a request | dropped: its sender sends it again | the same |
//! | any | *begin*, and requests are in work | | beginning |
//! | any | *begin*, and none is | *described* | open |
//! | beginning | the last answer | the answer, then *described* | open |
//! | open | a request | a thread does it | open |
//!
//! A killed worker takes its requests along: its threads end before the process does, so no request of it reaches the disk later. The
//! next partner begins in the state closed, and the application's side sends the requests without an answer again.

use super::properties::Properties;
use super::storage::Storage;
use crate::flows::{Endpoint, FlowPartner, invalid};
use crate::stream::now;
use bytes::Bytes;
use contract::{
    Body, Ctl, CtlReply, Direction, FlowKey, Format, Interest, Message, Next, PartnerError, PartnerResult,
    PullSlot, Readiness, Time,
};
use std::collections::VecDeque;
use std::io;
use std::os::fd::AsFd;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use sys::event::Event;
use wire::formats::block::{Answer, Command, Failure, FromDisk, Geometry, REQUEST_BYTES, Request, ToDisk};

/// Requests in work, with the answers that were not pulled, at most.
const REQUESTS_MAX: usize = 256;
/// Their data, at most. One request may have more.
const BYTES_MAX: usize = 64 << 20;
/// Threads at most. Each exists from the first request that finds no idle one.
const THREADS_MAX: usize = 16;
/// The longest read that is tried without a thread.
const AT_ONCE_BYTES_MAX: u32 = 256 << 10;

/// A disk as a partner.
pub(super) struct DiskPartner {
    name: String,
    geometry: Geometry,
    instance: u64,
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
    state: State,
    counts: Counts,
}

/// The agreement with the application's side.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Closed,
    Beginning(u64),
    Open,
}

/// Figures of [`Ctl::Report`].
#[derive(Debug, Default)]
struct Counts {
    reads: u64,
    reads_at_once: u64,
    writes: u64,
    flushes: u64,
    others: u64,
    refused: u64,
    dropped: u64,
}

/// The state that partner and threads share.
struct Shared {
    storage: Storage,
    work: Mutex<Work>,
    /// Wakes an idle thread.
    queued: Condvar,
    /// Signalled when an answer is queued.
    answered: Event,
}

impl Shared {
    /// Ignores poisoning: each change leaves the state usable.
    fn lock(&self) -> MutexGuard<'_, Work> {
        self.work.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The end of the partner.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
enum End {
    #[default]
    No,
    /// No more requests will come.
    Finishing,
    /// The threads exit.
    Dropped,
}

/// A message that was not pulled.
struct Queued {
    created: Time,
    body: Body,
    kind: Kind,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Ready,
    Described,
    /// With the data of the request that it answers.
    Answer {
        data_bytes: usize,
    },
}

/// A request for a thread.
struct Job {
    request: Request,
    data: Body,
    /// [`Work::sync_failures`] when it came.
    sync_failures: u64,
}

#[derive(Default)]
struct Work {
    jobs: VecDeque<Job>,
    messages: VecDeque<Queued>,
    /// Requests without a pulled answer, and their data.
    requests: usize,
    bytes: usize,
    /// Requests without an answer.
    running: usize,
    idle_threads: usize,
    /// Flushes and forced writes that have failed. The kernel reports a lost write to one of those that run at that time.
    sync_failures: u64,
    /// The device itself is gone.
    is_gone: bool,
    end: End,
}

impl Work {
    fn queue(&mut self, message: FromDisk, kind: Kind) {
        let body = Body::from(message.to_bytes());
        self.messages.push_back(Queued { created: now(), body, kind });
    }

    fn answer(&mut self, request: &Request, result: Result<Bytes, Failure>) {
        self.is_gone |= result == Err(Failure::Gone);
        let (result, data) = match result {
            Ok(data) => (Ok(()), data),
            Err(failure) => (Err(failure), Bytes::new()),
        };
        let mut body = Body::from(Bytes::copy_from_slice(&Answer { id: request.id, result }.to_bytes()));
        body.push(data);
        let kind = Kind::Answer { data_bytes: data_bytes(request) };
        self.messages.push_back(Queued { created: now(), body, kind });
        self.running -= 1;
    }

    /// Answers a request that a thread has done. A flush says nothing if another one has failed since it came.
    fn finish(&mut self, request: &Request, sync_failures: u64, result: Result<Bytes, Failure>) {
        let is_flush = request.command == Command::Flush;
        let result = match result {
            Ok(_) if is_flush && sync_failures != self.sync_failures => Err(Failure::Device),
            Err(failure) if is_flush || (request.force && failure.may_report_loss()) => {
                self.sync_failures += 1;
                Err(failure)
            }
            result => result,
        };
        self.answer(request, result);
    }

    fn has_room(&self) -> bool {
        self.requests < REQUESTS_MAX && self.bytes < BYTES_MAX
    }
}

/// The data that a request carries, or its answer.
fn data_bytes(request: &Request) -> usize {
    if matches!(request.command, Command::Read | Command::Write) { request.length as usize } else { 0 }
}

impl DiskPartner {
    /// Creates a partner on an open disk.
    pub(super) fn new(properties: &Properties, storage: Storage) -> io::Result<FlowPartner<Self>> {
        let Properties { name, geometry, instance, .. } = properties.clone();
        let mut work = Work::default();
        work.queue(FromDisk::Ready, Kind::Ready);
        let (queued, answered) = (Condvar::new(), Event::new()?);
        let shared = Arc::new(Shared { storage, work: Mutex::new(work), queued, answered });
        let (state, counts) = (State::Closed, Counts::default());
        let partner = DiskPartner { name, geometry, instance, shared, threads: Vec::new(), state, counts };
        Ok(FlowPartner::new(partner, Some(Format::Block), Some(Format::Block)))
    }

    /// Sends the description if all requests before *begin* are answered.
    fn describe(&mut self, work: &mut Work) {
        if let State::Beginning(number) = self.state
            && work.running == 0
        {
            let DiskPartner { geometry, instance, .. } = *self;
            // The application's side ignores an earlier one, and each *begin* would add another.
            work.messages.retain(|queued| queued.kind != Kind::Described);
            work.queue(FromDisk::Described { number, geometry, instance }, Kind::Described);
            self.state = State::Open;
        }
    }

    fn count(&mut self, command: Command) {
        *match command {
            Command::Read => &mut self.counts.reads,
            Command::Write => &mut self.counts.writes,
            Command::Flush => &mut self.counts.flushes,
            Command::Trim | Command::Zeroes => &mut self.counts.others,
        } += 1;
    }

    fn start(&mut self, request: Request, data: Body) -> PartnerResult {
        let shared = self.shared.clone();
        let mut work = shared.lock();
        work.requests += 1;
        work.bytes += data_bytes(&request);
        work.running += 1;
        if let Some(failure) = request.refusal(&self.geometry) {
            self.counts.refused += 1;
            work.answer(&request, Err(failure));
            return Ok(());
        }
        self.count(request.command);
        if request.command == Command::Read
            && request.length <= AT_ONCE_BYTES_MAX
            && let Some(data) = shared.storage.read_at_once(&request)
        {
            self.counts.reads_at_once += 1;
            work.answer(&request, Ok(data));
            return Ok(());
        }
        let sync_failures = work.sync_failures;
        work.jobs.push_back(Job { request, data, sync_failures });
        if work.jobs.len() > work.idle_threads && self.threads.len() < THREADS_MAX {
            let shared = shared.clone();
            let thread = std::thread::Builder::new().name("disk".into()).spawn(move || serve(&shared));
            match thread {
                Ok(thread) => self.threads.push(thread),
                // Those that exist do it.
                Err(_) if !self.threads.is_empty() => {}
                Err(error) => {
                    return Err(PartnerError::os(format!("starting a thread for {}", self.name), error));
                }
            }
        }
        shared.queued.notify_one();
        Ok(())
    }
}

impl Drop for DiskPartner {
    fn drop(&mut self) {
        let mut work = self.shared.lock();
        work.end = End::Dropped;
        work.jobs.clear();
        drop(work);
        self.shared.storage.stop();
        self.shared.queued.notify_all();
        // A panic of a thread has been reported already.
        self.threads.drain(..).for_each(|thread| _ = thread.join());
    }
}

/// Body of a thread: does requests.
fn serve(shared: &Shared) {
    let mut work = shared.lock();
    loop {
        if work.end == End::Dropped {
            return;
        }
        let Some(Job { request, data, sync_failures }) = work.jobs.pop_front() else {
            work.idle_threads += 1;
            work = shared.queued.wait(work).unwrap_or_else(PoisonError::into_inner);
            work.idle_threads -= 1;
            continue;
        };
        drop(work);
        let result = shared.storage.perform(&request, &data);
        drop(data);
        work = shared.lock();
        work.finish(&request, sync_failures, result);
        shared.answered.signal();
    }
}

impl Endpoint for DiskPartner {
    fn accept(&mut self, message: &mut Message) -> PartnerResult<bool> {
        let mut front = [0; REQUEST_BYTES];
        let (filled, length) = (message.body.copy_front(&mut front), message.body.len());
        match ToDisk::parse(&front[..filled], length).map_err(invalid)? {
            ToDisk::Begin { number } => {
                self.state = State::Beginning(number);
                let shared = self.shared.clone();
                self.describe(&mut shared.lock());
                Ok(true)
            }
            ToDisk::Request(_) if self.state != State::Open => {
                self.counts.dropped += 1;
                Ok(true)
            }
            ToDisk::Request(_) if !self.shared.lock().has_room() => Ok(false),
            ToDisk::Request(request) => {
                let mut data = std::mem::take(&mut message.body);
                data.skip_front(REQUEST_BYTES);
                self.start(request, data).map(|()| true)
            }
        }
    }

    fn next(&mut self, _now: Time) -> PartnerResult<Next> {
        // Clearing before the queue is read keeps later signals.
        self.shared.answered.clear();
        let shared = self.shared.clone();
        let mut work = shared.lock();
        if work.is_gone {
            return Err(PartnerError::Gone(self.name.clone()));
        }
        self.describe(&mut work);
        let Some(Queued { created, body, kind }) = work.messages.pop_front() else {
            return Ok(Next::Nothing);
        };
        if let Kind::Answer { data_bytes } = kind {
            work.requests -= 1;
            work.bytes -= data_bytes;
        }
        Ok(Next::Message(Message::new(created, body)))
    }

    fn ctl(&mut self, _flow: FlowKey, operation: Ctl<'_>, _slot: &mut PullSlot) -> PartnerResult<CtlReply> {
        match operation {
            Ctl::Flush => Ok(CtlReply::Done),
            Ctl::Finish => {
                let mut work = self.shared.lock();
                work.end = End::Finishing;
                Ok(if work.running == 0 { CtlReply::Done } else { CtlReply::Pending })
            }
            Ctl::Report => {
                let (counts, work) = (&self.counts, self.shared.lock());
                Ok(CtlReply::Report(vec![
                    ("reads", counts.reads as f64),
                    ("reads from memory", counts.reads_at_once as f64),
                    ("writes", counts.writes as f64),
                    ("flushes", counts.flushes as f64),
                    ("trims and zeroes", counts.others as f64),
                    ("requests refused", counts.refused as f64),
                    ("requests dropped before the beginning", counts.dropped as f64),
                    ("requests in work", work.running as f64),
                ]))
            }
            _ => Err(PartnerError::Unsupported("this control operation")),
        }
    }

    fn readiness(&self, direction: Direction) -> Readiness<'_> {
        let work = self.shared.lock();
        let is_ready = match direction {
            Direction::In if work.end == End::Finishing => work.running == 0,
            Direction::In => work.has_room(),
            Direction::Out => work.is_gone || !work.messages.is_empty(),
        };
        match is_ready {
            true => Readiness::now(),
            false => Readiness::descriptor(self.shared.answered.as_fd(), Interest::Read),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failed_flush_fails_the_others_that_wait_or_run() {
        let request = |command, force| {
            let (id, keep_space, offset, length) = (1, false, 0, 0);
            Request { id, command, force, keep_space, offset, length }
        };
        let (flush, write) = (request(Command::Flush, false), request(Command::Write, false));
        let failures = [Failure::Device, Failure::NoSpace];
        for (failed, failure) in [flush, request(Command::Write, true)].into_iter().zip(failures) {
            let mut work = Work { running: 4, ..Work::default() };
            work.finish(&failed, 0, Err(failure));
            work.finish(&flush, 0, Ok(Bytes::new()));
            work.finish(&write, 0, Ok(Bytes::new()));
            work.finish(&flush, work.sync_failures, Ok(Bytes::new()));
            let answers = work.messages.iter().map(|queued| {
                let bytes = queued.body.clone().into_bytes();
                match FromDisk::parse(&bytes, bytes.len()) {
                    Ok(FromDisk::Answer(answer)) => answer.result,
                    other => panic!("{other:?}"),
                }
            });
            let lost = Err(Failure::Device);
            assert_eq!(answers.collect::<Vec<_>>(), [Err(failure), lost, Ok(()), Ok(())]);
        }
    }
}
