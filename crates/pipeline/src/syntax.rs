//! The grammar of pipelines: from text to names and values, without their meaning.

use crate::error::PipelineError;
use std::borrow::Cow;
use std::ops::Range;
use wire::control::PIPELINE_BYTES_MAX;

/// The most pairs in a pipeline.
pub const PAIRS_MAX: usize = 32;
/// The most options of a pair.
pub const OPTIONS_MAX: usize = 32;
/// The deepest nesting of calls in a value.
pub const DEPTH_MAX: usize = 4;

/// A part of the text, with its place.
#[derive(Debug, Clone)]
pub(crate) struct Spanned<T> {
    pub(crate) value: T,
    pub(crate) place: Range<usize>,
}

/// A pipeline as written.
#[derive(Debug)]
pub(crate) struct Written<'a> {
    /// `@LINK:` in front of all pairs.
    pub(crate) link: Option<Spanned<&'a str>>,
    pub(crate) calls: Vec<Call<'a>>,
}

/// The most characters of a value that an error advises to write.
const ADVICE_CHARS_MAX: usize = 60;

/// A pair as written.
#[derive(Debug)]
pub(crate) struct Call<'a> {
    pub(crate) link: Option<Spanned<&'a str>>,
    pub(crate) name: Spanned<&'a str>,
    pub(crate) version: Option<Spanned<u16>>,
    pub(crate) arguments: Vec<Argument<'a>>,
    /// Its place, including link and options.
    pub(crate) place: Range<usize>,
}

/// An option as written.
#[derive(Debug)]
pub(crate) struct Argument<'a> {
    pub(crate) name: Option<Spanned<&'a str>>,
    pub(crate) value: Spanned<Cow<'a, str>>,
}

/// Returns true if `text` needs no quotes as a value.
pub(crate) fn is_word(text: &str) -> bool {
    !text.is_empty() && text.chars().all(is_word_char)
}

/// Writes a value so that it parses as itself.
pub(crate) fn quote(text: &str, into: &mut String) {
    if is_word(text) {
        into.push_str(text);
        return;
    }
    into.push('"');
    for c in text.chars() {
        if matches!(c, '"' | '\\') {
            into.push('\\');
        }
        into.push(c);
    }
    into.push('"');
}

fn is_word_char(c: char) -> bool {
    !c.is_whitespace() && !c.is_control() && !matches!(c, '|' | ',' | '(' | ')' | '=' | '"' | '\\')
}

fn is_name_char(c: char) -> bool {
    c.is_ascii_alphanumeric() || matches!(c, '_' | '-')
}

/// Parses a whole text in one pass, without recursion: in linear time.
pub(crate) fn parse(text: &str) -> Result<Written<'_>, PipelineError> {
    if text.len() > PIPELINE_BYTES_MAX {
        let problem =
            format!("{} bytes are too many for a pipeline: at most {PIPELINE_BYTES_MAX}", text.len());
        return Err(PipelineError::new(&text[..text.floor_char_boundary(PIPELINE_BYTES_MAX)], 0..0, problem));
    }
    let unprintable = |c: &(usize, char)| c.1.is_control() && !c.1.is_whitespace();
    if let Some((at, c)) = text.char_indices().find(unprintable) {
        let problem = format!("the control character {:?} is not allowed in a pipeline", c);
        return Err(PipelineError::new(text, at..at + c.len_utf8(), problem));
    }
    Parser { text, at: 0 }.pipeline()
}

struct Parser<'a> {
    text: &'a str,
    at: usize,
}

