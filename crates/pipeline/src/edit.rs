//! Edits of a pipeline's text.

use crate::error::PipelineError;
use crate::syntax;
use serde::{Deserialize, Serialize};
use std::ops::Range;

/// One edit.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Edit {
    /// Replaces the whole pipeline.
    Via(String),
    /// Adds a pair.
    Insert {
        /// The pair, with its options.
        pair: String,
        /// The position, from 0; `None` for the end.
        at: Option<usize>,
    },
    /// Removes the first pair with this name.
    Remove(String),
    /// Replaces the options of the first pair with the same name.
    Set(String),
}

impl Edit {
    /// Returns the edited `text`. Like any text, it is checked when it is parsed.
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
                    let problem =
                        format!("this flow has {} pairs, so there is no position {at}", texts.len());
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
                    return Err(PipelineError::new(pair, 0..pair.len(), "expected one pair"));
                };
                let at = find(name)?;
                texts[at] = pair;
            }
        }
        let link = link.map(|link| format!("@{link}: ")).unwrap_or_default();
        Ok(link + &texts.join(" | "))
    }
}

/// The link of all pairs; then name and place of each pair.
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
    fn edits_insert_remove_and_set_pairs() {
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
    fn errors_name_the_missing_pair() {
        assert!(apply(Edit::Remove("tap".into()), "null | bundle").unwrap_err().contains("null, bundle"));
        assert!(apply(Edit::Remove("tap".into()), "").unwrap_err().contains("none at all"));
        assert!(apply(Edit::Set("tap | tap".into()), "tap").unwrap_err().contains("one pair"));
        assert!(apply(Edit::Set("tap(side".into()), "tap").unwrap_err().contains("never closed"));
        let far = Edit::Insert { pair: "null".into(), at: Some(2) };
        assert!(apply(far, "tap").unwrap_err().contains("no position 2"));
    }
}
