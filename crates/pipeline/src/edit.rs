//! Changes of a pipeline's text, pair by pair.

use crate::error::PipelineError;
use crate::syntax;
use serde::{Deserialize, Serialize};
use std::ops::Range;

/// One change.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Edit {
    /// Another pipeline altogether.
    Via(String),
    /// A pair comes in.
    Insert {
        /// The pair, with its options.
        pair: String,
        /// In front of which, from 0; `None`: behind all.
        at: Option<usize>,
    },
    /// The first pair of this name goes.
    Remove(String),
    /// The first pair of the same name gets these options instead of its own.
    Set(String),
}

impl Edit {
    /// The text after the change of `text`. It is checked like any other when it is parsed.
    pub fn apply(&self, text: &str) -> Result<String, PipelineError> {
        let (link, pairs) = pairs(text)?;
        let find = |name: &str| {
            pairs.iter().position(|pair| pair.0 == name).ok_or_else(|| {
                let names: Vec<_> = pairs.iter().map(|pair| pair.0).collect();
                let there = match names.is_empty() {
                    true => "there is none at all".into(),
                    false => format!("there is: {}", names.join(", ")),
                };
                PipelineError::new(name, 0..name.len(), format!("this flow has no such pair; {there}"))
            })
        };
        let mut texts: Vec<&str> = pairs.iter().map(|pair| text[pair.1.clone()].trim()).collect();
        match self {
            Edit::Via(text) => return Ok(text.clone()),
            Edit::Insert { pair, at } => {
                let at = at.unwrap_or(texts.len());
                if at > texts.len() {
                    let problem = format!("this flow has {} pairs, so there is no place {at}", texts.len());
                    return Err(PipelineError::new(pair, 0..pair.len(), problem));
                }
                texts.insert(at, pair);
            }
            Edit::Remove(name) => {
                texts.remove(find(name)?);
            }
            Edit::Set(pair) => {
                let (_, given) = self::pairs(pair)?;
                let [(name, _)] = given[..] else {
                    return Err(PipelineError::new(pair, 0..pair.len(), "here should be one pair"));
                };
                let at = find(name)?;
                texts[at] = pair;
            }
        }
        let link = link.map(|link| format!("@{link}: ")).unwrap_or_default();
        Ok(link + &texts.join(" | "))
    }
}

/// The link of all pairs, and name and place of each.
type Pairs<'a> = (Option<&'a str>, Vec<(&'a str, Range<usize>)>);

fn pairs(text: &str) -> Result<Pairs<'_>, PipelineError> {
    let written = syntax::parse(text)?;
    let calls = written.calls.into_iter().map(|call| (call.name.value, call.place)).collect();
    Ok((written.link.map(|link| link.value), calls))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn apply(edit: Edit, text: &str) -> Result<String, String> {
        edit.apply(text).map_err(|error| error.problem)
    }

    #[test]
    fn pairs_come_and_go_and_change_in_place() {
        let text = "@direct buffer(mode=play) | tap(\"a|b\") | tap";
        let insert = |at| Edit::Insert { pair: "null".into(), at };
        assert_eq!(apply(insert(None), "").unwrap(), "null");
        assert_eq!(apply(insert(None), "tap").unwrap(), "tap | null");
        assert_eq!(
            apply(insert(Some(1)), text).unwrap(),
            "@direct buffer(mode=play) | null | tap(\"a|b\") | tap"
        );
        assert_eq!(apply(Edit::Remove("tap".into()), text).unwrap(), "@direct buffer(mode=play) | tap");
        assert_eq!(
            apply(Edit::Set("buffer(request)".into()), text).unwrap(),
            "buffer(request) | tap(\"a|b\") | tap"
        );
        assert_eq!(apply(Edit::Via("null".into()), text).unwrap(), "null");
        assert_eq!(apply(insert(Some(0)), "@shm: tap").unwrap(), "@shm: null | tap");
    }

    #[test]
    fn what_is_not_there_is_named() {
        assert!(apply(Edit::Remove("tap".into()), "null | bundle").unwrap_err().contains("null, bundle"));
        assert!(apply(Edit::Remove("tap".into()), "").unwrap_err().contains("none at all"));
        assert!(apply(Edit::Set("tap | tap".into()), "tap").unwrap_err().contains("one pair"));
        assert!(apply(Edit::Set("tap(side".into()), "tap").unwrap_err().contains("never closed"));
        let far = Edit::Insert { pair: "null".into(), at: Some(2) };
        assert!(apply(far, "tap").unwrap_err().contains("no place 2"));
    }
}
