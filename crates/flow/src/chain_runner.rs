//! Runs one half of a pipeline in a path: its stages, their output queue and their drop counts.

use crate::stats::StageStats;
use crate::trace::{self, FlowTrace};
use crate::types::{FlowPlan, Notice, Wake};
use contract::{
    Body, Feedback, Fill, FlowClass, Format, Half, Incident, Link, Message, Readiness, Site, StageError,
    StageResult, Time,
};
use links::{Bypass, Direct};
use modules::isolation;
use pipeline::{Chain, ChainOut, DropCounts, NamedDrop, PairUse, Pipeline, PipelineError, Point, REFUSED};
use std::num::NonZeroU32;
use std::time::Duration;
use sys::poller::Poller;
use sys::random;
use wire::BODY_BYTES_MAX;
use wire::control::CONTROL_BODY_BYTES_MAX;
use wire::formats::block::{ANSWER_BYTES, DATA_BYTES_MAX, REQUEST_BYTES};

/// Longest time without progress that an ended flow waits for its stages to release held messages.
const LINGER: Duration = Duration::from_secs(10);

/// Most bytes that the pairs of a pipeline put in front of a message.
const PAIR_HEADERS_BYTES_MAX: usize = 4096;

/// Builds one half of a pipeline, each stage behind its configured link. An error names the stage that does not start.
pub fn build_chain(
    half: Half,
    pipeline: &Pipeline,
    format: &Format,
    site: &Site,
) -> Result<Chain, PipelineError> {
    let formats = pipeline.formats(format)?;
    let site = &Site { message_bytes: message_bytes_max(format, site.message_bytes), ..site.clone() };
    let pairs: Vec<_> =
        pipeline.pairs().iter().zip(&formats).filter(|(used, _)| !used.is_in_junction).collect();
    // The loop below creates links in this order.
    let mut runs = isolation::runs(&pairs, half, site).into_iter();
    let mut make = |used: &PairUse, half: Half, format: &Format| match runs.next().flatten() {
        Some(link) => link,
        None => make_link(used, half, format, site),
    };
    match half {
        Half::Source => Chain::source(pipeline, format, &mut make),
        Half::Sink => Chain::sink(pipeline, format, &mut make),
    }
}

/// Returns the largest message of a flow of `format` on a host with this `limit`. A picture may be as large as a message
/// can be, and the data of a disk as large as a request. Any other message of that size is likely a bomb. The
/// format between two pairs says too little: it is `bytes` behind `latest`, which passes whole pictures.
fn message_bytes_max(format: &Format, limit: usize) -> usize {
    match format {
        Format::Video => BODY_BYTES_MAX,
        Format::Block => limit.max(REQUEST_BYTES.max(ANSWER_BYTES) + DATA_BYTES_MAX + PAIR_HEADERS_BYTES_MAX),
        _ => limit,
    }
}

/// Builds one half of a pair behind its configured link.
pub fn make_link(used: &PairUse, half: Half, format: &Format, site: &Site) -> StageResult<Box<dyn Link>> {
    if let Some(link) = isolation::link(used, half, format, site)? {
        return Ok(link);
    }
    let mut site = site.clone();
    site.seed = random::bytes().map_err(|error| StageError::Own(format!("no random bytes: {error}")))?;
    let stage = used.pair.half(half, &used.options, format, &site)?;
    Ok(match used.speedup {
        Some(speedup) => Box::new(Bypass::new(stage, half, speedup)),
        None => Box::new(Direct::new(stage)),
    })
}

/// A chain of stages with its output queue. The queue is `out.messages`, oldest first.
pub struct ChainRunner {
    chain: Chain,
    /// The stages learn of a gap before the next message.
    has_gap: bool,
    /// Output of the stages that the path has not processed yet.
    pub out: ChainOut,
    /// Set while the flow drains: the fewest held messages so far, and the deadline for the next one to leave.
    draining: Option<(usize, Time)>,
    /// The stages know that the flow ends.
    has_ended: bool,
    /// The messages that the stages did not release in time are in the drops.
    has_given_up: bool,
}

