//! A pipeline, parsed and checked against a table of pairs.

use crate::error::PipelineError;
use crate::outlet::{NamedOutlet, Outlet};
use crate::syntax::{self, Argument, Call, Spanned};
use contract::{
    Format, Half, OptionKind, OptionSpec, Options, Pair, Port, Promises, Scope, Shape, Work, agreed, local,
    nearest, parse_value,
};
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;
use wire::control::PIPELINE_BYTES_MAX;

/// How a stage is reached.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum LinkKind {
    /// A function call.
    Direct,
    /// Its own process, through pipes.
    Pipe,
    /// Its own process, through shared memory.
    Shm,
}

/// The links that a text may request, with `@`.
pub const LINKS: &[(&str, LinkKind)] =
    &[("direct", LinkKind::Direct), ("pipe", LinkKind::Pipe), ("shm", LinkKind::Shm)];

/// Options of every pair.
static COMMON: [OptionSpec; 6] = [
    local(
        "slots",
        OptionKind::OrAuto(&OptionKind::Integer { min: 1, max: 1024 }),
        "auto",
        "on shared memory, the most messages in flight; auto: as few as keep the processes busy",
    ),
    local(
        "latency",
        OptionKind::OrAuto(&OptionKind::Duration {
            min: Duration::from_micros(1),
            max: Duration::from_secs(10),
        }),
        "auto",
        "on shared memory, the target for a message's time in flight: it limits the slots in use; \
              auto: all `slots`, if they are set",
    ),
    agreed(
        "isolate",
        OptionKind::Flag,
        "false",
        "runs each half in its own process: no file system, no network, little memory",
    ),
    local(
        "memory",
        OptionKind::Size { min: 16 << 20, max: 64 << 30 },
        "512MiB",
        "the memory limit of such a process",
    ),
    local(
        "sandbox",
        OptionKind::Choice(&["required", "possible"]),
        "required",
        "if the kernel cannot isolate completely: refuse, or isolate as far as possible",
    ),
    agreed(
        "faster",
        OptionKind::Number { min: 0.0, max: f64::INFINITY },
        "0",
        "for `outboard whatif`, without keys: instead of working, each half takes the time of its work divided by \
              this (`inf`: none); 0: it works",
    ),
];

/// Between two pairs of a text.
const SEPARATOR: &str = " | ";

/// A pair runs in its own process, with access to nothing but its inputs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Isolation {
    /// The memory limit of that process, in bytes.
    pub memory_bytes: u64,
    /// Refuse to run if the kernel cannot enforce all restrictions.
    pub is_required: bool,
}

/// The author of a text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Origin {
    /// This host's command line or configuration file.
    Local,
    /// The other host. It chooses no link, and sets no path, command or key.
    Peer,
}

/// Local settings for a half in its own process. They are never sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Running {
    /// The most messages in flight on shared memory; `None` adapts to the flow's rate.
    pub slots: Option<usize>,
    /// The target for the time in flight; `None` allows all `slots`.
    pub latency: Option<Duration>,
}

/// One pair of a pipeline, with its checked options.
#[derive(Clone)]
pub struct PairUse {
    /// The pair.
    pub pair: &'static dyn Pair,
    /// Its options, with every default filled in.
    pub options: Options,
    /// The requested link. A local setting, never sent.
    pub link: Option<LinkKind>,
    /// Settings for its process, if it has one.
    pub running: Running,
    /// Isolation, on both hosts.
    pub isolation: Option<Isolation>,
    /// The work is left out on both hosts, and takes its time divided by this.
    pub speedup: Option<f64>,
    /// Its half on this host runs in a junction with other flows; chains leave it out.
    pub is_in_junction: bool,
    /// Its place in the text.
    pub place: Range<usize>,
}

impl PairUse {
    /// The link of a half: the requested one; or pipes for an external program, which has shared memory only if it is
    /// requested; or shared memory for an isolated half; or a call.
    pub fn link_of(&self, half: Half) -> LinkKind {
        match (self.pair.program(&self.options, half), self.link, &self.isolation) {
            (Some(_), Some(LinkKind::Shm), _) => LinkKind::Shm,
            (Some(_), ..) => LinkKind::Pipe,
            // The link was asked for the program of the other half.
            (None, Some(LinkKind::Shm), None) if self.pair.program(&self.options, half.other()).is_some() => {
                LinkKind::Direct
            }
            (None, Some(link), _) => link,
            (None, None, Some(_)) => LinkKind::Shm,
            (None, None, None) => LinkKind::Direct,
        }
    }

