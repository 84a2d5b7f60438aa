//! Errors in a pipeline's text, with their place.

use std::fmt;
use std::ops::Range;

/// The characters of text shown on either side of the place.
const CONTEXT_CHARS: usize = 36;
/// The most carets under the text.
const CARETS_MAX: usize = 72;

/// A pipeline's text cannot be used. It is shown with carets under the place.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PipelineError {
    /// The problem, and a correct alternative.
    pub problem: String,
    /// Byte offsets of the place, on character borders; empty at the end of the text.
    pub place: Range<usize>,
    /// The text.
    pub text: String,
}

impl PipelineError {
    pub(crate) fn new(text: &str, place: Range<usize>, problem: impl Into<String>) -> Self {
        PipelineError { problem: problem.into(), place, text: text.into() }
    }
}

impl std::error::Error for PipelineError {}

impl fmt::Display for PipelineError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}", self.problem)?;
        let (before, rest) = self.text.split_at_checked(self.place.start).unwrap_or((&self.text, ""));
        let place = rest.get(..self.place.len()).unwrap_or(rest);
        let skipped = before.chars().count().saturating_sub(CONTEXT_CHARS);
        let (lead, indent) =
            if skipped > 0 { ("…", CONTEXT_CHARS + 1) } else { ("", before.chars().count()) };
        let carets = place.chars().count().clamp(1, CARETS_MAX);
        let shown = indent + carets + CONTEXT_CHARS - lead.chars().count();
        let mut chars = self.text.chars().skip(skipped);
        write!(f, "  {lead}")?;
        for c in chars.by_ref().take(shown) {
            // An unprintable character was refused at its place. Show a space in its stead.
            write!(f, "{}", if c.is_control() { ' ' } else { c })?;
        }
        writeln!(f, "{}", if chars.next().is_some() { "…" } else { "" })?;
        write!(f, "  {:indent$}{}", "", "^".repeat(carets))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn carets_mark_the_place() {
        let error = PipelineError::new("null | comprss(9)", 7..14, "no such pair");
        assert_eq!(error.to_string(), "no such pair\n  null | comprss(9)\n         ^^^^^^^");
        let error = PipelineError::new("null |", 6..6, "a name is missing");
        assert_eq!(error.to_string(), "a name is missing\n  null |\n        ^");
    }

    #[test]
    fn a_long_text_is_shown_around_the_place() {
        let text = format!("{} é| here |{}", "a".repeat(100), "b".repeat(100));
        let start = text.find("here").unwrap();
        let shown = PipelineError::new(&text, start..start + 4, "wrong").to_string();
        let lines: Vec<_> = shown.lines().collect();
        let column = lines[2].chars().take_while(|c| *c == ' ').count();
        assert_eq!(lines[1].chars().skip(column).take(4).collect::<String>(), "here");
        assert!(lines[1].chars().count() < 90 && lines[1].ends_with('…'));
    }

    #[test]
    fn a_place_inside_a_character_is_shown() {
        assert!(PipelineError::new("é", 1..2, "wrong").to_string().contains('^'));
    }
}