impl ChainRunner {
    /// Creates a runner with an empty output queue.
    pub fn new(chain: Chain) -> Self {
        let (has_gap, out) = (false, ChainOut::default());
        ChainRunner { chain, has_gap, out, draining: None, has_ended: false, has_given_up: false }
    }

    /// Notes that the stages are new in the middle of a flow: others handled the messages before the next one.
    pub fn note_gap(&mut self) {
        self.has_gap = true;
    }

    /// Passes one message to the first stage.
    pub fn feed(&mut self, message: Message, now: Time) {
        if std::mem::take(&mut self.has_gap) {
            self.chain.handle_gap(now, &mut self.out);
        }
        self.chain.handle(message, now, &mut self.out);
    }

    /// Passes a control message from the other half of a pair to its stage.
    pub fn handle_control(&mut self, pair: u16, body: &[u8], now: Time) {
        self.chain.handle_control(pair.into(), body, now, &mut self.out);
    }

    /// Passes feedback on the flow's delivery to every stage.
    pub fn handle_feedback(&mut self, feedback: &Feedback, now: Time) {
        self.chain.handle_feedback(feedback, now, &mut self.out);
    }

    /// Tells every stage how much sound the partner holds.
    pub fn handle_fill(&mut self, fill: Fill, now: Time) {
        self.chain.handle_fill(fill, now, &mut self.out);
    }

    /// Drains the stages after the end of the input. Held messages leave at their own times, up to a timeout. Returns
    /// whether the stages have released everything.
    pub fn drain(&mut self, now: Time) -> bool {
        let held = self.chain.held();
        let (least, mut until) = *self.draining.get_or_insert((held, now.after(LINGER)));
        // A process that fails is restarted, and its unfinished messages are held again.
        if held < least || self.chain.is_settling() {
            until = now.after(LINGER);
            self.draining = Some((held, until));
        }
        if !self.has_ended {
            if held > 0 && now < until {
                return false;
            }
            self.end(now);
            self.draining = Some((self.chain.held(), now.after(LINGER)));
            return !self.chain.is_ending();
        }
        if self.chain.is_ending() && now >= until {
            let (name, reason) = ("pipeline", "not released in time");
            let count = self.at_risk() as u64;
            self.has_given_up = true;
            self.out.drops.push(NamedDrop { pair: 0, name, reason, count, is_loss: true });
            return true;
        }
        !self.chain.is_ending()
    }

    /// Ends the flow. Held messages come out immediately, or until [`ChainRunner::drain`] returns true.
    pub fn end(&mut self, now: Time) {
        self.has_ended = true;
        self.chain.handle_end(now, &mut self.out);
    }

    /// Returns the time at which [`ChainRunner::drain`] times out.
    pub fn drain_timeout(&self) -> Option<Time> {
        self.draining.map(|(_, until)| until)
    }

    /// Collects the output of stages in their own processes and runs expired timers. Returns whether a timer had
    /// expired.
    pub fn run_timeouts(&mut self, now: Time) -> bool {
        self.chain.collect(now, &mut self.out);
        let due = self.chain.poll_timeout().is_some_and(|at| at <= now);
        if due {
            self.chain.handle_timeout(now, &mut self.out);
        }
        due
    }

    /// Registers the descriptors and timers of the stages.
    pub fn register(&self, poller: &mut Poller, wake: &mut Wake) {
        wake.add(poller, Readiness::never().or_at(self.chain.poll_timeout()));
        self.chain.readiness().for_each(|readiness| wake.add(poller, readiness));
    }

    /// Returns failures of module processes since the last call, as text for people.
    pub fn incidents(&mut self) -> impl Iterator<Item = Incident> {
        let named =
            |(name, Incident { text, is_loss })| Incident { text: format!("`{name}`: {text}"), is_loss };
        self.chain.incidents().into_iter().map(named)
    }

    /// Returns the number of messages that would be lost with the stages.
    pub fn at_risk(&self) -> usize {
        if self.has_given_up { 0 } else { self.chain.kept() }
    }

