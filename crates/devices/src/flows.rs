//! The flows of a device partner: at most one in each direction.

use contract::{
    Attributes, Ctl, CtlReply, Direction, FlowKey, FlowTemplate, Format, Message, Next, Partner,
    PartnerError, PartnerResult, Presence, Pull, PullSlot, Pulled, Pushed, Readiness, Time,
};
use std::os::fd::OwnedFd;
use sys::clock::boot_ns;
use wire::WireError;

/// Key of the flow that is pulled out of a partner.
pub(crate) const OUT: FlowKey = FlowKey(1);

/// Key of the flow that is pushed into a partner.
pub(crate) const IN: FlowKey = FlowKey(2);

/// State of one direction.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
enum FlowState {
    /// The partner has no flow in this direction.
    #[default]
    None,
    Closed,
    Open,
}

/// The flows of a partner and their states.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Flows {
    out: FlowState,
    into: FlowState,
}

impl Flows {
    /// Creates the flows of a partner, closed.
    pub(crate) fn new(has_out: bool, has_in: bool) -> Self {
        let state = |exists| if exists { FlowState::Closed } else { FlowState::None };
        Flows { out: state(has_out), into: state(has_in) }
    }

    /// Opens a flow if the partner has it with this format. An open flow may be opened again and keeps its key. A partner
    /// of plain bytes carries any format.
    pub(crate) fn open(&mut self, template: &FlowTemplate, format: &Format) -> PartnerResult<FlowKey> {
        if *format != Format::Bytes && template.format != *format {
            return Err(PartnerError::Unsupported("a flow of this format"));
        }
        let (state, key, name) = match template.direction {
            Direction::Out => (&mut self.out, OUT, "a flow out"),
            Direction::In => (&mut self.into, IN, "a flow in"),
        };
        if *state == FlowState::None {
            return Err(PartnerError::Unsupported(name));
        }
        *state = FlowState::Open;
        Ok(key)
    }

    /// Closes an open flow. Returns its direction.
    pub(crate) fn close(&mut self, flow: FlowKey) -> PartnerResult<Direction> {
        let (state, direction) = match flow {
            OUT => (&mut self.out, Direction::Out),
            IN => (&mut self.into, Direction::In),
            _ => return Err(PartnerError::NoFlow(flow)),
        };
        if *state != FlowState::Open {
            return Err(PartnerError::NoFlow(flow));
        }
        *state = FlowState::Closed;
        Ok(direction)
    }

    /// Returns true if the flow of this direction is open.
    pub(crate) fn is_open(&self, direction: Direction) -> bool {
        let state = match direction {
            Direction::Out => self.out,
            Direction::In => self.into,
        };
        state == FlowState::Open
    }

    /// Returns true if `flow` is the key of this direction's open flow, or [`FlowKey::DEFAULT`].
    pub(crate) fn names(&self, flow: FlowKey, direction: Direction) -> bool {
        let key = match direction {
            Direction::Out => OUT,
            Direction::In => IN,
        };
        self.is_open(direction) && (flow == key || flow == FlowKey::DEFAULT)
    }

    /// Like [`Flows::names`], as a result.
    pub(crate) fn check(&self, flow: FlowKey, direction: Direction) -> PartnerResult {
        self.names(flow, direction).then_some(()).ok_or(PartnerError::NoFlow(flow))
    }

    /// Checks the key of a control operation: [`FlowKey::DEFAULT`] for the partner itself, or an open flow.
    pub(crate) fn check_any(&self, flow: FlowKey) -> PartnerResult {
        let known =
            flow == FlowKey::DEFAULT || self.names(flow, Direction::Out) || self.names(flow, Direction::In);
        known.then_some(()).ok_or(PartnerError::NoFlow(flow))
    }
}

/// One end of a device: the calls of a [`Partner`] for flows that are open. [`FlowPartner`] checks the rest.
pub(crate) trait Endpoint: Send {
    /// A flow was opened, perhaps again.
    fn opened(&mut self, template: &FlowTemplate, slot: &mut PullSlot) -> PartnerResult {
        let _ = (template, slot);
        Ok(())
    }

    /// A flow was closed. `slot` may hold a message of the flow out.
    fn closed(&mut self, direction: Direction, slot: &mut PullSlot) -> PartnerResult {
        let _ = (direction, slot);
        Ok(())
    }

    /// Takes a message of the flow in, as [`Partner::push`].
    fn push(&mut self, mut message: Message) -> Result<Pushed, (PartnerError, Message)> {
        match self.accept(&mut message) {
            Ok(true) => Ok(Pushed::Taken),
            Ok(false) => Ok(Pushed::Full(message)),
            Err(error) => Err((error, message)),
        }
    }

