//! Pairs of stages, one half on each side of the network.

use crate::{Format, Message, OptionSpec, Options, Outbox, Port, Site, Stage, StageError, Time};
use std::fmt;

/// One half of a pair or the other.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Half {
    /// The half that transforms.
    Source,
    /// The half that undoes it.
    Sink,
}

impl Half {
    /// The half at the other side.
    pub fn other(self) -> Half {
        match self {
            Half::Source => Half::Sink,
            Half::Sink => Half::Source,
        }
    }
}

impl fmt::Display for Half {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Half::Source => "source",
            Half::Sink => "sink",
        })
    }
}

/// How many flows meet in a pair.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Shape {
    /// One flow in, one flow out.
    #[default]
    Line,
    /// The source half divides one flow among so many ways, port by port from 0; the sink half joins them.
    /// In a pipeline of one flow all ways go one behind the other.
    Fan(u16),
    /// The sink half takes several flows, port by port from 0, and gives each out by a port of its own or all
    /// by port 0. The source half stands in each flow by itself.
    Joint,
}

/// What a pair may do to a flow. Whatever is not said here, it does not do.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Promises {
    /// It may drop messages (counted by name).
    pub may_drop: bool,
    /// It may hold messages back.
    pub may_delay: bool,
    /// It may change what a message says.
    pub may_change: bool,
    /// It may pass messages on in another order.
    pub may_reorder: bool,
    /// Its halves talk to each other.
    pub needs_control: bool,
    /// Its sink half needs every message of its source half, in order (a stateful coder).
    pub needs_order: bool,
}

/// A pair of stages: one row in the table of `stages`.
pub trait Pair: Sync {
    /// Its name in a pipeline.
    fn name(&self) -> &'static str;

    /// Rises when its halves no longer understand those of before.
    fn version(&self) -> u16 {
        1
    }

    /// One line.
    fn summary(&self) -> &'static str;

    /// The whole documentation, Markdown.
    fn doc(&self) -> &'static str;

    /// Its options; the first may be given without its name.
    fn options(&self) -> &'static [OptionSpec];

    /// What it may do to a flow.
    fn promises(&self, options: &Options) -> Promises;

    /// What an `auto` of its options minimises, declared before anything was measured; `None` if it has none.
    fn cost(&self) -> Option<&'static str> {
        None
    }

    /// How many flows meet in its halves.
    fn shape(&self, options: &Options) -> Shape {
        let _ = options;
        Shape::Line
    }

    /// Names of the ports besides the main one, of either half, in order of number from 1. What leaves by them
    /// goes to a partner that this host's own command line names for it.
    fn side_ports(&self) -> &'static [&'static str] {
        &[]
    }

    /// Whether a half can run in a process of its own, or why not: a process is connected by one input, one output
    /// and its control channel, and reaches nothing else of this host.
    fn isolates(&self, options: &Options) -> Result<(), String> {
        if let [port, ..] = self.side_ports() {
            return Err(format!("what leaves by its side port `{port}` does not leave a process of its own"));
        }
        match self.shape(options) {
            Shape::Joint => Err("several flows meet in it, and a process of its own has one input".into()),
            Shape::Line | Shape::Fan(_) => Ok(()),
        }
    }

    /// The program that a half is, if it is none of ours.
    fn program<'o>(&self, options: &'o Options, half: Half) -> Option<&'o str> {
        let _ = (options, half);
        None
    }

    /// The format that its source half makes of `format`, or why it cannot take it.
    fn accept(&self, format: &Format, options: &Options) -> Result<Format, String>;

    /// Checks what no single option can tell (a minimum above a maximum).
    fn check(&self, options: &Options) -> Result<(), String> {
        let _ = options;
        Ok(())
    }

    /// The half that transforms. `format` is what enters it.
    fn source(&self, options: &Options, format: &Format, site: &Site) -> Result<Box<dyn Stage>, StageError>;

    /// The half that undoes it. `format` is what leaves it.
    fn sink(&self, options: &Options, format: &Format, site: &Site) -> Result<Box<dyn Stage>, StageError>;

    /// One half or the other.
    fn half(
        &self,
        half: Half,
        options: &Options,
        format: &Format,
        site: &Site,
    ) -> Result<Box<dyn Stage>, StageError> {
        match half {
            Half::Source => self.source(options, format, site),
            Half::Sink => self.sink(options, format, site),
        }
    }
}

/// A half with nothing to do: it passes on what comes (paper N, section 4.8.1: the "no-op" module).
#[derive(Debug, Clone, Copy, Default)]
pub struct PassThrough;

impl Stage for PassThrough {
    fn handle(
        &mut self,
        port: Port,
        message: Message,
        _now: Time,
        out: &mut Outbox,
    ) -> Result<(), StageError> {
        out.send(port, message);
        Ok(())
    }

    fn passes(&self) -> bool {
        true
    }
}
