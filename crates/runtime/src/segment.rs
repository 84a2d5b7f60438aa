//! One half of a pipeline in a path: what was fed in, what came out and waits, what was dropped.

use crate::driver::{FlowPlan, Wake};
use crate::kept::Losses;
use crate::stats::StageStats;
use crate::trace::{self, FlowTrace};
use crate::{isolation, random};
use contract::{Body, Feedback, Format, Half, Link, Message, Readiness, Site, StageError, Time};
use links::Direct;
use pipeline::{Chain, ChainOut, NamedDrop, PairUse, Pipeline, PipelineError, Point, REFUSED};
use std::collections::BTreeMap;
use std::num::NonZeroU32;
use std::time::Duration;
use sys::poller::Poller;
use wire::control::CONTROL_BODY_BYTES_MAX;

/// How long a flow that has ended waits for held messages of which none leaves.
const LINGER: Duration = Duration::from_secs(10);

/// One half of a pipeline, each stage behind the link it asks for. An error names the stage that does not start.
pub fn build_chain(
    half: Half,
    pipeline: &Pipeline,
    format: &Format,
    site: &Site,
) -> Result<Chain, PipelineError> {
    let formats = pipeline.formats(format)?;
    let pairs: Vec<_> =
        pipeline.pairs().iter().zip(&formats).filter(|(used, _)| !used.is_in_junction).collect();
    // Links are made in this order.
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

/// One half of a pair, behind the link it asks for.
pub(crate) fn make_link(
    used: &PairUse,
    half: Half,
    format: &Format,
    site: &Site,
) -> Result<Box<dyn Link>, StageError> {
    if let Some(link) = isolation::link(used, half, format, site)? {
        return Ok(link);
    }
    let mut site = site.clone();
    site.seed = random::bytes().map_err(|error| StageError::Own(format!("no random bytes: {error}")))?;
    Ok(Box::new(Direct::new(used.pair.half(half, &used.options, format, &site)?)))
}

/// A chain with its outbox and the counts of everything that ended in it.
pub(crate) struct Segment {
    chain: Chain,
    /// Messages that came out and wait to go on are in `out.messages`, oldest first.
    pub(crate) out: ChainOut,
    /// While the end is near: the fewest messages held so far, and how long they are waited for.
    draining: Option<(usize, Time)>,
    /// The stages were told that the flow ends here.
    end_told: bool,
}

/// Messages that ended before their sink, by reason.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct DropCounts {
    pub(crate) counts: BTreeMap<String, u64>,
    /// All of them, but for what was lost with workers, which is kept by itself.
    total: u64,
}

impl DropCounts {
    /// What workers before counted, and what was lost with them.
    pub(crate) fn resume(losses: &Losses) -> DropCounts {
        let mut drops = DropCounts::default();
        drops.add("held by stages when the worker ended", losses.held);
        drops.add("in doubt when the worker ended", losses.in_doubt);
        drops.add("bytes read ahead when the worker ended", losses.ahead_bytes);
        drops.add("counted by workers that ended", losses.dropped);
        drops.total = losses.dropped;
        drops
    }

    /// What another worker is to go on counting from.
    pub(crate) fn total(&self) -> u64 {
        self.total
    }

    /// Counts `count` messages as dropped for `reason`.
    pub(crate) fn add(&mut self, reason: &str, count: u64) {
        if count == 0 {
            return;
        }
        self.total = self.total.saturating_add(count);
        match self.counts.get_mut(reason) {
            Some(known) => *known = known.saturating_add(count),
            None => {
                self.counts.insert(reason.into(), count);
            }
        }
    }
}

impl Segment {
    pub(crate) fn new(chain: Chain) -> Self {
        Segment { chain, out: ChainOut::default(), draining: None, end_told: false }
    }

    /// One message in.
    pub(crate) fn feed(&mut self, message: Message, now: Time) {
        self.chain.handle(message, now, &mut self.out);
    }

    /// From the other half of a pair.
    pub(crate) fn handle_control(&mut self, pair: u16, body: &[u8], now: Time) {
        self.chain.handle_control(pair.into(), body, now, &mut self.out);
    }

    /// Tells every stage how the flow fares on its way to its sink.
    pub(crate) fn handle_feedback(&mut self, feedback: &Feedback, now: Time) {
        self.chain.handle_feedback(feedback, now, &mut self.out);
    }

    /// The flow has ended before here. What is held leaves in its time, unless that takes too long; says
    /// whether the stages have given out everything.
    pub(crate) fn drain(&mut self, now: Time) -> bool {
        let held = self.chain.held();
        let (least, until) = *self.draining.get_or_insert((held, now.after(LINGER)));
        if held < least {
            self.draining = Some((held, now.after(LINGER)));
        }
        if !self.end_told {
            if held > 0 && now < until {
                return false;
            }
            self.end(now);
            self.draining = Some((self.chain.held(), now.after(LINGER)));
            return !self.chain.is_ending();
        }
        if self.chain.is_ending() && now >= until {
            let (name, reason) = ("pipeline", "not given out in time");
            self.out.drops.push(NamedDrop { pair: 0, name, reason, count: self.chain.kept() as u64 });
            return true;
        }
        !self.chain.is_ending()
    }