impl<'a> Parser<'a> {
    fn pipeline(&mut self) -> Result<Written<'a>, PipelineError> {
        let mut calls = Vec::new();
        self.skip_space();
        let link = self.link_of_all();
        self.skip_space();
        if self.peek().is_none() {
            return Ok(Written { link, calls });
        }
        loop {
            self.skip_space();
            if calls.len() == PAIRS_MAX {
                return Err(self.wrong(format!("a pipeline has at most {PAIRS_MAX} pairs")));
            }
            calls.push(self.call()?);
            self.skip_space();
            match self.peek() {
                None => return Ok(Written { link, calls }),
                Some('|') => self.at += 1,
                Some('(') => {
                    return Err(
                        self.wrong("expected `|` or the end; options follow a pair's name directly, once")
                    );
                }
                Some(':') => {
                    let name = calls.last().map_or("", |call| call.name.value);
                    let value = self.up_to_the_next_pair(self.at + 1);
                    let problem = format!("options are in parentheses: write `{name}({value})`");
                    return Err(self.wrong(problem));
                }
                Some(_) => return Err(self.wrong("expected `|` before the next pair, or the end")),
            }
        }
    }

    /// Parses `@LINK:`, or nothing.
    fn link_of_all(&mut self) -> Option<Spanned<&'a str>> {
        let from = self.at;
        let link = self.take('@').then(|| self.take_while(is_name_char, "a link's name").ok()).flatten();
        self.skip_space();
        if link.is_some() && self.take(':') {
            return link;
        }
        self.at = from;
        None
    }

    fn call(&mut self) -> Result<Call<'a>, PipelineError> {
        let from = self.at;
        let link = if self.take('@') { Some(self.take_while(is_name_char, "a link's name")?) } else { None };
        self.skip_space();
        if let Some('.' | '/' | '~') = self.peek() {
            let program = self.up_to_the_next_pair(self.at);
            return Err(
                self.wrong(format!("a program of yours runs in the pair `exec`: write `exec({program})`"))
            );
        }
        let name = self.take_while(is_name_char, "a pair's name")?;
        let version = if self.take('/') { Some(self.version()?) } else { None };
        let mut arguments = Vec::new();
        let open = self.at;
        if self.take('(') {
            self.skip_space();
            while !self.take(')') {
                if arguments.len() == OPTIONS_MAX {
                    return Err(self.wrong(format!("a pair is given at most {OPTIONS_MAX} options")));
                }
                arguments.push(self.argument()?);
                self.skip_space();
                if self.peek().is_none() {
                    return Err(PipelineError::new(self.text, open..open + 1, "this `(` is never closed"));
                }
                if self.take(',') {
                    self.skip_space();
                } else if self.peek() != Some(')') {
                    return Err(self.wrong("expected `,` or `)`"));
                }
            }
        }
        Ok(Call { link, name, version, arguments, place: from..self.at })
    }

    /// Returns the text from a place up to the next `|`, as the value of an option.
    fn up_to_the_next_pair(&self, from: usize) -> String {
        let rest = &self.text[from..];
        let value = rest.split('|').next().unwrap_or(rest).trim();
        let value = match value.char_indices().nth(ADVICE_CHARS_MAX) {
            Some((end, _)) => format!("{}…", &value[..end]),
            None => value.into(),
        };
        let mut written = String::new();
        quote(&value, &mut written);
        written
    }

    fn version(&mut self) -> Result<Spanned<u16>, PipelineError> {
        let digits = self.take_while(|c| c.is_ascii_digit(), "a version number")?;
        match digits.value.parse() {
            Ok(value) => Ok(Spanned { value, place: digits.place }),
            Err(_) => Err(PipelineError::new(self.text, digits.place, "no pair has such a version")),
        }
    }

    fn argument(&mut self) -> Result<Argument<'a>, PipelineError> {
        if self.peek() == Some('"') {
            return Ok(Argument { name: None, value: self.quoted()? });
        }
        let word = self.take_while(is_word_char, "an option")?;
        self.skip_space();
        if self.take('=') {
            if !word.value.chars().all(is_name_char) {
                return Err(PipelineError::new(self.text, word.place, "this is not a name of an option"));
            }
            self.skip_space();
            let value = match self.peek() {
                Some('"') => self.quoted()?,
                _ => {
                    let word = self.take_while(is_word_char, "a value")?;
                    self.word_or_call(word)?
                }
            };
            return Ok(Argument { name: Some(word), value });
        }
        Ok(Argument { name: None, value: self.word_or_call(word)? })
    }

    /// Parses a word; or, if a parenthesis follows directly, the whole call as one value.
    fn word_or_call(&mut self, word: Spanned<&'a str>) -> Result<Spanned<Cow<'a, str>>, PipelineError> {
        let mut place = word.place;
        if self.at == place.end && self.peek() == Some('(') {
            self.skip_call()?;
            place.end = self.at;
        }
        Ok(Spanned { value: Cow::Borrowed(&self.text[place.clone()]), place })
    }

    /// Skips past the matching closing parenthesis.
    fn skip_call(&mut self) -> Result<(), PipelineError> {
        let open = self.at;
        let mut depth = 0;
        loop {
            match self.peek() {
                None => {
                    return Err(PipelineError::new(self.text, open..open + 1, "this `(` is never closed"));
                }
                Some('"') => {
                    self.quoted()?;
                    continue;
                }
                Some('(') if depth == DEPTH_MAX => {
                    return Err(self.wrong(format!("calls nest at most {DEPTH_MAX} deep")));
                }
                Some('(') => depth += 1,
                Some(')') => depth -= 1,
                Some(_) => {}
            }
            self.advance();
            if depth == 0 {
                return Ok(());
            }
        }
    }

    fn quoted(&mut self) -> Result<Spanned<Cow<'a, str>>, PipelineError> {
        let open = self.at;
        self.at += 1;
        let mut value = String::new();
        loop {
            match self.peek() {
                None => {
                    return Err(PipelineError::new(self.text, open..open + 1, "this quote is never closed"));
                }
                Some('"') => break,
                Some('\\') => {
                    self.at += 1;
                    match self.peek() {
                        Some(c @ ('"' | '\\')) => value.push(c),
                        _ => return Err(self.wrong("after `\\` only `\"` or `\\` may follow")),
                    }
                }
                Some(c) => value.push(c),
            }
            self.advance();
        }
        self.at += 1;
        Ok(Spanned { value: Cow::Owned(value), place: open..self.at })
    }

    fn take_while(
        &mut self,
        belongs: impl Fn(char) -> bool,
        expected: &str,
    ) -> Result<Spanned<&'a str>, PipelineError> {
        let rest = &self.text[self.at..];
        let length = rest.find(|c| !belongs(c)).unwrap_or(rest.len());
        if length == 0 {
            return Err(self.wrong(format!("expected {expected}")));
        }
        let place = self.at..self.at + length;
        self.at = place.end;
        Ok(Spanned { value: &self.text[place.clone()], place })
    }

    fn take(&mut self, wanted: char) -> bool {
        let found = self.peek() == Some(wanted);
        if found {
            self.advance();
        }
        found
    }

    fn peek(&self) -> Option<char> {
        self.text[self.at..].chars().next()
    }

    fn advance(&mut self) {
        self.at += self.peek().map_or(0, char::len_utf8);
    }

    fn skip_space(&mut self) {
        self.at = self.text.len() - self.text[self.at..].trim_start().len();
    }

    /// Makes an error at the next character.
    fn wrong(&self, problem: impl Into<String>) -> PipelineError {
        let length = self.peek().map_or(0, char::len_utf8);
        PipelineError::new(self.text, self.at..self.at + length, problem)
    }
}