    /// Returns the number of messages that would be lost with the stages although checkpoints are saved.
    pub fn unsaved(&self) -> usize {
        self.chain.unsaved()
    }

    /// Returns whether a stage keeps state between messages.
    pub fn has_state(&self) -> bool {
        self.chain.remembers()
    }

    /// Returns a checkpoint of the stages' state; `None` while a message waits between two stages.
    pub fn checkpoint(&self) -> Option<Body> {
        self.chain.checkpoint()
    }

    /// Returns whether the first stage accepts another message.
    pub fn has_room(&self) -> bool {
        self.chain.has_room()
    }

    /// Replaces the stages. Messages in the old stages and in the output queue count as dropped for `reason`.
    pub fn replace(&mut self, fresh: ChainRunner, reason: &str, now: Time, drops: &mut DropCounts) {
        if !self.has_ended {
            self.chain.handle_end(now, &mut self.out);
        }
        drops.add(reason, (self.out.messages.len() + self.at_risk()) as u64);
        self.settle(drops);
        let trace = self.out.trace.take();
        *self = fresh;
        self.out.trace = trace;
    }

    /// Takes the control messages from the stages to their other halves: pair number and bytes.
    pub fn take_controls(&mut self, drops: &mut DropCounts) -> Vec<(u16, Vec<u8>)> {
        let count = self.out.controls.len();
        let fits = |(pair, body): (usize, Vec<u8>)| {
            (body.len() <= CONTROL_BODY_BYTES_MAX).then_some((pair as u16, body))
        };
        let controls: Vec<_> = self.out.controls.drain(..).filter_map(fits).collect();
        drops.add("control larger than a frame", (count - controls.len()) as u64);
        controls
    }

    /// Reports failures of the stages and the messages that they lost, and settles the drops.
    pub fn report_failures(&mut self, class: FlowClass, drops: &mut DropCounts, notices: &mut Vec<Notice>) {
        notices.extend(self.incidents().map(|incident| Notice::Incident(incident.text)));
        self.settle(drops);
        for (reason, messages) in std::mem::take(&mut drops.losses) {
            notices.extend((class == FlowClass::Reliable).then_some(Notice::Lost { reason, messages }));
        }
    }

    /// Moves the stages' drops to `drops` and clears their errors.
    pub fn settle(&mut self, drops: &mut DropCounts) {
        for NamedDrop { name, reason, count, is_loss, .. } in self.out.drops.drain(..) {
            let reason = format!("{name}: {reason}");
            if is_loss { drops.add_loss(&reason, count) } else { drops.add(&reason, count) }
        }
        self.out.errors.clear();
        self.out.sides.clear();
    }

    /// Explains why no message of a flow came out: names the first stage that refused messages. `drops` holds the
    /// path's drop counts.
    pub fn failure(&self, drops: &DropCounts) -> Option<String> {
        let refuses = |stage: StageStats| {
            let count = drops.counts.get(&format!("{}: {REFUSED}", stage.name))?;
            let reason = stage.error.map_or_else(String::new, |error| format!(": {error}"));
            Some(format!(
                "no received message could be used: `{}` refused {count} messages{reason}",
                stage.name
            ))
        };
        self.report().into_iter().find_map(refuses)
    }

    /// Traces one message in `one_in`, or continues an active trace. Returns the stamps since the last call.
    pub fn trace(&mut self, one_in: NonZeroU32, plan: &FlowPlan, half: Half) -> Option<FlowTrace> {
        match self.out.trace.as_deref_mut().filter(|trace| trace.one_in() == one_in) {
            Some(trace) => Some(FlowTrace::new(plan, half, trace)),
            None => {
                self.out.trace = Some(trace::begin(one_in));
                None
            }
        }
    }

    /// Stamps a message, if it is marked and its path is traced.
    pub fn stamp(&mut self, message: &Message, point: Point) {
        if let Some(trace) = self.out.trace.as_deref_mut().filter(|_| message.attributes.mark != 0) {
            trace.stamp(message.attributes.mark, point, message.body.len());
        }
    }

