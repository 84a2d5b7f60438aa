//! Stages: state machines that transform messages, without I/O, threads or a clock.

use crate::{Body, Feedback, Fill, Message, Time, Value};
use thiserror::Error;

/// An input or output of a stage. Most stages have one of each, number 0.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub struct Port(pub u16);

impl Port {
    /// The only port of most stages.
    pub const MAIN: Port = Port(0);
}

/// Dropped messages. Every drop is counted by its reason.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Drop {
    /// The reason, used as the counter's name, such as `buffer: too many`.
    pub reason: &'static str,
    /// The number of messages.
    pub count: u64,
    /// A failure lost them; otherwise a stage dropped them on purpose. A reliable flow must have no losses.
    pub is_loss: bool,
}

/// The output of a stage.
#[derive(Debug, Default)]
pub struct Outbox {
    /// Messages, oldest first.
    pub messages: std::collections::VecDeque<(Port, Message)>,
    /// Control messages for the other half of the pair, oldest first.
    pub controls: Vec<Vec<u8>>,
    /// Dropped messages.
    pub drops: Vec<Drop>,
}

impl Outbox {
    /// Sends a message to the next stage.
    pub fn send(&mut self, port: Port, message: Message) {
        self.messages.push_back((port, message));
    }

    /// Sends a control message to the other half of the pair.
    pub fn control(&mut self, bytes: Vec<u8>) {
        self.controls.push(bytes);
    }

    /// Counts `count` messages that were dropped on purpose under `reason`.
    pub fn drop_counted(&mut self, reason: &'static str, count: u64) {
        if count > 0 {
            self.drops.push(Drop { reason, count, is_loss: false });
        }
    }
}

/// A stage failed on a message. The runtime counts that message under the stage's name.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum StageError {
    /// The input was not made by the other half of this pair.
    #[error("the other half of this pair makes no such message: {0}")]
    Input(String),
    /// The control message is invalid or unexpected.
    #[error("unexpected control message from the other half: {0}")]
    Control(String),
    /// The message would exceed a limit.
    #[error("{what} would be {bytes} bytes, over the limit of {limit}")]
    TooLarge {
        /// The object that is too large.
        what: &'static str,
        /// Its size.
        bytes: usize,
        /// The limit.
        limit: usize,
    },
    /// The stage has no such port.
    #[error("no port {0:?}")]
    Port(Port),
    /// An internal failure of the stage.
    #[error("{0}")]
    Own(String),
}

/// The result of a call to a stage.
pub type StageResult<T = ()> = Result<T, StageError>;

/// A statistic of a stage: name and value.
pub type Report = (&'static str, f64);

/// The value that an adaptive stage chose for an `auto` option.
#[derive(Debug, Clone, PartialEq)]
pub struct Choice {
    /// Name of the option.
    pub option: &'static str,
    /// The current value.
    pub value: Value,
    /// The reason in one line: the measurement, and the cost of the alternatives.
    pub why: String,
}

/// One half of a pair: a state machine. Time is an argument.
///
/// The caller drains the outbox after every call, before the next one.
pub trait Stage: Send {
    /// Takes one message. The stage outputs any number of messages, at once or later.
    fn handle(&mut self, port: Port, message: Message, now: Time, out: &mut Outbox) -> StageResult;

    /// Takes a control message from the other half.
    fn handle_control(&mut self, control: &[u8], now: Time, out: &mut Outbox) -> StageResult {
        let _ = (now, out);
        Err(StageError::Control(format!("{} bytes to a stage that expects none", control.len())))
    }

    /// The flow ends here, or its pipeline changes: output all held messages at once.
    fn handle_end(&mut self, port: Port, now: Time, out: &mut Outbox) -> StageResult {
        let _ = (port, now, out);
        Ok(())
    }

    /// Messages were lost before this stage, or the flow restarted.
    fn handle_gap(&mut self, port: Port, now: Time, out: &mut Outbox) -> StageResult {
        let _ = (port, now, out);
        Ok(())
    }

    /// New measurements of the flow and its path, for a source half that adapts.
    fn handle_feedback(&mut self, feedback: &Feedback, now: Time, out: &mut Outbox) -> StageResult {
        let _ = (feedback, now, out);
        Ok(())
    }

    /// How much sound the partner behind this port of the sink half holds, after a push to it: for a half that adapts to that
    /// partner's device.
    fn handle_fill(&mut self, port: Port, fill: Fill, now: Time, out: &mut Outbox) -> StageResult {
        let _ = (port, fill, now, out);
        Ok(())
    }

    /// When to call [`Stage::handle_timeout`].
    fn poll_timeout(&self) -> Option<Time> {
        None
    }

    /// The time of [`Stage::poll_timeout`] has come.
    fn handle_timeout(&mut self, now: Time, out: &mut Outbox) -> StageResult {
        let _ = (now, out);
        Ok(())
    }

    /// Returns true if the stage accepts another message now. While it does not, its path takes no message from
    /// the start of the flow: backpressure instead of drops.
    fn has_room(&self) -> bool {
        true
    }

    /// The number of held messages that the stage will release in time. When a flow ends, its path waits for
    /// them before it calls [`Stage::handle_end`]; so the last messages keep their timing.
    fn held(&self) -> usize {
        0
    }

    /// The number of messages that would be lost with the stage: held messages, and those that only another
    /// message or the end of the flow releases.
    fn kept(&self) -> usize {
        self.held()
    }

    /// Returns the highest [mark](crate::Attributes::mark) such that the stage holds no message with that mark or a
    /// lower one. Marks rise in order of arrival; `last` is the mark of the newest message. `None` if the stage
    /// cannot tell. In its own process, a stage that always holds messages needs this: its output is committed
    /// only up to the last finished input.
    fn finished(&self, last: u32) -> Option<u32> {
        let _ = last;
        None
    }

    /// Returns true if the stage only ever passes each message unchanged, at once, on the main port. Its caller
    /// may then skip it.
    fn passes(&self) -> bool {
        false
    }

    /// Saves the stage's memory for [`Stage::restore`] in another process. `None` for a stage without memory
    /// between messages. It is called at every acknowledgement of a reliable flow, so it must share memory, not
    /// copy it. Statistics and values that are learned quickly may be left out.
    fn checkpoint(&self) -> Option<Body> {
        None
    }

    /// Restores the memory of another stage into this new one. The checkpoint comes from another process and
    /// must be checked like network input. After an error the stage must not be used.
    fn restore(&mut self, checkpoint: Body) -> StageResult {
        Err(StageError::Input(format!("{} bytes for a stage without checkpoints", checkpoint.len())))
    }

    /// Statistics of the stage.
    fn report(&self) -> Vec<Report> {
        Vec::new()
    }

    /// The current values of its `auto` options, with reasons.
    fn choices(&self) -> Vec<Choice> {
        Vec::new()
    }
}
