//! iceoryx2: one service with messages and one with events in each direction.

use crate::{Answerer, Ask, Failure, report_ready};
use iceoryx2::port::{listener::Listener, notifier::Notifier, publisher::Publisher, subscriber::Subscriber};
use iceoryx2::prelude::*;
use std::mem::MaybeUninit;

/// Bytes without initialisation: the library lends a message, and it is sent unwritten.
type Bytes = [MaybeUninit<u8>];

/// The ports of one process.
struct Side {
    publisher: Publisher<ipc::Service, Bytes, ()>,
    subscriber: Subscriber<ipc::Service, Bytes, ()>,
    notifier: Notifier<ipc::Service>,
    listener: Listener<ipc::Service>,
    size: usize,
    /// The ports need the node.
    _node: Node<ipc::Service>,
}

impl Side {
    fn new(out: &str, back: &str, size: usize) -> Result<Side, Failure> {
        set_log_level(LogLevel::Error);
        let node = NodeBuilder::new().create::<ipc::Service>()?;
        let messages = |name: &str| -> Result<_, Failure> {
            Ok(node.service_builder(&name.try_into()?).publish_subscribe::<Bytes>().open_or_create()?)
        };
        let events = |name: &str| -> Result<_, Failure> {
            Ok(node.service_builder(&name.try_into()?).event().open_or_create()?)
        };
        Ok(Side {
            publisher: messages(out)?.publisher_builder().initial_max_slice_len(size).create()?,
            subscriber: messages(back)?.subscriber_builder().create()?,
            notifier: events(out)?.notifier_builder().create()?,
            listener: events(back)?.listener_builder().create()?,
            size,
            _node: node,
        })
    }

    fn send(&self) -> Result<(), Failure> {
        let sample = self.publisher.loan_slice_uninit(self.size)?;
        sample.write_from_fn(|_| MaybeUninit::uninit()).send()?;
        self.notifier.notify()?;
        Ok(())
    }

    fn receive(&self) -> Result<(), Failure> {
        loop {
            self.listener.blocking_wait(|_| ())?;
            if let Some(sample) = self.subscriber.receive()? {
                return match sample.payload().len() == self.size {
                    true => Ok(()),
                    false => Err("a message returned with another length".into()),
                };
            }
        }
    }
}

/// Returns the names of both directions.
fn directions(meeting: &str) -> [String; 2] {
    ["there", "back"].map(|direction| format!("outboard-rivals/{meeting}/{direction}"))
}

/// Answers each message with another.
pub(crate) fn answer(meeting: &str, size: usize) -> Result<(), Failure> {
    let [there, back] = directions(meeting);
    let side = Side::new(&back, &there, size)?;
    report_ready()?;
    loop {
        side.receive()?;
        side.send()?;
    }
}

/// The asking end.
pub(crate) struct Asker {
    side: Side,
    _answerer: Answerer,
}

impl Asker {
    pub(crate) fn new(
        size: usize,
        start: impl FnOnce(&str) -> Result<Answerer, Failure>,
    ) -> Result<Asker, Failure> {
        let meeting = std::process::id().to_string();
        let [there, back] = directions(&meeting);
        let side = Side::new(&there, &back, size)?;
        Ok(Asker { side, _answerer: start(&meeting)? })
    }
}

impl Ask for Asker {
    fn pass(&mut self) -> Result<(), Failure> {
        self.side.send()?;
        self.side.receive()
    }
}
