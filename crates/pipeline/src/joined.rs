//! Pipelines that join several flows: one for each flow, the joining pair, and the pipeline after it.

use crate::error::PipelineError;
use crate::parsed::{Origin, PairUse, Pipeline};
use contract::{Pair, Shape};
use std::ops::Range;
use wire::control::PIPELINE_BYTES_MAX;

/// The most flows with a name.
pub const PARTS_MAX: usize = 64;

/// A text such as `a:(buffer), b:(buffer), synchronize
/// average` (Networked Device Driver Architecture (2012), figure 4.5).
#[derive(Clone)]
pub struct Joined {
    text: String,
    parts: Vec<Part>,
    joint: Range<usize>,
    table: &'static [&'static dyn Pair],
    joined: Pipeline,
    after: Pipeline,
}

impl std::fmt::Debug for Joined {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Joined({})", self.text)
    }
}

/// The pipeline of one flow, or of several flows with one name, before the joining pair.
#[derive(Debug, Clone)]
struct Part {
    name: String,
    place: Range<usize>,
    inner: Range<usize>,
}

impl Joined {
    /// Parses a local text. `None` if it names no flow and no pair joins any: it is then an ordinary pipeline
    /// for each flow.
    pub fn parse(text: &str, table: &'static [&'static dyn Pair]) -> Result<Option<Joined>, PipelineError> {
        if text.len() > PIPELINE_BYTES_MAX {
            // The parser of ordinary pipelines reports the error completely.
            return Ok(None);
        }
        let mut parts: Vec<Part> = Vec::new();
        let mut at = 0;
        while let Some((part, behind)) = part(text, at)? {
            if parts.len() == PARTS_MAX {
                let problem = format!("at most {PARTS_MAX} flows can be named");
                return Err(PipelineError::new(text, part.place, problem));
            }
            if parts.iter().any(|known| known.name == part.name) {
                let problem = format!("`{}` is named twice", part.name);
                return Err(PipelineError::new(text, part.place, problem));
            }
            parts.push(part);
            let rest = text[behind..].trim_start();
            at = text.len() - rest.len();
            if !rest.starts_with(',') {
                let problem = "expected `,` and then the pair that joins the flows, such as `synchronize`";
                return Err(PipelineError::new(
                    text,
                    at..at + rest.chars().next().map_or(0, char::len_utf8),
                    problem,
                ));
            }
            at += 1;
        }
        let bar = scan(text, at, |c| c == '|').unwrap_or(text.len());
        let joint = trimmed(text, at..bar);
        let joined = read(text, joint.clone(), table)?;
        let joins = |used: &PairUse| match used.pair.shape(&used.options) {
            Shape::Joint => true,
            // Its halves can also run in sequence within one flow.
            Shape::Fan(_) => !parts.is_empty(),
            Shape::Line => false,
        };
        match joined.pairs().first() {
            Some(used) if joins(used) => {}
            _ if parts.is_empty() => return Ok(None),
            _ => {
                let problem = "expected a pair that joins several flows, such as `synchronize`";
                return Err(PipelineError::new(text, joint, problem));
            }
        }
        if bar < text.len() && text[bar + 1..].trim().is_empty() {
            return Err(PipelineError::new(text, text.len()..text.len(), "expected a pair's name"));
        }
        let after = read(text, trimmed(text, (bar + 1).min(text.len())..text.len()), table)?;
        let joined = Joined { text: text.into(), parts, joint, table, joined, after };
        for part in &joined.parts {
            // Report this now, not when the first host is asked.
            read(text, part.inner.clone(), table)?;
        }
        Ok(Some(joined))
    }

    /// The pair that joins the flows.
    pub fn joint(&self) -> &PairUse {
        // The constructor has checked that it is there.
        &self.joined.pairs()[0]
    }

    /// The pipeline of the joined flow, or of each flow that stays separate, on this host.
    pub fn after(&self) -> &Pipeline {
        &self.after
    }

    /// Returns the pipelines of these flows. Each flow has several names, the most specific first. In each
    /// pipeline the joining pair is the outermost; its half on this host runs in a junction. Errors point at a
    /// name that no flow has.
    pub fn pipelines(&self, flows: &[Vec<&str>]) -> Result<Vec<Pipeline>, PipelineError> {
        let find = |names: &Vec<&str>| {
            names.iter().find_map(|name| self.parts.iter().find(|part| part.name == *name))
        };
        let found: Vec<Option<&Part>> = flows.iter().map(find).collect();
        for part in &self.parts {
            if !found.iter().flatten().any(|used| used.name == part.name) {
                let known: Vec<_> = flows.iter().filter_map(|names| names.first().copied()).collect();
                let problem = format!("there is no such flow here; there is: {}", known.join(", "));
                return Err(PipelineError::new(&self.text, part.place.clone(), problem));
            }
        }
        found.into_iter().map(|part| self.pipeline(part)).collect()
    }

    fn pipeline(&self, part: Option<&Part>) -> Result<Pipeline, PipelineError> {
        let joint = &self.text[self.joint.clone()];
        let inner = part.map_or("", |part| &self.text[part.inner.clone()]);
        let text = if inner.is_empty() { joint.into() } else { format!("{joint} | {inner}") };
        let mut pipeline = Pipeline::parse(&text, self.table, Origin::Local)?;
        pipeline.leave_first_to_junction();
        Ok(pipeline)
    }
}

