//! The flows of a device partner: at most one in each direction.

use contract::{Direction, FlowKey, FlowTemplate, Format, PartnerError};

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
    pub(crate) fn open(&mut self, template: &FlowTemplate, format: &Format) -> Result<FlowKey, PartnerError> {
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
    pub(crate) fn close(&mut self, flow: FlowKey) -> Result<Direction, PartnerError> {
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
    pub(crate) fn check(&self, flow: FlowKey, direction: Direction) -> Result<(), PartnerError> {
        self.names(flow, direction).then_some(()).ok_or(PartnerError::NoFlow(flow))
    }

    /// Checks the key of a control operation: [`FlowKey::DEFAULT`] for the partner itself, or an open flow.
    pub(crate) fn check_any(&self, flow: FlowKey) -> Result<(), PartnerError> {
        let known =
            flow == FlowKey::DEFAULT || self.names(flow, Direction::Out) || self.names(flow, Direction::In);
        known.then_some(()).ok_or(PartnerError::NoFlow(flow))
    }
}