    /// Returns the figures and automatic choices of every stage.
    pub fn report(&self) -> Vec<StageStats> {
        self.chain.report().into_iter().map(StageStats::from).collect()
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use contract::{Input, Outbox, Report};
    use modules::registry;
    use pipeline::Origin;
    use wire::formats::video::{Geometry, Header, PixelFormat};

    /// Sends a body through both halves of a pipeline, on a host with the default limits.
    fn pass(text: &str, format: &Format, body: Body) -> Option<Body> {
        let pipeline = Pipeline::parse(text, registry::pairs(), Origin::Local).unwrap();
        let site = Site { message_bytes: session::Limits::default().message_bytes, ..Site::default() };
        let half = |half| ChainRunner::new(build_chain(half, &pipeline, format, &site).unwrap());
        let [mut source, mut sink] = [half(Half::Source), half(Half::Sink)];
        source.feed(Message::new(Time::ZERO, body), Time::ZERO);
        let encoded = source.out.messages.pop_front().unwrap();
        assert!(encoded.body.len() < 4 << 20, "{text}: not compressed");
        sink.feed(encoded, Time::ZERO);
        sink.out.messages.pop_front().map(|message| message.body)
    }

    #[test]
    fn the_limit_of_a_message_is_that_of_its_flow() {
        let geometry = Geometry::new(PixelFormat::Bgrx32, 1920, 1080).unwrap();
        let mut picture = Body::from(vec![7; 1920 * 1080 * 4]);
        picture.push_front(&Header::frame(geometry).emit());
        let request = |bytes| Body::from(vec![1; bytes]);
        let largest = REQUEST_BYTES + DATA_BYTES_MAX;
        for (text, format, body, passes) in [
            ("latest | compress", Format::Video, picture.clone(), true),
            ("compress | latest", Format::Video, picture.clone(), true),
            ("latest | compress", Format::Bytes, picture, false),
            ("bundle | compress(method=lz4)", Format::Block, request(largest), true),
            ("compress(method=lz4)", Format::Block, request(largest + PAIR_HEADERS_BYTES_MAX + 1), false),
        ] {
            let passed = pass(text, &format, body.clone());
            assert!(passed == passes.then_some(body), "{text}, {format}");
        }
    }

    /// A stage in a process that cannot start again, and so never releases its one message.
    struct Stuck;

    impl Link for Stuck {
        fn hand(&mut self, _: Input<'_>, _: Time, _: &mut Outbox) -> StageResult {
            Ok(())
        }

        fn collect(&mut self, _: Time, _: &mut Outbox) -> StageResult {
            Ok(())
        }

        fn readiness(&self) -> Readiness<'_> {
            Readiness::never()
        }

        fn poll_timeout(&self) -> Option<Time> {
            None
        }

        fn has_room(&self) -> bool {
            true
        }

        fn is_ending(&self) -> bool {
            true
        }

        fn kept(&self) -> usize {
            1
        }

        fn report(&self) -> Vec<Report> {
            Vec::new()
        }
    }

    /// Stages that never release their one message.
    pub(crate) fn stuck() -> ChainRunner {
        let pipeline = Pipeline::parse("compress", registry::pairs(), Origin::Local).unwrap();
        let make = &mut |_: &PairUse, _, _: &Format| Ok(Box::new(Stuck) as Box<dyn Link>);
        ChainRunner::new(Chain::source(&pipeline, &Format::Bytes, make).unwrap())
    }

    #[test]
    fn a_message_that_is_not_released_counts_once() {
        let (mut stages, mut drops) = (stuck(), DropCounts::default());
        assert!(!stages.drain(Time::ZERO) && stages.at_risk() == 1);
        let at = stages.drain_timeout().unwrap();
        for _ in 0..2 {
            assert!(stages.drain(at) && stages.at_risk() == 0);
        }
        stages.replace(stuck(), "epoch abandoned", at, &mut drops);
        assert_eq!((drops.total(), stages.at_risk()), (1, 1));
    }
}
