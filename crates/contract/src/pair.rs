//! Pairs of stages, one half on each side of the network.

use crate::{
    Format, Message, ModuleEntry, OptionSpec, Options, Outbox, Port, Site, Stage, StageResult, Time,
};
use std::fmt;

/// One of the two halves of a pair.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Half {
    /// The half that transforms.
    Source,
    /// The half that undoes it.
    Sink,
}

impl Half {
    /// The opposite half.
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

/// How many flows a pair connects.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Shape {
    /// One flow in, one flow out.
    #[default]
    Line,
    /// The source half spreads one flow over this many ports, numbered from 0; the sink half joins them. In a
    /// pipeline of a single flow, all ports share that flow.
    Fan(u16),
    /// The sink half takes several flows, on ports numbered from 0. It outputs each on its own port, or all on
    /// port 0. Each flow has its own source half.
    Joint,
}

/// Effects that a pair may have on a flow. A pair has no effect that it does not declare.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Promises {
    /// It may drop messages. Each drop is counted by reason.
    pub may_drop: bool,
    /// It may delay messages.
    pub may_delay: bool,
    /// It may change the content of a message.
    pub may_change: bool,
    /// It may reorder messages.
    pub may_reorder: bool,
    /// Its halves exchange control messages.
    pub needs_control: bool,
    /// Its sink half needs every message of its source half, in order: a stateful coder.
    pub needs_order: bool,
    /// Its source half merges changes into the current state and sends from that, so a device need not divide a large one.
    pub merges: bool,
}

/// How the halves share the work of a pair ("Improving TCP Throughput for Cloud Applications" (2014), 3.4).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Work {
    /// The sink half undoes the work of the source half, each message by itself: both can be left out together.
    Symmetric,
    /// One half works, each message by itself, and the other half passes it on.
    Independent,
    /// Each half depends on the state of the other one, on several messages, or on time: without the work the pair
    /// does something else.
    Cooperative,
}

/// A pair of stages: one row in the table of the `stages` crate.
pub trait Pair: Sync {
    /// Name, help and options. A pipeline may give the first option without its name.
    fn entry(&self) -> ModuleEntry;

    /// The name used in a pipeline.
    fn name(&self) -> &'static str {
        self.entry().name
    }

    /// The options.
    fn options(&self) -> &'static [OptionSpec] {
        self.entry().options
    }

    /// The version of the format between the halves. It rises with every incompatible change.
    fn version(&self) -> u16 {
        1
    }

    /// The effects that the pair may have on a flow; none by default.
    fn promises(&self, options: &Options) -> Promises {
        let _ = options;
        Promises::default()
    }

    /// How its halves share the work.
    fn work(&self, options: &Options) -> Work {
        let _ = options;
        Work::Cooperative
    }

    /// How many flows the pair connects.
    fn shape(&self, options: &Options) -> Shape {
        let _ = options;
        Shape::Line
    }

    /// Names of the ports besides the main one, numbered from 1, the same for both halves. The local command
    /// line names a partner for each; nothing else receives their messages.
    fn side_ports(&self) -> &'static [&'static str] {
        &[]
    }

    /// Checks that a half can run in its own process. Such a process has one input, one output and a control
    /// channel, and reaches nothing else on this host.
    fn isolates(&self, options: &Options) -> Result<(), String> {
        if let [port, ..] = self.side_ports() {
            return Err(format!("a process has no way to reach its side port `{port}`"));
        }
        match self.shape(options) {
            Shape::Joint => Err("it joins several flows, and a process has only one input".into()),
            Shape::Line | Shape::Fan(_) => Ok(()),
        }
    }

    /// The external program that a half runs, if it is not built in.
    fn program<'o>(&self, options: &'o Options, half: Half) -> Option<&'o str> {
        let _ = (options, half);
        None
    }

    /// Returns the format that the source half makes from `format`, or why it refuses it. By default the pair takes any format,
    /// and leaves it.
    fn accept(&self, format: &Format, options: &Options) -> Result<Format, String> {
        let _ = options;
        Ok(format.clone())
    }

    /// Checks conditions between options, such as a minimum above a maximum.
    fn check(&self, options: &Options) -> Result<(), String> {
        let _ = options;
        Ok(())
    }

    /// Checks that a host with these options can make this half.
    fn check_half(&self, half: Half, options: &Options) -> Result<(), String> {
        let _ = (half, options);
        Ok(())
    }

    /// Makes the transforming half. `format` enters it. By default the half passes everything on.
    fn source(&self, options: &Options, format: &Format, site: &Site) -> StageResult<Box<dyn Stage>> {
        let _ = (options, format, site);
        Ok(Box::new(PassThrough))
    }

    /// Makes the undoing half. `format` leaves it. By default the half passes everything on.
    fn sink(&self, options: &Options, format: &Format, site: &Site) -> StageResult<Box<dyn Stage>> {
        let _ = (options, format, site);
        Ok(Box::new(PassThrough))
    }

    /// Makes one half.
    fn half(
        &self,
        half: Half,
        options: &Options,
        format: &Format,
        site: &Site,
    ) -> StageResult<Box<dyn Stage>> {
        match half {
            Half::Source => self.source(options, format, site),
            Half::Sink => self.sink(options, format, site),
        }
    }
}

/// A stage that passes every message unchanged (the "no-op" module of Networked Device Driver Architecture
/// (2012), 4.8.1).
#[derive(Debug, Clone, Copy, Default)]
pub struct PassThrough;

impl Stage for PassThrough {
    fn handle(&mut self, port: Port, message: Message, _now: Time, out: &mut Outbox) -> StageResult {
        out.send(port, message);
        Ok(())
    }

    fn passes(&self) -> bool {
        true
    }
}
