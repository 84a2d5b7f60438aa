//! The questions about a unit with which a session begins, one after the other. Sans-IO.
//!
//! | question | answer |
//! |---|---|
//! | ready? | again after each event of the past ("unit attention"), [`EVENTS_MAX`] times |
//! | what is it? | a disk, or an error |
//! | capacity | the number and the length of the blocks |
//! | mode | read-only, force unit access, no cache for writes; without an answer none of them |
//! | pages | whether it has the page of limits; without an answer no |
//! | limits | the longest transfer; without an answer there is no limit |
//!
//! A target that is busy or stops a question is asked the same again after a pause, [`BUSY_MAX`] times: it has not said that there is no answer.
//! One that aborts the mode, the pages or the limits [`ABORTED_MAX`] times has none: some say so in this way, in each session.

use crate::sessions::CHUNK_BYTES;
use wire::formats::block::{Abilities, Geometry, PREFERRED_BYTES_MAX};
use wire::scsi::{
    self, BUSY, CHECK_CONDITION, Capacity, Cdb, FACTS_BYTES_MAX, GOOD, Inquiry, Mode, Sense, SenseKey,
    TASK_ABORTED, TASK_SET_FULL,
};

/// The most events of the past that a unit may report.
const EVENTS_MAX: u32 = 32;
/// The most answers of a busy target. With the pauses, they take less than the usual time limit of a login.
const BUSY_MAX: u32 = 32;
/// The most answers that abort one question which needs no answer.
const ABORTED_MAX: u32 = 8;
/// The preferred length of a request, unless the blocks are longer: a page of memory.
const PREFERRED_BYTES: u32 = 4096;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
enum Question {
    #[default]
    Ready,
    Inquiry,
    Capacity,
    Mode,
    Pages,
    Limits,
}

/// The progress of the questions.
#[derive(Debug, Default)]
pub(super) struct Greeting {
    question: Question,
    events: u32,
    /// Answers of a busy target, and whether the last one was of that kind.
    busy: u32,
    is_busy: bool,
    /// Answers that abort the present question.
    aborted: u32,
    /// The data of the present answer.
    data: Vec<u8>,
    capacity: Option<Capacity>,
    mode: Option<Mode>,
    /// The longest transfer, if there is a limit.
    transfer_blocks_max: Option<u32>,
}

impl Greeting {
    /// Returns the present question.
    pub(super) fn command(&self) -> Cdb {
        match self.question {
            Question::Ready => scsi::test_unit_ready(),
            Question::Inquiry => scsi::inquiry(),
            Question::Capacity => scsi::capacity(),
            Question::Mode => scsi::mode(),
            Question::Pages => scsi::pages(),
            Question::Limits => scsi::limits(),
        }
    }

    /// Returns whether the unit has said that it has no cache for writes.
    pub(super) fn writes_through(&self) -> bool {
        self.mode.is_some_and(|mode| mode.writes_through)
    }

    /// Returns the most data of an order, once all questions are answered.
    pub(super) fn order_bytes_max(&self) -> u32 {
        let block_bytes = self.capacity.map_or(1, |capacity| capacity.block_bytes);
        let limit = self.transfer_blocks_max.map_or(CHUNK_BYTES, |blocks| blocks.saturating_mul(block_bytes));
        limit.min(CHUNK_BYTES)
    }

    /// Returns the most data of its answer.
    pub(super) fn data_bytes_max(&self) -> u32 {
        if self.question == Question::Ready { 0 } else { FACTS_BYTES_MAX.into() }
    }

    /// Handles data of the answer.
    pub(super) fn handle_data(&mut self, offset: u32, data: &[u8]) -> Result<(), String> {
        let end = self.data.len() + data.len();
        if offset as usize != self.data.len() || end > self.data_bytes_max() as usize {
            return Err(format!("the target sends {} bytes at {offset} in an answer", data.len()));
        }
        self.data.extend_from_slice(data);
        Ok(())
    }

    /// Returns whether the question is to be asked again after a pause.
    pub(super) fn is_busy(&self) -> bool {
        self.is_busy
    }

