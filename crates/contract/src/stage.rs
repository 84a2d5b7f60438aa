//! Stages: state machines that transform messages. No I/O, no thread, no clock.

use crate::{Body, Feedback, Message, Time, Value};
use thiserror::Error;

/// An input or output of a stage. Most stages have one of each, number 0.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub struct Port(pub u16);

impl Port {
    /// The one input and output of most stages.
    pub const MAIN: Port = Port(0);
}

/// A message ended here, on purpose: counted by name, never in silence.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Drop {
    /// What it is counted as, such as `buffer: too many`.
    pub reason: &'static str,
    /// How many messages.
    pub count: u64,
}

/// Where a stage puts what it makes.
#[derive(Debug, Default)]
pub struct Outbox {
    /// Messages, oldest first.
    pub messages: std::collections::VecDeque<(Port, Message)>,
    /// For the other half of the pair, oldest first.
    pub controls: Vec<Vec<u8>>,
    /// What was dropped.
    pub drops: Vec<Drop>,
}

impl Outbox {
    /// Sends a message on.
    pub fn send(&mut self, port: Port, message: Message) {
        self.messages.push_back((port, message));
    }

    /// Says something to the other half of the pair.
    pub fn control(&mut self, bytes: Vec<u8>) {
        self.controls.push(bytes);
    }

    /// Counts `count` messages as dropped for `reason`.
    pub fn drop_counted(&mut self, reason: &'static str, count: u64) {
        if count > 0 {
            self.drops.push(Drop { reason, count });
        }
    }
}

/// A stage could not do its work on a message; the runtime counts the message by the stage's name.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum StageError {
    /// What came is not what the other half makes.
    #[error("the message is not what the other half of this pair makes: {0}")]
    Input(String),
    /// The other half's control message means nothing here.
    #[error("the other half's control message means nothing here: {0}")]
    Control(String),
    /// The message would be over a limit.
    #[error("{what} would be {bytes} bytes, over the limit of {limit}")]
    TooLarge {
        /// What.
        what: &'static str,
        /// How large.
        bytes: usize,
        /// The limit.
        limit: usize,
    },
    /// The stage has no such port.
    #[error("no port {0:?}")]
    Port(Port),
    /// The stage's own work failed.
    #[error("{0}")]
    Own(String),
}

/// A figure that a stage reports for people and scripts: name and value.
pub type Report = (&'static str, f64);

/// What an adaptive stage set an `auto` option to.
#[derive(Debug, Clone, PartialEq)]
pub struct Choice {
    /// The option.
    pub option: &'static str,
    /// What it stands at.
    pub value: Value,
    /// Why, in one line: what was measured, and what else would cost.
    pub why: String,
}

/// One half of a pair: a state machine without I/O, threads or a clock. Time is an argument.
///
/// The caller drains the outbox after every call, before the next.
pub trait Stage: Send {
    /// One message in; any number out, at once or later.
    fn handle(&mut self, port: Port, message: Message, now: Time, out: &mut Outbox)
    -> Result<(), StageError>;

    /// The other half of this pair says something.
    fn handle_control(&mut self, control: &[u8], now: Time, out: &mut Outbox) -> Result<(), StageError> {
        let _ = (now, out);
        Err(StageError::Control(format!("{} bytes to a stage that expects none", control.len())))
    }

    /// The flow ends, or changes its pipeline, here: give out what is held, at once.
    fn handle_end(&mut self, port: Port, now: Time, out: &mut Outbox) -> Result<(), StageError> {
        let _ = (port, now, out);
        Ok(())
    }

    /// Something was lost, or restarted, before here.
    fn handle_gap(&mut self, port: Port, now: Time, out: &mut Outbox) -> Result<(), StageError> {
        let _ = (port, now, out);
        Ok(())
    }

    /// What is known of the flow's way to its sink, for a source half that adapts to it.
    fn handle_feedback(
        &mut self,
        feedback: &Feedback,
        now: Time,
        out: &mut Outbox,
    ) -> Result<(), StageError> {
        let _ = (feedback, now, out);
        Ok(())
    }

    /// When [`Stage::handle_timeout`] wants to be called.
    fn poll_timeout(&self) -> Option<Time> {
        None
    }

    /// The time of [`Stage::poll_timeout`] has come.
    fn handle_timeout(&mut self, now: Time, out: &mut Outbox) -> Result<(), StageError> {
        let _ = (now, out);
        Ok(())
    }

    /// Whether the stage takes another message now. Until it does, its path takes none from the flow's
    /// start, which is how a full stage slows a reliable flow down instead of dropping.
    fn has_room(&self) -> bool {
        true
    }

    /// Messages held that will leave by themselves, in time. When a flow has ended its path waits for them
    /// before it calls [`Stage::handle_end`], so that a rhythm is kept to the last message.
    fn held(&self) -> usize {
        0
    }

    /// Messages that would be lost with the stage: those held, and those that only another message or the end brings
    /// out.
    fn kept(&self) -> usize {
        self.held()
    }

    /// Where messages are [marked](Attributes::mark) in the order in which they come, and `last` is the mark of the last
    /// one: the mark of the last before which nothing is held any more. `None` of a stage that cannot tell. In a process of
    /// its own, a stage that always holds something gives out nothing for good without this.
    fn finished(&self, last: u32) -> Option<u32> {
        let _ = last;
        None
    }

    /// Whether all it ever does is to pass on each message as it is, at once, by the main port: then it need not be
    /// called for messages at all.
    fn passes(&self) -> bool {
        false
    }

    /// What the stage remembers, for [`Stage::restore`] of one made anew in another process: `None` of a stage that
    /// makes what it makes of each message alone, always. Shares memory instead of copying it: it is asked for with
    /// every acknowledgement of a reliable flow. Figures, and what is learned again by itself, may be left out.
    fn checkpoint(&self) -> Option<Body> {
        None
    }

    /// A stage that has taken nothing yet goes on as the one would have whose checkpoint this is. It comes from
    /// another process, and is checked as what a stranger says; after an error the stage is of no use.
    fn restore(&mut self, checkpoint: Body) -> Result<(), StageError> {
        Err(StageError::Input(format!("{} bytes to a stage that remembers nothing", checkpoint.len())))
    }

    /// Figures for people and scripts.
    fn report(&self) -> Vec<Report> {
        Vec::new()
    }

    /// What its `auto` options stand at, and why.
    fn choices(&self) -> Vec<Choice> {
        Vec::new()
    }
}