    /// Applies a message of the flow in. Returns false if there is no room for it yet.
    fn accept(&mut self, message: &mut Message) -> PartnerResult<bool> {
        let _ = message;
        Err(PartnerError::NoFlow(IN))
    }

    /// Finds the next message of the flow out.
    fn next(&mut self, now: Time) -> PartnerResult<Next> {
        let _ = now;
        Err(PartnerError::NoFlow(OUT))
    }

    /// Performs a control operation, as [`Partner::ctl`].
    fn ctl(&mut self, flow: FlowKey, operation: Ctl<'_>, slot: &mut PullSlot) -> PartnerResult<CtlReply>;

    /// Returns the readiness of an open flow while the slot is empty.
    fn readiness(&self, direction: Direction) -> Readiness<'_>;

    /// Returns the next change of the device's presence, as [`Partner::presence`].
    fn presence(&mut self) -> Option<Presence> {
        None
    }

    /// Returns the number of further connections to make, as [`Partner::connections_wanted`].
    fn connections_wanted(&mut self) -> u32 {
        0
    }

    /// Takes a further connection, as [`Partner::connected`].
    fn connected(&mut self, result: Result<OwnedFd, String>) -> PartnerResult {
        let _ = result;
        Err(PartnerError::Unsupported("further connections"))
    }

    /// Returns the next note for the user, as [`Partner::note`].
    fn note(&mut self) -> Option<String> {
        None
    }
}

/// Returns the error for a message that cannot be parsed.
pub(crate) fn invalid(error: WireError) -> PartnerError {
    PartnerError::Message(error.to_string())
}

/// A partner with at most one flow in each direction.
#[derive(Debug)]
pub(crate) struct FlowPartner<E> {
    endpoint: E,
    /// The format of the flow out and of the flow in, if there is one.
    formats: [Option<Format>; 2],
    flows: Flows,
    slot: PullSlot,
}

impl<E: Endpoint> FlowPartner<E> {
    /// Creates a partner with closed flows of these formats.
    pub(crate) fn new(endpoint: E, out: Option<Format>, into: Option<Format>) -> Self {
        let flows = Flows::new(out.is_some(), into.is_some());
        FlowPartner { endpoint, formats: [out, into], flows, slot: PullSlot::default() }
    }
}

impl<E: Endpoint> Partner for FlowPartner<E> {
    fn open(&mut self, template: &FlowTemplate, _attributes: &Attributes) -> PartnerResult<FlowKey> {
        let [out, into] = &self.formats;
        let format = match template.direction {
            Direction::Out => out,
            Direction::In => into,
        };
        let key = self.flows.open(template, format.as_ref().unwrap_or(&Format::Bytes))?;
        self.endpoint.opened(template, &mut self.slot)?;
        Ok(key)
    }

    fn close(&mut self, flow: FlowKey) -> PartnerResult {
        let direction = self.flows.close(flow)?;
        self.endpoint.closed(direction, &mut self.slot)
    }

    fn push(&mut self, flow: FlowKey, message: Message) -> Result<Pushed, (PartnerError, Message)> {
        match self.flows.check(flow, Direction::In) {
            Ok(()) => self.endpoint.push(message),
            Err(error) => Err((error, message)),
        }
    }

    fn pull(&mut self, flow: FlowKey, request: Pull<'_>) -> PartnerResult<Pulled> {
        self.flows.check(flow, Direction::Out)?;
        self.slot.answer(OUT, request, || self.endpoint.next(Time(boot_ns())))
    }

    fn ctl(&mut self, flow: FlowKey, operation: Ctl<'_>) -> PartnerResult<CtlReply> {
        self.flows.check_any(flow)?;
        self.endpoint.ctl(flow, operation, &mut self.slot)
    }

    fn readiness(&self, flow: FlowKey, direction: Direction) -> Readiness<'_> {
        match direction {
            _ if !self.flows.names(flow, direction) => Readiness::never(),
            Direction::Out if self.slot.is_held() => Readiness::now(),
            _ => self.endpoint.readiness(direction),
        }
    }

    fn presence(&mut self) -> Option<Presence> {
        self.endpoint.presence()
    }

    fn connections_wanted(&mut self) -> u32 {
        self.endpoint.connections_wanted()
    }

    fn connected(&mut self, result: Result<OwnedFd, String>) -> PartnerResult {
        self.endpoint.connected(result)
    }

    fn note(&mut self) -> Option<String> {
        self.endpoint.note()
    }
}
