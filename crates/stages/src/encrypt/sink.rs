//! The half that opens messages and refuses altered and repeated ones.
//!
//! ```text
//! salt of the message      sealed correctly          not
//! current source half      accepted, unless replayed refused
//! superseded source half   dropped                   dropped
//! unknown                  becomes the current one   refused
//! ```

use super::seal::{HEADER_BYTES, Header, Key, Salt, TAG_BYTES, cipher};
use buffers::Window;
use contract::{
    Body, Message, Offset, Options, Outbox, Port, Report, Secret, Stage, StageError, StageResult, Time,
};
use ring::aead::Algorithm;
use std::collections::VecDeque;

const REPLAYED: &str = "replayed, or later than the window";
const SUPERSEDED: &str = "of a superseded source half";
const CUT_SHORT: &str = "the end of the flow did not arrive";
/// Most superseded source halves remembered. Their messages are dropped.
const SUPERSEDED_MAX: usize = 1024;
/// Largest rate of change of the clock offset that containers may cause, in parts per thousand:
/// twice the rate at which the session slews its offset.
const SLEW_PER_THOUSAND: i64 = 10;

/// The current source half. Only its messages are accepted.
struct Sender {
    salt: Salt,
    key: Key,
    window: Window,
    /// Messages and ends accepted.
    accepted: u64,
    /// The counter of the end, if the latest accepted message was an end.
    end_counter: Option<u64>,
}

pub(super) struct Sink {
    cipher: &'static Algorithm,
    secret: Secret,
    window: usize,
    sender: Option<Sender>,
    superseded_salts: VecDeque<Salt>,
    /// Offset from sealed creation times to this host's clock, and the time of its last change.
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
            superseded_salts: VecDeque::new(),
            offset: None,
            opened: 0,
            refused: 0,
            replayed: 0,
            superseded: 0,
            retimed: 0,
            is_cut_short: false,
        }
    }

    fn refuse(&mut self, problem: &str) -> StageResult {
        self.refused += 1;
        Err(StageError::Input(problem.into()))
    }

    /// Makes `sender` the current one; messages of its predecessor are dropped from now on.
    fn supersede(&mut self, sender: Sender) {
        if let Some(previous) = self.sender.replace(sender) {
            if self.superseded_salts.len() == SUPERSEDED_MAX {
                self.superseded_salts.pop_front();
            }
            self.superseded_salts.push_back(previous.salt);
        }
    }

    /// Translates a sealed creation time to this host's clock, by the offset that containers claim.
    /// The offset changes only as slowly as the session slews it, so an attacker that alters
    /// containers cannot move messages against one another.
    fn created(&mut self, sealed: u64, container: Time, now: Time) -> Time {
        let claimed = container.signed_since(Time(sealed));
        let (offset, since) = self.offset.unwrap_or((claimed, now));
        let max_change =
            i64::try_from(now.since(since).as_nanos()).unwrap_or(i64::MAX) / 1000 * SLEW_PER_THOUSAND;
        let slewed = offset.saturating_add(claimed.saturating_sub(offset).clamp(-max_change, max_change));
        self.retimed += u64::from(slewed != claimed);
        self.offset = Some((slewed, now));
        Time(sealed).shifted(Offset(slewed))
    }
}

impl Stage for Sink {
    fn handle(&mut self, port: Port, message: Message, now: Time, out: &mut Outbox) -> StageResult {
        let Message { created, attributes, mut body } = message;
        let Some(header) = body.take_front::<HEADER_BYTES>().map(|bytes| Header::from_bytes(&bytes)) else {
            return self.refuse("its header is cut short");
        };
        let Some(length) = body.len().checked_sub(TAG_BYTES) else {
            return self.refuse("its tag is cut short");
        };
        let current = self.sender.take_if(|sender| sender.salt == header.salt);
        if current.is_none() && self.superseded_salts.contains(&header.salt) {
            self.superseded += 1;
            out.drop_counted(SUPERSEDED, 1);
            return Ok(());
        }
        let is_known = current.is_some();
        let mut sender = current.unwrap_or_else(|| Sender {
            salt: header.salt,
            key: Key::derive(self.cipher, &self.secret, &header.salt),
            window: Window::new(self.window),
            accepted: 0,
            end_counter: None,
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
            sender.accepted += 1;
            if header.counter >= sender.window.next() {
                sender.end_counter = header.is_end.then_some(header.counter);
            }
            sender.window.insert(header.counter);
        }
        match (is_genuine, is_known) {
            (_, true) => self.sender = Some(sender),
            (true, false) => self.supersede(sender),
            (false, false) => {}
        }
        if !is_genuine {
            return self.refuse(
                "it was altered, or sealed with another key: both hosts need the same --key-file, or none",
            );
        }
        if !header.is_end {
            self.opened += 1;
            let created = self.created(header.created, created, now);
            out.send(port, Message { created, attributes, body: Body::from(bytes.freeze()) });
        }
        Ok(())
    }

    fn handle_end(&mut self, _port: Port, _now: Time, out: &mut Outbox) -> StageResult {
        self.is_cut_short = self.sender.as_ref().is_none_or(|sender| sender.end_counter.is_none());
        if self.is_cut_short {
            out.drop_counted(CUT_SHORT, 1);
            return Err(StageError::Input(
                "the flow was cut short: the end sealed by its source did not arrive".into(),
            ));
        }
        Ok(())
    }

    fn report(&self) -> Vec<Report> {
        let missing = self.sender.as_ref().map_or(0, |sender| sender.window.next() - sender.accepted);
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