    /// Checks that its work can be left out at both ends ("Improving TCP Throughput for Cloud Applications" (2014), 3.4).
    pub fn check_speedup(&self) -> Result<(), String> {
        let name = self.pair.name();
        if self.pair.work(&self.options) == Work::Cooperative {
            return Err(format!(
                "the work of `{name}` cannot be left out for a measurement: its halves depend on each other, on several \
                 messages or on time, so without it the flow would be another one"
            ));
        }
        match self.link_of(Half::Source) {
            LinkKind::Direct => Ok(()),
            LinkKind::Pipe | LinkKind::Shm => Err(format!(
                "the work of `{name}` is measured in a call, and it runs in a process of its own"
            )),
        }
    }

    /// Its part of [`Pipeline::canonical`].
    pub fn canonical(&self) -> String {
        let specs = self.pair.options();
        let agreed = |name: &str| specs.iter().any(|s| s.name == name && s.scope == Scope::Agreed);
        let mut text = format!("{}/{}", self.pair.name(), self.pair.version());
        let mut separator = '(';
        let mut put = |name: &str, value: &str| {
            text.push(separator);
            text.push_str(name);
            text.push('=');
            syntax::quote(value, &mut text);
            separator = ',';
        };
        for (name, value) in self.options.iter().filter(|(name, _)| agreed(name)) {
            put(name, &value.to_string());
        }
        if self.isolation.is_some() {
            put("isolate", "true");
        }
        if let Some(speedup) = self.speedup {
            put("faster", &speedup.to_string());
        }
        if separator == ',' {
            text.push(')');
        }
        text
    }
}

/// Returns the canonical text of pairs.
fn canonical(pairs: &[PairUse]) -> String {
    pairs.iter().map(PairUse::canonical).collect::<Vec<_>>().join("|")
}

/// Checks that a pipeline can be sent to another host.
fn check_length(text: &str, canonical: &str) -> Result<(), PipelineError> {
    if canonical.len() <= PIPELINE_BYTES_MAX {
        return Ok(());
    }
    let problem = format!(
        "with every default filled in, this pipeline has {} bytes: at most {PIPELINE_BYTES_MAX} can \
         be proposed to another host",
        canonical.len()
    );
    Err(PipelineError::new(text, 0..text.len(), problem))
}

/// A parsed and checked text; pairs in source order. Pipelines with equal canonical text are equal.
#[derive(Clone, Default)]
pub struct Pipeline {
    pairs: Vec<PairUse>,
    text: String,
    canonical: String,
    /// A local setting, never sent.
    outlets: Vec<NamedOutlet>,
}

