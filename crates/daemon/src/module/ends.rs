//! Pipes as a partner: the shell's side of a device or a transport.

use contract::{
    Attributes, Ctl, CtlReply, Direction, FlowKey, FlowTemplate, Interest, Message, Next, Partner,
    PartnerError, PartnerResult, Pull, PullSlot, Pulled, Pushed, Readiness,
};
use modules::now;
use modules::runner::reader::{ReadError, Reader};
use modules::runner::writer::Writer;

const OUT: FlowKey = FlowKey(1);
const IN: FlowKey = FlowKey(2);
/// Most reads in one search for a message, so that a long message does not block the thread.
const READS_MAX: usize = 16;

/// Containers from one pipe, to one pipe, or both.
pub(super) struct Ends {
    pub(super) reader: Option<Reader>,
    pub(super) writer: Option<Writer>,
    slot: PullSlot,
}

impl Ends {
    pub(super) fn new(reader: Option<Reader>, writer: Option<Writer>) -> Ends {
        Ends { reader, writer, slot: PullSlot::default() }
    }

    fn flush(&mut self) -> PartnerResult<CtlReply> {
        let Some(writer) = &mut self.writer else { return Ok(CtlReply::Done) };
        match writer.flush(now()) {
            Ok(true) => Ok(CtlReply::Done),
            Ok(false) => Ok(CtlReply::Pending),
            Err(error) => Err(PartnerError::os(format!("writing to {}", writer.name()), error)),
        }
    }
}

fn next(reader: &mut Reader) -> PartnerResult<Next> {
    let failed = |error| match error {
        ReadError::Os(error) => PartnerError::os("reading containers", error),
        ReadError::Bytes(problem) => PartnerError::Peer(problem),
    };
    for _ in 0..READS_MAX {
        if let Some(message) = reader.next_message().map_err(failed)? {
            return Ok(Next::Message(message));
        }
        if reader.has_ended() {
            return Ok(Next::End);
        }
        if !reader.receive().map_err(failed)? {
            break;
        }
    }
    Ok(Next::Nothing)
}

impl Partner for Ends {
    fn open(&mut self, template: &FlowTemplate, _attributes: &Attributes) -> PartnerResult<FlowKey> {
        match template.direction {
            Direction::Out if self.reader.is_some() => Ok(OUT),
            Direction::In if self.writer.is_some() => Ok(IN),
            _ => Err(PartnerError::Unsupported("a flow without a pipe")),
        }
    }

    fn close(&mut self, _flow: FlowKey) -> PartnerResult {
        self.flush().map(drop)
    }

    fn push(&mut self, flow: FlowKey, message: Message) -> Result<Pushed, (PartnerError, Message)> {
        let Some(writer) = &mut self.writer else {
            return Err((PartnerError::NoFlow(flow), message));
        };
        if !writer.has_room() {
            return Ok(Pushed::Full(message));
        }
        if let Err(message) = writer.push(message) {
            return Err((PartnerError::Message("larger than a container".into()), message));
        }
        if writer.has_burst() {
            // The message is accepted: an error shows again at the next flush.
            let _ = self.flush();
        }
        Ok(Pushed::Taken)
    }

    fn pull(&mut self, flow: FlowKey, request: Pull<'_>) -> PartnerResult<Pulled> {
        let reader = self.reader.as_mut().ok_or(PartnerError::NoFlow(flow))?;
        self.slot.answer(OUT, request, || next(reader))
    }

    fn ctl(&mut self, _flow: FlowKey, operation: Ctl<'_>) -> PartnerResult<CtlReply> {
        match operation {
            Ctl::Flush => self.flush(),
            Ctl::Finish => {
                let reply = self.flush()?;
                if let (CtlReply::Done, Some(writer)) = (&reply, &mut self.writer) {
                    writer.close();
                }
                Ok(reply)
            }
            Ctl::Neutral => Ok(CtlReply::Done),
            _ => Err(PartnerError::Unsupported("this operation on a pipe")),
        }
    }

    fn readiness(&self, _flow: FlowKey, direction: Direction) -> Readiness<'_> {
        match (direction, &self.reader, &self.writer) {
            (Direction::Out, Some(reader), _) => match reader.waits_for() {
                Some(descriptor) if !self.slot.is_held() && !reader.has_next() && !reader.has_ended() => {
                    Readiness::descriptor(descriptor, Interest::Read)
                }
                _ => Readiness::now(),
            },
            (Direction::In, _, Some(writer)) if writer.waiting() > 0 => {
                let (descriptor, at) = writer.waits_for();
                let waits =
                    descriptor.map_or(Readiness::never(), |fd| Readiness::descriptor(fd, Interest::Write));
                Readiness { now: writer.has_room(), ..waits.or_at(at) }
            }
            (Direction::In, _, Some(_)) => Readiness::now(),
            _ => Readiness::never(),
        }
    }
}
