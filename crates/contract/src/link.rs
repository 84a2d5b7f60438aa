//! How neighbours in one host hand messages on: a call, a pipe, shared memory.

use crate::{Body, Choice, Feedback, Message, Outbox, Port, Readiness, StageError, Time};

/// What is handed to a stage, wherever it runs.
#[derive(Debug)]
pub enum Input<'a> {
    /// One message.
    Message(Port, Message),
    /// From the other half of the pair.
    Control(&'a [u8]),
    /// The flow ends here.
    End(Port),
    /// Something was lost before here.
    Gap(Port),
    /// What is known of the flow's way to its sink.
    Feedback(&'a Feedback),
    /// The stage's time has come.
    Timeout,
}

/// A stage as its neighbours see it: near or in another process.
pub trait Link: Send {
    /// Hands something to the stage. What it answers at once is in `out`.
    fn hand(&mut self, input: Input<'_>, now: Time, out: &mut Outbox) -> Result<(), StageError>;

    /// Fetches what the stage made by itself since.
    fn collect(&mut self, now: Time, out: &mut Outbox) -> Result<(), StageError>;

    /// When [`Link::collect`] would find something.
    fn readiness(&self) -> Readiness<'_>;

    /// When the stage wants [`Input::Timeout`].
    fn poll_timeout(&self) -> Option<Time>;

    /// Whether the stage takes another message now.
    fn has_room(&self) -> bool;

    /// After [`Input::End`]: whether more of what was held is still to be collected.
    fn is_ending(&self) -> bool {
        false
    }

    /// Messages held that will leave by themselves, in time.
    fn held(&self) -> usize {
        0
    }

    /// Whether messages may go past it: its stage passes each on as it is ([`Stage::passes`](crate::Stage::passes)).
    fn passes(&self) -> bool {
        false
    }

    /// Messages that would be lost with the link.
    fn kept(&self) -> usize {
        0
    }

    /// What the stage remembers ([`Stage::checkpoint`](crate::Stage::checkpoint)). A stage in a process of its own is
    /// not asked: it is killed with who started it, and begins anew.
    fn checkpoint(&self) -> Option<Body> {
        None
    }

    /// Has the stage go on from a checkpoint ([`Stage::restore`](crate::Stage::restore)).
    fn restore(&mut self, checkpoint: Body) -> Result<(), StageError> {
        let _ = checkpoint;
        Err(StageError::Own("it was not asked what it remembers".into()))
    }

    /// Figures for people and scripts.
    fn report(&self) -> Vec<crate::Report>;

    /// What the stage's `auto` options stand at, and why.
    fn choices(&self) -> Vec<Choice> {
        Vec::new()
    }

    /// What went wrong with the stage's process, and what was done about it, since the last call.
    fn incidents(&mut self) -> Vec<String> {
        Vec::new()
    }
}