impl Pipeline {
    /// Parses `text` and checks every name, value and combination against `table`.
    ///
    /// Errors tell the problem and its place: grammar, an unknown pair, option or version, a value out of
    /// range, an option that a peer may not set.
    pub fn parse(
        text: &str,
        table: &'static [&'static dyn Pair],
        origin: Origin,
    ) -> Result<Pipeline, PipelineError> {
        let checker = Checker { text, table, origin };
        let syntax::Written { link, calls } = syntax::parse(text)?;
        let link = link.as_ref();
        link.map(|link| checker.link(link)).transpose()?;
        let pairs = calls.iter().map(|call| checker.pair_use(call, link)).collect::<Result<Vec<_>, _>>()?;
        let canonical = canonical(&pairs);
        check_length(text, &canonical)?;
        Ok(Pipeline { pairs, text: text.into(), canonical, outlets: Vec::new() })
    }

    /// The pairs, in source order.
    pub fn pairs(&self) -> &[PairUse] {
        &self.pairs
    }

    /// The outermost pair, if it divides the flow, and the number of its outputs. An inner pair cannot divide a
    /// flow among hosts: the pairs before it would run once for all of them. Neither can a pair in its own
    /// process, which has only one output.
    pub fn outermost_fan(&self) -> Result<Option<(&PairUse, u16)>, PipelineError> {
        let ways = |used: &PairUse| match used.pair.shape(&used.options) {
            Shape::Fan(ways) => Some(ways),
            _ => None,
        };
        if let Some(used) = self.pairs.iter().skip(1).find(|used| ways(used).is_some()) {
            let problem = format!(
                "`{}` divides a device among hosts only as the first pair: the pairs before it would run \
                 once for all of them",
                used.pair.name()
            );
            return Err(PipelineError::new(&self.text, used.place.clone(), problem));
        }
        let first = self.pairs.first().and_then(|used| Some((used, ways(used)?)));
        let is_away = |used: &PairUse| used.link_of(Half::Source) != LinkKind::Direct;
        if let Some((used, _)) = first.filter(|(used, _)| is_away(used)) {
            let problem = format!(
                "`{}` cannot be isolated, nor run on a pipe or in shared memory, if it divides a device among \
                 hosts: its process has only one output",
                used.pair.name()
            );
            return Err(PipelineError::new(&self.text, used.place.clone(), problem));
        }
        Ok(first)
    }

    /// Leaves this host's half of the outermost pair to a junction: chains of this pipeline omit it.
    pub fn leave_first_to_junction(&mut self) {
        if let Some(first) = self.pairs.first_mut() {
            first.is_in_junction = true;
        }
    }

    /// Returns true if this host's half of the outermost pair is left to a junction.
    pub fn is_first_in_junction(&self) -> bool {
        self.pairs.first().is_some_and(|first| first.is_in_junction)
    }

    /// Returns this pipeline with the given outlets.
    pub fn with_outlets(mut self, outlets: &[NamedOutlet]) -> Pipeline {
        self.outlets = outlets.to_vec();
        self
    }

    /// The outlets of side ports on this host.
    pub fn outlets(&self) -> &[NamedOutlet] {
        &self.outlets
    }

    pub(crate) fn outlets_of(&self, used: &PairUse) -> Vec<(Port, Arc<dyn Outlet>)> {
        let of = |named: &&NamedOutlet| named.pair == used.pair.name();
        self.outlets.iter().filter(of).map(|named| (named.port, named.outlet.clone())).collect()
    }

    /// Prepares this pipeline to replace `current`: it takes over the outlets, and the pair that `current`
    /// leaves to a junction stays there and stays outermost.
    pub fn in_place_of(mut self, current: &Pipeline) -> Result<Pipeline, PipelineError> {
        self.outlets = current.outlets.clone();
        let Some(outermost) = current.pairs.first().filter(|used| used.is_in_junction) else {
            return Ok(self);
        };
        let wanted = outermost.canonical();
        match self.pairs.first() {
            Some(first) if first.canonical() == wanted => {
                self.leave_first_to_junction();
                Ok(self)
            }
            other => {
                let place = other.map_or(0..0, |first| first.place.clone());
                let problem = format!("`{wanted}` joins this flow with others: it must stay the first pair");
                Err(PipelineError::new(&self.text, place, problem))
            }
        }
    }

    /// Completes a proposal that is only a pair that joins flows, such as `synchronize`: behind it runs `own`, the pipeline that
    /// the device has without a proposal. Any other proposal is complete.
    pub fn completed_by(mut self, own: &Pipeline) -> Result<Pipeline, PipelineError> {
        let is_joint = |used: &PairUse| used.pair.shape(&used.options) == Shape::Joint;
        if own.pairs.is_empty() || self.pairs.len() != 1 || !is_joint(&self.pairs[0]) {
            return Ok(self);
        }
        let behind = self.text.len() + SEPARATOR.len();
        self.text = [&self.text, SEPARATOR, &own.text].concat();
        self.pairs.extend(
            own.pairs
                .iter()
                .cloned()
                .map(|used| PairUse { place: used.place.start + behind..used.place.end + behind, ..used }),
        );
        self.canonical = canonical(&self.pairs);
        check_length(&self.text, &self.canonical)?;
        Ok(self)
    }

    /// Returns this pipeline with the speedup of each pair whose work is left out, in source order.
    pub fn with_speedups(mut self, speedups: &[Option<f64>]) -> Result<Pipeline, PipelineError> {
        for (used, speedup) in self.pairs.iter_mut().zip(speedups) {
            used.speedup = *speedup;
            let checked = used.speedup.map_or(Ok(()), |_| used.check_speedup());
            checked.map_err(|problem| PipelineError::new(&self.text, used.place.clone(), problem))?;
        }
        self.canonical = canonical(&self.pairs);
        Ok(self)
    }

    /// The original text.
    pub fn text(&self) -> &str {
        &self.text
    }

    /// The canonical text: names with versions, all agreed options sorted by name, no links and no local
    /// options. Parsing it gives an equal pipeline. Hosts exchange this text.
    pub fn canonical(&self) -> &str {
        &self.canonical
    }

    /// Checks that each pair accepts the output of the previous one. Returns the format on the network.
    pub fn check(&self, format: &Format) -> Result<Format, PipelineError> {
        self.formats(format).map(|mut formats| formats.pop().unwrap_or_else(|| format.clone()))
    }

    /// Checks that this host can make its half of each pair.
    pub fn check_half(&self, half: Half) -> Result<(), PipelineError> {
        let check = |used: &PairUse| {
            used.pair.check_half(half, &used.options).map_err(|problem| {
                PipelineError::new(
                    &self.text,
                    used.place.clone(),
                    format!("`{}`: {problem}", used.pair.name()),
                )
            })
        };
        self.pairs.iter().try_for_each(check)
    }

    /// Returns the format that enters each source half, and last the one on the network.
    pub fn formats(&self, format: &Format) -> Result<Vec<Format>, PipelineError> {
        let mut formats = vec![format.clone()];
        for (index, used) in self.pairs.iter().enumerate() {
            let made = used.pair.accept(&formats[index], &used.options).map_err(|reason| {
                let maker = match index.checked_sub(1) {
                    Some(before) => format!("`{}` makes", self.pairs[before].pair.name()),
                    None => "the flow is".into(),
                };
                let problem =
                    format!("{maker} {}, which `{}` cannot take: {reason}", formats[index], used.pair.name());
                PipelineError::new(&self.text, used.place.clone(), problem)
            })?;
            formats.push(made);
        }
        Ok(formats)
    }

    /// The combined effects of all pairs.
    pub fn promises(&self) -> Promises {
        self.pairs.iter().fold(Promises::default(), |all, used| {
            let one = used.pair.promises(&used.options);
            Promises {
                may_drop: all.may_drop | one.may_drop,
                may_delay: all.may_delay | one.may_delay,
                may_change: all.may_change | one.may_change,
                may_reorder: all.may_reorder | one.may_reorder,
                needs_control: all.needs_control | one.needs_control,
                needs_order: all.needs_order | one.needs_order,
                merges: all.merges | one.merges,
            }
        })
    }
}