/// Parses `NAME:(PIPELINE)` at this place, and returns its end.
fn part(text: &str, at: usize) -> Result<Option<(Part, usize)>, PipelineError> {
    let stops = |c: char| matches!(c, '(' | ')' | ',' | '|' | '"');
    let Some(open) = text[at..].find(stops).map(|found| at + found) else { return Ok(None) };
    if !text[open..].starts_with('(') {
        return Ok(None);
    }
    let head = trimmed(text, at..open);
    let Some(name) = text[head.clone()].strip_suffix(':') else { return Ok(None) };
    let place = trimmed(text, head.start..head.start + name.len());
    let name = text[place.clone()].to_string();
    if name.is_empty() || name.contains(char::is_whitespace) {
        let problem = "before `:` must be the name of a flow: a device's name, or HOST/NAME";
        return Err(PipelineError::new(text, head, problem));
    }
    let Some(close) = scan(text, open + 1, |c| c == ')') else {
        return Err(PipelineError::new(text, open..open + 1, "this `(` is never closed"));
    };
    let inner = trimmed(text, open + 1..close);
    Ok(Some((Part { name, place, inner }, close + 1)))
}

/// The first matching character from `at` on outside of quotes and parentheses.
fn scan(text: &str, at: usize, is_it: impl Fn(char) -> bool) -> Option<usize> {
    let (mut depth, mut quoted, mut escaped) = (0_usize, false, false);
    for (index, c) in text[at..].char_indices() {
        match c {
            _ if escaped => escaped = false,
            '\\' if quoted => escaped = true,
            '"' => quoted = !quoted,
            _ if quoted => {}
            _ if depth == 0 && is_it(c) => return Some(at + index),
            '(' => depth += 1,
            ')' => depth = depth.saturating_sub(1),
            _ => {}
        }
    }
    None
}

/// The range without surrounding white space.
fn trimmed(text: &str, range: Range<usize>) -> Range<usize> {
    let part = &text[range.clone()];
    let start = range.start + part.len() - part.trim_start().len();
    start..start.max(range.start + part.trim_end().len())
}

