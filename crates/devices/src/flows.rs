//! The flows of a device partner: at most one each way, and which of them are open.

use contract::{Direction, FlowKey, FlowTemplate, Format, PartnerError};

/// The flow that is pulled out of a partner with one flow each way.
pub(crate) const OUT: FlowKey = FlowKey(1);

/// The flow that is pushed into a partner with one flow each way.
pub(crate) const IN: FlowKey = FlowKey(2);

/// Which flows a partner has, and which are open.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Flows {
    has_out: bool,
    has_in: bool,
    out_open: bool,
    in_open: bool,
}

impl Flows {
    /// No flow is open yet.
    pub(crate) fn new(has_out: bool, has_in: bool) -> Self {
        Flows { has_out, has_in, out_open: false, in_open: false }
    }

    /// Opens a flow if the partner has it and speaks its format. One that is open already starts anew
    /// under the same key. A partner of plain bytes carries any format.
    pub(crate) fn open(&mut self, template: &FlowTemplate, format: &Format) -> Result<FlowKey, PartnerError> {
        if *format != Format::Bytes && template.format != *format {
            return Err(PartnerError::Unsupported("a flow of this format"));
        }
        let (has, open, key) = match template.direction {
            Direction::Out => (self.has_out, &mut self.out_open, OUT),
            Direction::In => (self.has_in, &mut self.in_open, IN),
        };
        if !has {
            return Err(PartnerError::Unsupported(match template.direction {
                Direction::Out => "a flow out",
                Direction::In => "a flow in",
            }));
        }
        *open = true;
        Ok(key)
    }

    /// Closes an open flow; says which way it went.
    pub(crate) fn close(&mut self, flow: FlowKey) -> Result<Direction, PartnerError> {
        let (open, direction) = match flow {
            OUT => (&mut self.out_open, Direction::Out),
            IN => (&mut self.in_open, Direction::In),
            _ => return Err(PartnerError::NoFlow(flow)),
        };
        match std::mem::take(open) {
            true => Ok(direction),
            false => Err(PartnerError::NoFlow(flow)),
        }
    }

    /// Whether a flow this way is open.
    pub(crate) fn is_open(&self, direction: Direction) -> bool {
        match direction {
            Direction::Out => self.out_open,
            Direction::In => self.in_open,
        }
    }

    /// Whether `flow` names, sharply or by default, the open flow of this direction.
    pub(crate) fn names(&self, flow: FlowKey, direction: Direction) -> bool {
        let key = match direction {
            Direction::Out => OUT,
            Direction::In => IN,
        };
        self.is_open(direction) && (flow == key || flow == FlowKey::DEFAULT)
    }

    /// The same as an error.
    pub(crate) fn check(&self, flow: FlowKey, direction: Direction) -> Result<(), PartnerError> {
        self.names(flow, direction).then_some(()).ok_or(PartnerError::NoFlow(flow))
    }

    /// Whether `flow` may be controlled: the partner itself, or an open flow.
    pub(crate) fn check_any(&self, flow: FlowKey) -> Result<(), PartnerError> {
        let known =
            flow == FlowKey::DEFAULT || self.names(flow, Direction::Out) || self.names(flow, Direction::In);
        known.then_some(()).ok_or(PartnerError::NoFlow(flow))
    }
}
