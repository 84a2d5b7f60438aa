//! The half that opens, and takes nothing altered and nothing twice.

use super::seal::{HEADER_BYTES, Header, Key, Salt, TAG_BYTES, cipher};
use buffers::Window;
use contract::{Body, Message, Offset, Options, Outbox, Port, Report, Secret, Stage, StageError, Time};
use ring::aead::Algorithm;
use std::collections::VecDeque;

const REPLAYED: &str = "came twice, or later than the window";
const SUPERSEDED: &str = "of a source half that another took the place of";
const CUT_SHORT: &str = "the end of the flow did not come";
/// Source halves before this one that are remembered, to refuse what they sealed.
const PAST_MAX: usize = 1024;
/// How fast the offset between what a container says and what was sealed may change, parts per thousand:
/// twice as fast as the session slews its clocks' offset at most.
const SLEW_PER_THOUSAND: i64 = 10;

/// A source half, as known from what it sealed.
struct Sender {
    salt: Salt,
    key: Key,
    window: Window,
    /// Messages taken, ends included.
    taken: u64,
    /// The counter of its last message, if the last that came was its end.
    ended: Option<u64>,
}

pub(super) struct Sink {
    cipher: &'static Algorithm,
    secret: Secret,
    window: usize,
    sender: Option<Sender>,
    past: VecDeque<Salt>,
    /// What is added to a sealed creation time to get ours, and since when.
    offset: Option<(i64, Time)>,
    opened: u64,
    refused: u64,
    replayed: u64,
    superseded: u64,
    retimed: u64,
    is_cut_short: bool,
}

impl Sink {
    pub(super) fn new(options: &Options, secret: &Secret) -> Self {
        Sink {
            cipher: cipher(options),
            secret: secret.clone(),
            window: options.count("window"),
            sender: None,
            past: VecDeque::new(),
            offset: None,
            opened: 0,
            refused: 0,
            replayed: 0,
            superseded: 0,
            retimed: 0,
            is_cut_short: false,
        }
    }

    fn refuse(&mut self, problem: &str) -> Result<(), StageError> {
        self.refused += 1;
        Err(StageError::Input(problem.into()))
    }

    /// Takes `sender`'s place; nothing that the one before sealed is taken any more.
    fn supersede(&mut self, sender: Sender) {
        if let Some(before) = self.sender.replace(sender) {
            if self.past.len() == PAST_MAX {
                self.past.pop_front();
            }
            self.past.push_back(before.salt);
        }
    }

    /// A creation time on our clock: the sealed one, by the offset that containers say. That offset moves only
    /// as gently as the session moves it, so that who alters containers moves no message against another.
    fn created(&mut self, sealed: u64, container: Time, now: Time) -> Time {
        let said = container.signed_since(Time(sealed));
        let (offset, since) = self.offset.unwrap_or((said, now));
        let most = i64::try_from(now.since(since).as_nanos()).unwrap_or(i64::MAX) / 1000 * SLEW_PER_THOUSAND;
        let moved = offset.saturating_add(said.saturating_sub(offset).clamp(-most, most));
        self.retimed += u64::from(moved != said);
        self.offset = Some((moved, now));
        Time(sealed).shifted(Offset(moved))
    }
}

impl Stage for Sink {
    fn handle(
        &mut self,
        port: Port,
        message: Message,
        now: Time,
        out: &mut Outbox,
    ) -> Result<(), StageError> {
        let Message { created, attributes, mut body } = message;
        let Some(header) = body.take_front::<HEADER_BYTES>().map(|bytes| Header::from_bytes(&bytes)) else {
            return self.refuse("its header is cut short");
        };
        let Some(length) = body.len().checked_sub(TAG_BYTES) else {
            return self.refuse("its tag is cut short");
        };
        let known = self.sender.take_if(|sender| sender.salt == header.salt);
        if known.is_none() && self.past.contains(&header.salt) {
            self.superseded += 1;
            out.drop_counted(SUPERSEDED, 1);
            return Ok(());
        }
        let is_known = known.is_some();
        let mut sender = known.unwrap_or_else(|| Sender {
            salt: header.salt,
            key: Key::derive(self.cipher, &self.secret, &header.salt),
            window: Window::new(self.window),
            taken: 0,
            ended: None,
        });
        if !sender.window.is_new(header.counter) {
            self.sender = Some(sender);
            self.replayed += 1;
            out.drop_counted(REPLAYED, 1);
            return Ok(());
        }
        let mut bytes = body.into_mut(0);
        let mut tag = [0; TAG_BYTES];
        tag.copy_from_slice(&bytes[length..]);
        bytes.truncate(length);
        let is_genuine = sender.key.open(&header, tag, &mut bytes);
        if is_genuine {
            sender.taken += 1;
            if header.counter >= sender.window.next() {
                sender.ended = header.is_end.then_some(header.counter);
            }
            sender.window.insert(header.counter);
        }
        match (is_genuine, is_known) {
            (_, true) => self.sender = Some(sender),
            (true, false) => self.supersede(sender),
            (false, false) => {}
        }
        if !is_genuine {
            return self.refuse("it was altered on the way, or sealed with another key: both hosts need the same --key-file, or none");
        }
        if !header.is_end {
            self.opened += 1;
            let created = self.created(header.created, created, now);
            out.send(port, Message { created, attributes, body: Body::from(bytes.freeze()) });
        }
        Ok(())
    }

    fn handle_end(&mut self, _port: Port, _now: Time, out: &mut Outbox) -> Result<(), StageError> {
        self.is_cut_short = self.sender.as_ref().is_none_or(|sender| sender.ended.is_none());
        if self.is_cut_short {
            out.drop_counted(CUT_SHORT, 1);
            return Err(StageError::Input(
                "the flow was cut short: its source never said that it ends".into(),
            ));
        }
        Ok(())
    }

    fn report(&self) -> Vec<Report> {
        let missing = self.sender.as_ref().map_or(0, |sender| sender.window.next() - sender.taken);
        vec![
            ("opened", self.opened as f64),
            ("missing", missing as f64),
            ("refused", self.refused as f64),
            ("replayed", self.replayed as f64),
            ("superseded", self.superseded as f64),
            ("retimed", self.retimed as f64),
            ("cut_short", f64::from(u8::from(self.is_cut_short))),
        ]
    }
}