    /// The flow ends: everything held comes out at once, or while [`Segment::is_ending`].
    pub(crate) fn end(&mut self, now: Time) {
        self.end_told = true;
        self.chain.handle_end(now, &mut self.out);
    }

    /// Whether stages in processes of their own still give out what they held.
    pub(crate) fn is_ending(&self) -> bool {
        self.chain.is_ending()
    }

    /// When [`Segment::drain`] stops waiting.
    pub(crate) fn drain_timeout(&self) -> Option<Time> {
        self.draining.map(|(_, until)| until)
    }

    /// Fetches what stages in processes of their own made, and lets stages act whose time has come; says
    /// whether any of these did.
    pub(crate) fn run_timeouts(&mut self, now: Time) -> bool {
        self.chain.collect(now, &mut self.out);
        let due = self.chain.poll_timeout().is_some_and(|at| at <= now);
        if due {
            self.chain.handle_timeout(now, &mut self.out);
        }
        due
    }

    pub(crate) fn poll_timeout(&self) -> Option<Time> {
        self.chain.poll_timeout()
    }

    /// Puts what the stages wait for into the poller and the wake-up.
    pub(crate) fn want(&self, poller: &mut Poller, wake: &mut Wake) {
        wake.add(poller, Readiness::never().or_at(self.chain.poll_timeout()));
        self.chain.readiness().for_each(|readiness| wake.add(poller, readiness));
    }

    /// When stages in processes of their own made something.
    pub(crate) fn readiness(&self) -> impl Iterator<Item = Readiness<'_>> {
        self.chain.readiness()
    }

    /// What went wrong with modules' processes since the last call, as it is told to people.
    pub(crate) fn incidents(&mut self) -> impl Iterator<Item = String> {
        self.chain.incidents().into_iter().map(|(name, what)| format!("`{name}`: {what}"))
    }

    /// Messages that its stages hold.
    pub(crate) fn kept(&self) -> usize {
        self.chain.kept()
    }

    /// Whether its stages remember anything.
    pub(crate) fn remembers(&self) -> bool {
        self.chain.remembers()
    }

    /// What its stages remember; `None` while something waits between them.
    pub(crate) fn checkpoint(&self) -> Option<Body> {
        self.chain.checkpoint()
    }

    pub(crate) fn has_room(&self) -> bool {
        self.chain.has_room()
    }

    /// Puts fresh stages in place. Whatever the old ones held, or had given out, is counted as `reason`.
    pub(crate) fn replace(&mut self, fresh: Segment, reason: &str, now: Time, drops: &mut DropCounts) {
        if !self.end_told {
            self.chain.handle_end(now, &mut self.out);
        }
        drops.add(reason, (self.out.messages.len() + self.chain.kept()) as u64);
        self.settle(drops);
        let trace = self.out.trace.take();
        *self = fresh;
        self.out.trace = trace;
    }

    /// What stages say to their other halves: number of the pair and bytes.
    pub(crate) fn take_controls(&mut self, drops: &mut DropCounts) -> Vec<(u16, Vec<u8>)> {
        let before = self.out.controls.len();
        let fits = |(pair, body): (usize, Vec<u8>)| {
            (body.len() <= CONTROL_BODY_BYTES_MAX).then_some((pair as u16, body))
        };
        let controls: Vec<_> = self.out.controls.drain(..).filter_map(fits).collect();
        drops.add("control larger than a frame", (before - controls.len()) as u64);
        controls
    }

    /// Moves what stages dropped, and the messages that they erred on, into the counts.
    pub(crate) fn settle(&mut self, drops: &mut DropCounts) {
        for drop in self.out.drops.drain(..) {
            drops.add(&format!("{}: {}", drop.name, drop.reason), drop.count);
        }
        self.out.errors.clear();
        self.out.sides.clear();
    }

    /// Why a flow has failed of which nothing came out here: the first stage that refused messages. `drops` are what
    /// was counted.
    pub(crate) fn failure(&self, drops: &DropCounts) -> Option<String> {
        let refuses = |stage: StageStats| {
            let count = drops.counts.get(&format!("{}: {REFUSED}", stage.name))?;
            let why = stage.error.map_or_else(String::new, |error| format!(": {error}"));
            Some(format!("nothing that came could be used, `{}` refused {count} messages{why}", stage.name))
        };
        self.report().into_iter().find_map(refuses)
    }

    /// Traces one message in `one_in`, or goes on with it; what was traced since the last time.
    pub(crate) fn trace(&mut self, one_in: NonZeroU32, plan: &FlowPlan, half: Half) -> Option<FlowTrace> {
        match self.out.trace.as_deref_mut().filter(|trace| trace.one_in() == one_in) {
            Some(trace) => Some(FlowTrace::new(plan, half, trace)),
            None => {
                self.out.trace = Some(trace::begin(one_in));
                None
            }
        }
    }

    /// When this happens to a message: if that is marked and its path is traced.
    pub(crate) fn stamp(&mut self, message: &Message, point: Point) {
        if let Some(trace) = self.out.trace.as_deref_mut().filter(|_| message.attributes.mark != 0) {
            trace.stamp(message.attributes.mark, point, message.body.len());
        }
    }

    /// Figures and choices of every stage.
    pub(crate) fn report(&self) -> Vec<StageStats> {
        self.chain.report().into_iter().map(StageStats::from).collect()
    }
}
