//! A partner that only accepts messages and passes them to a function.

use contract::{
    Attributes, Ctl, CtlReply, Direction, FlowKey, FlowTemplate, Message, Partner, PartnerError,
    PartnerResult, Pull, Pulled, Pushed, Readiness,
};

/// Accepts every message at once. Returns a message for which `take` fails.
pub struct Taker<F> {
    take: F,
}

impl<F> Taker<F>
where
    F: FnMut(Message) -> Result<(), (PartnerError, Message)> + Send,
{
    /// Passes every message to `take`.
    pub fn new(take: F) -> Taker<F> {
        Taker { take }
    }
}

impl<F> Partner for Taker<F>
where
    F: FnMut(Message) -> Result<(), (PartnerError, Message)> + Send,
{
    fn open(&mut self, template: &FlowTemplate, _: &Attributes) -> PartnerResult<FlowKey> {
        match template.direction {
            Direction::In => Ok(FlowKey::DEFAULT),
            Direction::Out => Err(PartnerError::Unsupported("it only takes")),
        }
    }

    fn close(&mut self, _: FlowKey) -> PartnerResult {
        Ok(())
    }

    fn push(&mut self, _: FlowKey, message: Message) -> Result<Pushed, (PartnerError, Message)> {
        (self.take)(message).map(|()| Pushed::Taken)
    }

    fn pull(&mut self, _: FlowKey, _: Pull<'_>) -> PartnerResult<Pulled> {
        Ok(Pulled::Nothing)
    }

    fn ctl(&mut self, _: FlowKey, _: Ctl<'_>) -> PartnerResult<CtlReply> {
        Ok(CtlReply::Done)
    }

    fn readiness(&self, _: FlowKey, direction: Direction) -> Readiness<'_> {
        match direction {
            Direction::In => Readiness::now(),
            Direction::Out => Readiness::never(),
        }
    }
}
