//! The application end of a measurement of the program's own: it hands each message to a function.

use contract::{
    Attributes, Ctl, CtlReply, Direction, FlowKey, FlowTemplate, Message, Partner, PartnerError,
    PartnerResult, Pull, Pulled, Pushed, Readiness,
};

/// The only flow of a partner of the program's own.
pub(crate) const FLOW: FlowKey = FlowKey(1);

/// An application that receives each message by a function. The function returns a message that it cannot read, with the reason.
#[derive(Debug)]
pub(crate) struct Receiver<F>(pub(crate) F);

impl<F: FnMut(Message) -> Result<(), (PartnerError, Message)> + Send> Partner for Receiver<F> {
    fn open(&mut self, template: &FlowTemplate, _attributes: &Attributes) -> PartnerResult<FlowKey> {
        match template.direction {
            Direction::In => Ok(FLOW),
            Direction::Out => Err(PartnerError::Unsupported("a flow out of the application")),
        }
    }

    fn close(&mut self, _flow: FlowKey) -> PartnerResult {
        Ok(())
    }

    fn push(&mut self, _flow: FlowKey, message: Message) -> Result<Pushed, (PartnerError, Message)> {
        let Receiver(receive) = self;
        receive(message).map(|()| Pushed::Taken)
    }

    fn pull(&mut self, flow: FlowKey, _request: Pull<'_>) -> PartnerResult<Pulled> {
        Err(PartnerError::NoFlow(flow))
    }

    fn ctl(&mut self, _flow: FlowKey, operation: Ctl<'_>) -> PartnerResult<CtlReply> {
        finished(operation)
    }

    fn readiness(&self, _flow: FlowKey, direction: Direction) -> Readiness<'_> {
        match direction {
            Direction::In => Readiness::now(),
            Direction::Out => Readiness::never(),
        }
    }
}

/// Answers the operations of a partner that holds no message and has no state.
pub(crate) fn finished(operation: Ctl<'_>) -> PartnerResult<CtlReply> {
    match operation {
        Ctl::Flush | Ctl::Finish | Ctl::Neutral => Ok(CtlReply::Done),
        _ => Err(PartnerError::Unsupported("this operation")),
    }
}
