//! Links: how a stage is reached from its neighbours on the same host (a call, a pipe, shared memory).

use crate::{Body, Choice, Feedback, Fill, Message, Outbox, Port, Readiness, StageError, StageResult, Time};

/// One input of a stage, wherever the stage runs.
#[derive(Debug)]
pub enum Input<'a> {
    /// One message.
    Message(Port, Message),
    /// A control message from the other half of the pair.
    Control(&'a [u8]),
    /// The flow ends here.
    End(Port),
    /// Messages were lost before this point.
    Gap(Port),
    /// New measurements of the flow and its path.
    Feedback(&'a Feedback),
    /// How much sound the partner behind this port of the stage holds.
    Fill(Port, Fill),
    /// The time of [`Link::poll_timeout`] has come.
    Timeout,
}

/// A failure of a stage, for people.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Incident {
    /// The failure, and the reaction.
    pub text: String,
    /// It names a lost message.
    pub is_loss: bool,
}

/// A stage as its neighbours see it, in this process or in another.
pub trait Link: Send {
    /// Sends an input to the stage. Its immediate output is in `out`.
    fn hand(&mut self, input: Input<'_>, now: Time, out: &mut Outbox) -> StageResult;

    /// Collects the output that the stage has made since.
    fn collect(&mut self, now: Time, out: &mut Outbox) -> StageResult;

    /// When [`Link::collect`] would return output.
    fn readiness(&self) -> Readiness<'_>;

    /// When the stage needs [`Input::Timeout`].
    fn poll_timeout(&self) -> Option<Time>;

    /// Returns true if the stage accepts another message now.
    fn has_room(&self) -> bool;

    /// After [`Input::End`]: returns true while held messages are still to be collected.
    fn is_ending(&self) -> bool {
        false
    }

    /// The number of held messages that the stage will release in time.
    fn held(&self) -> usize {
        0
    }

    /// Returns true if messages may bypass the stage ([`Stage::passes`](crate::Stage::passes)).
    fn passes(&self) -> bool {
        false
    }

    /// The number of messages that would be lost with the link.
    fn kept(&self) -> usize {
        0
    }

    /// The stage's checkpoint ([`Stage::checkpoint`](crate::Stage::checkpoint)). That of a stage in its own process has
    /// its unfinished inputs: it dies with the worker that started it, and its successor gets them again.
    fn checkpoint(&self) -> Option<Body> {
        None
    }

    /// Restores the stage from a checkpoint ([`Stage::restore`](crate::Stage::restore)).
    fn restore(&mut self, checkpoint: Body) -> StageResult {
        let _ = checkpoint;
        Err(StageError::Own("this link cannot restore a checkpoint".into()))
    }

    /// Statistics of the stage.
    fn report(&self) -> Vec<crate::Report>;

    /// The current values of the stage's `auto` options, with reasons.
    fn choices(&self) -> Vec<Choice> {
        Vec::new()
    }

    /// Returns true while the stage's process has unfinished inputs after the end, or is restarted for them after a
    /// failure. Its supervisor bounds this time: each input then has its output, or is dropped.
    fn is_settling(&self) -> bool {
        false
    }

    /// Failures of the stage's process and how they were handled, since the last call.
    fn incidents(&mut self) -> Vec<Incident> {
        Vec::new()
    }
}
