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

/// Returns the known name that is nearest to `name`, if it is near enough.
pub(crate) fn nearest<'a>(name: &str, known: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    const LONGEST: usize = 32;
    if name.len() > LONGEST {
        return None;
    }
    let (distance, nearest) = known.map(|candidate| (distance(name, candidate), candidate)).min()?;
    (distance <= 1 + name.len() / 4).then_some(nearest)
}

/// Levenshtein distance: characters to insert, delete or replace.
fn distance(a: &str, b: &str) -> usize {
    let mut row: Vec<usize> = (0..=b.chars().count()).collect();
    for (i, from) in a.chars().enumerate() {
        let mut diagonal = std::mem::replace(&mut row[0], i + 1);
        for (j, to) in b.chars().enumerate() {
            let replaced = diagonal + usize::from(from != to);
            diagonal = row[j + 1];
            row[j + 1] = replaced.min(row[j] + 1).min(diagonal + 1);
        }
    }
    row.last().copied().unwrap_or(0)
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

    #[test]
    fn near_names_are_found_and_far_ones_are_not() {
        let known = || ["compress", "bundle", "buffer"].into_iter();
        assert_eq!(nearest("comprss", known()), Some("compress"));
        assert_eq!(nearest("bufer", known()), Some("buffer"));
        assert_eq!(nearest("teleport", known()), None);
        assert_eq!(nearest(&"c".repeat(4000), known()), None);
    }
}