/// Parses a part of the text. Errors point into the whole text.
fn read(
    text: &str,
    range: Range<usize>,
    table: &'static [&'static dyn Pair],
) -> Result<Pipeline, PipelineError> {
    Pipeline::parse(&text[range.clone()], table, Origin::Local).map_err(|error| {
        let place = range.start + error.place.start..range.start + error.place.end;
        PipelineError::new(text, place, error.problem)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use contract::{Format, ModuleEntry, Options, PassThrough, Promises, Site, Stage, StageResult};
    use proptest::prelude::*;

    struct TestPair(&'static str, Shape);

    impl Pair for TestPair {
        fn entry(&self) -> ModuleEntry {
            ModuleEntry { name: self.0, summary: "", doc: "", options: &[] }
        }

        fn promises(&self, _: &Options) -> Promises {
            Promises::default()
        }
        fn shape(&self, _: &Options) -> Shape {
            self.1
        }
        fn accept(&self, format: &Format, _: &Options) -> Result<Format, String> {
            Ok(format.clone())
        }
        fn source(&self, _: &Options, _: &Format, _: &Site) -> StageResult<Box<dyn Stage>> {
            Ok(Box::new(PassThrough))
        }
        fn sink(&self, _: &Options, _: &Format, _: &Site) -> StageResult<Box<dyn Stage>> {
            Ok(Box::new(PassThrough))
        }
    }

    static TABLE: &[&dyn Pair] = &[
        &TestPair("null", Shape::Line),
        &TestPair("meet", Shape::Joint),
        &TestPair("divide", Shape::Fan(2)),
    ];

    fn joined(text: &str) -> Joined {
        Joined::parse(text, TABLE).unwrap().expect("it joins")
    }

    fn canonical(text: &str, flows: &[Vec<&str>]) -> Vec<String> {
        joined(text).pipelines(flows).unwrap().iter().map(|known| known.canonical().to_string()).collect()
    }

    #[test]
    fn the_joint_is_outermost_in_each_flow() {
        let text = r#" x : (null | null), host:7001/y:( ) , meet | null "#;
        let flows = [vec!["host:7000/x", "x"], vec!["host:7001/y", "y"], vec!["z"]];
        assert_eq!(canonical(text, &flows), ["meet/1|null/1|null/1", "meet/1", "meet/1"]);
        assert_eq!((joined(text).joint().pair.name(), joined(text).after().canonical()), ("meet", "null/1"));
        for pipeline in joined(text).pipelines(&flows).unwrap() {
            let elsewhere: Vec<_> = pipeline.pairs().iter().map(|used| used.is_in_junction).collect();
            assert!(elsewhere[0] && !elsewhere[1..].contains(&true));
        }
    }

    #[test]
    fn a_joint_alone_keeps_the_pipeline_of_the_device_behind_it() {
        let parse = |text: &str| Pipeline::parse(text, TABLE, Origin::Peer).unwrap();
        let own = parse("null | null");
        let completed = parse("meet").completed_by(&own).unwrap();
        assert_eq!(completed.canonical(), "meet/1|null/1|null/1");
        assert_eq!(parse(completed.text()).canonical(), completed.canonical());
        for (index, used) in completed.pairs().iter().enumerate() {
            let name = ["meet", "null", "null"][index];
            assert_eq!(&completed.text()[used.place.clone()], name, "errors point at the pair");
        }
        for (proposed, own) in
            [("meet | null", "null | null"), ("null", "null | null"), ("divide", "null"), ("meet", "")]
        {
            let same = parse(proposed).completed_by(&parse(own)).unwrap();
            assert_eq!(same.canonical(), parse(proposed).canonical(), "{proposed} is complete");
        }
    }

    #[test]
    fn the_most_specific_name_of_a_flow_counts() {
        let flows = [vec!["a/x", "x"], vec!["b/x", "x"]];
        assert_eq!(canonical("x:(null), divide", &flows), ["divide/1|null/1", "divide/1|null/1"]);
        assert_eq!(canonical("x:(null), b/x:(), meet", &flows), ["meet/1|null/1", "meet/1"]);
    }

    #[test]
    fn a_text_without_a_joint_is_a_pipeline_for_each_flow() {
        for text in ["", "null", "null | null", "divide | null"] {
            assert!(Joined::parse(text, TABLE).unwrap().is_none(), "{text}");
        }
        assert!(Joined::parse("meet", TABLE).unwrap().is_some(), "it has no other use");
    }

    #[test]
    fn errors_point_at_the_place() {
        for (text, at, says) in [
            ("x:(nul), meet", "nul)", "did you mean `null`"),
            ("x:(null), null", "null", "joins several"),
            ("x:(null) meet", "meet", "expected `,`"),
            ("x:(null", "(null", "never closed"),
            ("x:(null), x:(), meet", "x:(),", "named twice"),
            (":(null), meet", ":(null", "the name of a flow"),
            ("a b:(null), meet", "a b", "the name of a flow"),
            ("meet | nul", "nul", "did you mean"),
            ("meet |", "", "a pair's name"),
            ("x:(), ", "", "joins several"),
        ] {
            let error = Joined::parse(text, TABLE).unwrap_err();
            assert!(error.problem.contains(says), "{text}: {}", error.problem);
            let start = if at.is_empty() { text.trim_end().len() } else { text.rfind(at).unwrap() };
            assert!(error.place.start == start || at.is_empty(), "{text}: {:?}", error.place);
        }
        let error = joined("x:(), meet").pipelines(&[vec!["y"], vec!["z"]]).unwrap_err();
        assert!(error.problem.contains("there is: y, z"), "{error}");
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(256))]

        #[test]
        fn no_text_panics(text in "[a-z:(),|\"\\\\ é]{0,40}") {
            if let Ok(Some(joined)) = Joined::parse(&text, TABLE) {
                let _ = joined.pipelines(&[vec!["a"], vec!["b"]]);
            }
        }
    }
}