impl PartialEq for Pipeline {
    fn eq(&self, other: &Self) -> bool {
        self.canonical == other.canonical
    }
}

impl Eq for Pipeline {}

impl std::fmt::Debug for Pipeline {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Pipeline({})", self.canonical)
    }
}

impl std::fmt::Display for Pipeline {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.text)
    }
}

fn is_own(pair: &dyn Pair, option: &str) -> bool {
    pair.options().iter().any(|spec| spec.name == option)
}

/// The options of one pair, and those of every pair.
struct CheckedOptions {
    options: Options,
    running: Running,
    isolation: Option<Isolation>,
    speedup: Option<f64>,
}

struct Checker<'a> {
    text: &'a str,
    table: &'static [&'static dyn Pair],
    origin: Origin,
}

impl Checker<'_> {
    /// Checks one pair. `all` is the link of pairs that request none.
    fn pair_use(&self, call: &Call<'_>, all: Option<&Spanned<&str>>) -> Result<PairUse, PipelineError> {
        let name = &call.name;
        let Some(pair) = self.table.iter().find(|pair| pair.name() == name.value) else {
            let known = || self.table.iter().map(|pair| pair.name());
            let mut error = self.unknown("pair", name, known());
            if nearest(name.value, known()).is_none() && known().any(|name| name == "exec") {
                error.problem.push_str("; a program of yours runs in `exec(PROGRAM)`");
            }
            return Err(error);
        };
        if let Some(version) = &call.version
            && version.value != pair.version()
        {
            let problem = format!(
                "this host has `{}` in version {}, not {}: bring both hosts to the same release",
                name.value,
                pair.version(),
                version.value
            );
            return Err(PipelineError::new(self.text, version.place.clone(), problem));
        }
        let link = call.link.as_ref().or(all);
        let CheckedOptions { options, running, isolation, speedup } = self.options(*pair, call)?;
        let (link_kind, is_in_junction, place) = (None, false, name.place.clone());
        let mut used = PairUse {
            pair: *pair,
            options,
            link: link_kind,
            running,
            isolation,
            speedup,
            is_in_junction,
            place,
        };
        if let Some(link) = link {
            let kind = self.link(link)?;
            // Only its author knows that a program can use shared memory.
            if kind == LinkKind::Shm && call.link.is_none() && Self::is_program(&used) {
                return Ok(used);
            }
            // A link for all pairs applies only to those that can use it.
            match Self::fits(&used, kind) {
                Ok(()) => used.link = Some(kind),
                Err(_) if call.link.is_none() => {}
                Err(problem) => {
                    let problem = format!("`{}` cannot run on this link: {problem}", name.value);
                    return Err(PipelineError::new(self.text, link.place.clone(), problem));
                }
            }
        }
        if used.speedup.is_some() {
            used.check_speedup()
                .map_err(|problem| PipelineError::new(self.text, name.place.clone(), problem))?;
        }
        Ok(used)
    }

    fn is_program(used: &PairUse) -> bool {
        let program = |half| used.pair.program(&used.options, half);
        [Half::Source, Half::Sink].into_iter().any(|half| program(half).is_some())
    }

    /// Checks that a pair can run on a link.
    fn fits(used: &PairUse, link: LinkKind) -> Result<(), String> {
        let PairUse { pair, options, isolation, .. } = used;
        let is_program = Self::is_program(used);
        match link {
            LinkKind::Direct if is_program => {
                Err("a program is a separate process: leave `@direct` out".into())
            }
            LinkKind::Direct if isolation.is_some() => {
                Err("an isolated pair needs a process: use `@shm` or `@pipe`".into())
            }
            LinkKind::Direct => Ok(()),
            LinkKind::Pipe | LinkKind::Shm if is_program => Ok(()),
            LinkKind::Pipe | LinkKind::Shm => {
                if pair.promises(options).needs_order && isolation.is_none() {
                    return Err(
                        "its halves restart together, so both hosts must agree: set isolate=true".into()
                    );
                }
                pair.isolates(options)
            }
        }
    }

    fn link(&self, link: &Spanned<&str>) -> Result<LinkKind, PipelineError> {
        let Some((_, kind)) = LINKS.iter().find(|(known, _)| *known == link.value) else {
            return Err(self.unknown("link", link, LINKS.iter().map(|(name, _)| *name)));
        };
        match self.origin {
            Origin::Local => Ok(*kind),
            Origin::Peer => {
                let problem = "each host chooses its own links: leave this one out";
                Err(PipelineError::new(self.text, link.place.clone(), problem))
            }
        }
    }

    fn options(&self, pair: &'static dyn Pair, call: &Call<'_>) -> Result<CheckedOptions, PipelineError> {
        let mut own: Vec<(&str, &str)> = Vec::new();
        let mut common: Vec<(&str, &str)> = Vec::new();
        for (index, argument) in call.arguments.iter().enumerate() {
            let (spec, place) = self.spec(pair, index, argument)?;
            let wrong = |place: &Range<usize>, problem: String| {
                Err(PipelineError::new(self.text, place.clone(), problem))
            };
            if spec.scope == Scope::Local && self.origin == Origin::Peer {
                return wrong(&place, format!("only a host itself may set `{}`: leave it out", spec.name));
            }
            if own.iter().chain(&common).any(|(name, _)| *name == spec.name) {
                return wrong(&place, format!("option `{}` is given twice", spec.name));
            }
            if let Err(error) = parse_value(spec, &argument.value.value) {
                let meant = match argument.name {
                    None => option_for(pair, &argument.value.value),
                    Some(_) => None,
                };
                let meant = meant.map_or(String::new(), |meant| format!("; did you mean {meant}?"));
                return wrong(&argument.value.place, error.problem + &meant);
            }
            let list = if is_own(pair, spec.name) { &mut own } else { &mut common };
            list.push((spec.name, &argument.value.value));
        }
        let wrong = |problem: String| {
            let problem = format!("`{}`: {problem}", pair.name());
            PipelineError::new(self.text, call.name.place.clone(), problem)
        };
        let common = Options::check(&COMMON, common).map_err(|error| wrong(error.problem))?;
        let options = Options::check(pair.options(), own)
            .map_err(|error| error.problem)
            .and_then(|options| pair.check(&options).map(|()| options))
            .map_err(wrong)?;
        if common.flag("isolate") {
            pair.isolates(&options).map_err(|reason| wrong(format!("it cannot be isolated: {reason}")))?;
        }
        let isolation = common.flag("isolate").then(|| Isolation {
            memory_bytes: common.size("memory") as u64,
            is_required: common.text("sandbox") == "required",
        });
        let speedup = Some(common.number("faster")).filter(|speedup| *speedup > 0.0);
        // A peer may ask for it: a small part of one would make this host wait without end.
        if speedup.is_some_and(|speedup| speedup < 1.0) {
            return Err(wrong("`faster` is 0, or at least 1".into()));
        }
        let slots = (!common.is_auto("slots")).then(|| common.integer("slots") as usize);
        let latency = (!common.is_auto("latency")).then(|| common.duration("latency"));
        Ok(CheckedOptions { options, running: Running { slots, latency }, isolation, speedup })
    }

    /// Finds the option that an argument sets, and the place of the name or value.
    fn spec(
        &self,
        pair: &dyn Pair,
        index: usize,
        argument: &Argument<'_>,
    ) -> Result<(&'static OptionSpec, Range<usize>), PipelineError> {
        let specs = pair.options();
        let Some(name) = &argument.name else {
            let place = argument.value.place.clone();
            let problem = match specs.first() {
                Some(first) if index == 0 => return Ok((first, place)),
                Some(_) => "only the first option may omit its name: write `name=value`".into(),
                None => format!("`{}` has no options", pair.name()),
            };
            return Err(PipelineError::new(self.text, place, problem));
        };
        match specs.iter().chain(&COMMON).find(|spec| spec.name == name.value) {
            Some(spec) => Ok((spec, name.place.clone())),
            None => {
                let kind = format!("option of `{}`", pair.name());
                Err(self.unknown(&kind, name, specs.iter().chain(&COMMON).map(|spec| spec.name)))
            }
        }
    }

    fn unknown<'k>(
        &self,
        kind: &str,
        name: &Spanned<&str>,
        known: impl Iterator<Item = &'k str> + Clone,
    ) -> PipelineError {
        let problem = match (nearest(name.value, known.clone()), known.clone().next()) {
            (Some(near), _) => format!("there is no {kind} by this name; did you mean `{near}`?"),
            (None, Some(_)) => {
                let all: Vec<_> = known.collect();
                format!("there is no {kind} by this name; there is: {}", all.join(", "))
            }
            (None, None) => format!("there is no {kind} by this name, nor by any other"),
        };
        PipelineError::new(self.text, name.place.clone(), problem)
    }
}

/// Returns `option=value`, with each option that takes a value which the user wrote without a name.
fn option_for(pair: &dyn Pair, value: &str) -> Option<String> {
    let takes_any = |spec: &OptionSpec| matches!(spec.kind, OptionKind::Text { .. });
    let options = pair.options().iter().skip(1).filter(|spec| !takes_any(spec));
    let options = options.filter(|spec| parse_value(spec, value).is_ok());
    let options: Vec<_> = options.map(|spec| format!("`{}={value}`", spec.name)).collect();
    (!options.is_empty()).then(|| options.join(" or "))
}