    /// Handles the end of the answer. Returns the facts about the disk after the last one.
    pub(super) fn handle_end(
        &mut self,
        status: u8,
        sense: Option<Sense>,
    ) -> Result<Option<Geometry>, String> {
        let data = std::mem::take(&mut self.data);
        let key = sense.filter(|_| status == CHECK_CONDITION).map(|sense| sense.key);
        let has_stopped = matches!(status, BUSY | TASK_SET_FULL | TASK_ABORTED);
        let is_aborted = key == Some(SenseKey::Aborted);
        self.is_busy = false;
        if key == Some(SenseKey::UnitAttention) {
            self.events += 1;
            return match self.events {
                0..EVENTS_MAX => Ok(None),
                _ => Err(format!("the unit reports {EVENTS_MAX} events and is not ready")),
            };
        }
        self.busy += u32::from(has_stopped || is_aborted);
        self.aborted += u32::from(is_aborted);
        let is_needed = matches!(self.question, Question::Ready | Question::Inquiry | Question::Capacity);
        let may_change = has_stopped || (is_aborted && (is_needed || self.aborted < ABORTED_MAX));
        self.is_busy = may_change && self.busy < BUSY_MAX;
        if self.is_busy {
            return Ok(None);
        }
        self.aborted = 0;
        let is_known = scsi::result(status, sense) == GOOD;
        let refused = || {
            let reason = sense.map_or_else(|| format!("status {status:02x}"), |sense| sense.to_string());
            format!("the unit does not answer {:?}: {reason}", self.question)
        };
        let malformed = |error| format!("the target violates the protocol: {error}");
        self.question = match self.question {
            _ if is_needed && !is_known => return Err(refused()),
            _ if has_stopped || key == Some(SenseKey::NotReady) => return Err(refused()),
            Question::Ready => Question::Inquiry,
            Question::Inquiry => {
                match Inquiry::parse(&data).map_err(malformed)? {
                    Inquiry { exists: false, .. } => return Err("the target has no such unit (LUN)".into()),
                    Inquiry { device_type: 0, .. } => {}
                    Inquiry { device_type, .. } => {
                        return Err(format!(
                            "the unit is no disk: it has the SCSI device type {device_type}"
                        ));
                    }
                }
                Question::Capacity
            }
            Question::Capacity => {
                self.capacity = Some(Capacity::parse(&data).map_err(malformed)?);
                Question::Mode
            }
            Question::Mode => {
                self.mode = if is_known { Some(Mode::parse(&data).map_err(malformed)?) } else { None };
                Question::Pages
            }
            Question::Pages if is_known && scsi::has_limits(&data) => Question::Limits,
            Question::Pages => return self.geometry().map(Some),
            Question::Limits => {
                self.transfer_blocks_max = scsi::transfer_blocks_max(&data).filter(|_| is_known);
                return self.geometry().map(Some);
            }
        };
        Ok(None)
    }

    /// Returns the facts, or why this client cannot use the disk.
    fn geometry(&self) -> Result<Geometry, String> {
        let Capacity { blocks, block_bytes, physical_exponent, is_protected } =
            self.capacity.ok_or("the unit has no capacity")?;
        if is_protected {
            return Err(
                "the disk is formatted with protection data, which this client does not support".into()
            );
        }
        let physical = block_bytes.checked_shl(physical_exponent.into()).unwrap_or(0);
        let preferred_bytes = physical.clamp(PREFERRED_BYTES, PREFERRED_BYTES_MAX).max(block_bytes);
        let size_bytes =
            blocks.checked_mul(block_bytes.into()).ok_or("the disk is larger than 2^64 bytes")?;
        let mode = self.mode.unwrap_or_default();
        let abilities = Abilities {
            read_only: mode.is_read_only,
            flush: true,
            force: mode.can_force,
            trim: false,
            zeroes: false,
            // The cache belongs to the unit, so a flush in one session covers the writes of all.
            many_connections: true,
        };
        let geometry = Geometry { size_bytes, block_bytes, preferred_bytes, abilities };
        geometry
            .check()
            .map(|()| geometry)
            .map_err(|error| format!("this client does not support the disk: {error}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn aborted() -> Option<Sense> {
        Sense::parse(&[0x72, 0xb, 0x47, 0])
    }

    /// A greeting that asks for the mode.
    fn before_mode() -> Greeting {
        let mut greeting = Greeting::default();
        let capacity = [&[0, 0, 0, 0, 0, 0, 0, 255, 0, 0, 2, 0][..], &[0; 20]].concat();
        for data in [vec![], vec![0; 36], capacity] {
            greeting.handle_data(0, &data).unwrap();
            assert_eq!(greeting.handle_end(GOOD, None), Ok(None));
        }
        greeting
    }

    #[test]
    fn a_unit_that_aborts_the_questions_that_need_no_answer_is_used_without() {
        let mut greeting = before_mode();
        for question in [scsi::mode(), scsi::pages()] {
            for _ in 1..ABORTED_MAX {
                assert_eq!(greeting.command(), question);
                assert_eq!(greeting.handle_end(CHECK_CONDITION, aborted()), Ok(None));
                assert!(greeting.is_busy());
            }
            let end = greeting.handle_end(CHECK_CONDITION, aborted()).unwrap();
            assert!(!greeting.is_busy() && end.is_some() == (question == scsi::pages()));
        }
        assert_eq!(greeting.geometry().unwrap().size_bytes, 131_072);
    }

    #[test]
    fn a_unit_that_stays_busy_or_aborts_a_question_of_need_is_refused() {
        let mut greeting = before_mode();
        assert!((1..BUSY_MAX).all(|_| greeting.handle_end(BUSY, None) == Ok(None)));
        assert!(greeting.handle_end(BUSY, None).is_err());
        let mut greeting = Greeting::default();
        assert!((1..BUSY_MAX).all(|_| greeting.handle_end(CHECK_CONDITION, aborted()) == Ok(None)));
        assert!(greeting.handle_end(CHECK_CONDITION, aborted()).is_err());
    }
}
