//! The checkpoint of the processes of a run: all that a new run needs, in the process of another worker.
//!
//! The processes die with the worker that started them. Their next ones get the kept inputs of the ledger again, as after
//! a death. All numbers are little-endian.
//!
//! ```text
//! flags: u8                 bit 0: inputs were finished before the kept ones; bit 1: the era is truncated
//! era, newest era: u32
//! released outputs, counted drops of the era, inputs so far: u64
//! outputs: u32              released, but not collected yet
//! inputs, finished of them: u32
//! for each output and each input
//!   number: u64, created: u64, era: u32, length: u32, has_gap: u8
//!   body
//! ```
//!
//! The worker that wrote it may have been compromised, so [`Saved::parse`] checks it like network input.

use contract::{Body, Bytes, Message, StageError, StageResult, Time};
use wire::{Reader, Writer};

const HEADER_BYTES: usize = 1 + 2 * 4 + 3 * 8 + 3 * 4;
const ENTRY_BYTES: usize = 2 * 8 + 2 * 4 + 1;
const HAS_FINISHED: u8 = 1;
const IS_TRUNCATED: u8 = 2;

/// An input of the ledger, without its framing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct SavedInput {
    /// Number of the input, from 1.
    pub(super) number: u64,
    pub(super) message: Message,
    pub(super) era: u32,
    pub(super) has_gap: bool,
}

/// The content of a checkpoint.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Saved {
    /// An earlier process has finished inputs that are not kept.
    pub(super) has_finished: bool,
    pub(super) is_truncated: bool,
    pub(super) era: u32,
    pub(super) newest_era: u32,
    pub(super) released: u64,
    pub(super) counted_drops: u64,
    /// Inputs so far.
    pub(super) admitted: u64,
    /// Outputs that the links have not collected.
    pub(super) outputs: Vec<Message>,
    pub(super) inputs: Vec<SavedInput>,
    /// The first of the inputs, whose outputs were released.
    pub(super) finished: usize,
}

impl Saved {
    /// Encodes the checkpoint. Bodies are shared, not copied.
    pub(super) fn emit(self) -> Body {
        let flags = u8::from(self.has_finished) | u8::from(self.is_truncated) << 1;
        let mut w = Writer::new();
        w.u8(flags).u32(self.era).u32(self.newest_era);
        w.u64(self.released).u64(self.counted_drops).u64(self.admitted);
        w.u32(self.outputs.len() as u32).u32(self.inputs.len() as u32).u32(self.finished as u32);
        let mut all = Body::from(Bytes::from(w.finish()));
        let output = |message| SavedInput { number: 0, message, era: 0, has_gap: false };
        for SavedInput { number, message, era, has_gap } in
            self.outputs.into_iter().map(output).chain(self.inputs)
        {
            let mut w = Writer::new();
            w.u64(number).u64(message.created.0).u32(era).u32(message.body.len() as u32).u8(has_gap.into());
            all.push(Bytes::from(w.finish()));
            all.append(message.body);
        }
        all
    }

    /// Decodes a checkpoint of at most `messages_max` outputs and as many inputs.
    pub(super) fn parse(mut checkpoint: Body, messages_max: usize) -> StageResult<Saved> {
        let malformed = || StageError::Input("this is not a checkpoint of a module's process".into());
        let header = checkpoint.take_front::<HEADER_BYTES>().ok_or_else(malformed)?;
        let mut r = Reader::new(&header);
        let mut read = || -> Result<_, wire::WireError> {
            let flags = r.u8("checkpoint flags")?;
            let eras = [r.u32("checkpoint era")?, r.u32("checkpoint era")?];
            let counts =
                [r.u64("checkpoint outputs")?, r.u64("checkpoint drops")?, r.u64("checkpoint inputs")?];
            let lengths = [r.u32("checkpoint outputs")?, r.u32("checkpoint inputs")?, r.u32("finished")?];
            Ok((flags, eras, counts, lengths.map(|length| length as usize)))
        };
        let (flags, [era, newest_era], [released, counted_drops, admitted], [outputs, inputs, finished]) =
            read().map_err(|_| malformed())?;
        if outputs > messages_max || inputs > messages_max || finished > inputs {
            return Err(malformed());
        }
        let mut entry = || -> StageResult<SavedInput> {
            let header = checkpoint.take_front::<ENTRY_BYTES>().ok_or_else(malformed)?;
            let mut r = Reader::new(&header);
            let mut read = || -> Result<_, wire::WireError> {
                let (number, created) = (r.u64("number")?, Time(r.u64("created")?));
                Ok((number, created, r.u32("era")?, r.u32("length")? as usize, r.u8("gap")? != 0))
            };
            let (number, created, era, length, has_gap) = read().map_err(|_| malformed())?;
            let body = checkpoint.split_off_front(length).ok_or_else(malformed)?;
            Ok(SavedInput { number, message: Message::new(created, body), era, has_gap })
        };
        let outputs: StageResult<Vec<_>> = (0..outputs).map(|_| Ok(entry()?.message)).collect();
        let outputs = outputs?;
        let inputs = (0..inputs).map(|_| entry()).collect::<StageResult<Vec<_>>>()?;
        let is_rising = inputs.is_sorted_by_key(|input| input.era);
        if !is_rising || inputs.iter().any(|input| input.era > newest_era) || !checkpoint.is_empty() {
            return Err(malformed());
        }
        Ok(Saved {
            has_finished: flags & HAS_FINISHED != 0,
            is_truncated: flags & IS_TRUNCATED != 0,
            era,
            newest_era,
            released,
            counted_drops,
            admitted,
            outputs,
            inputs,
            finished,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn message() -> impl Strategy<Value = Message> {
        (any::<u64>(), prop::collection::vec(any::<u8>(), 0..50))
            .prop_map(|(created, body)| Message::new(Time(created), body))
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(128))]

        #[test]
        fn a_checkpoint_is_parsed_as_emitted(
            outputs in prop::collection::vec(message(), 0..5),
            inputs in prop::collection::vec((message(), any::<bool>()), 0..5),
            flags in any::<[bool; 2]>(),
            numbers in any::<[u64; 4]>(),
            era in any::<u32>(),
        ) {
            let number = numbers[3];
            let input = |(message, has_gap)| SavedInput { number, message, era, has_gap };
            let inputs: Vec<_> = inputs.into_iter().map(input).collect();
            let saved = Saved {
                has_finished: flags[0], is_truncated: flags[1], era, newest_era: era, released: numbers[0],
                counted_drops: numbers[1], admitted: numbers[2], outputs, finished: inputs.len() / 2, inputs,
            };
            prop_assert_eq!(Saved::parse(saved.clone().emit(), 5).unwrap(), saved);
        }

        #[test]
        fn other_bytes_are_rejected_or_harmless(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            let _ = Saved::parse(Body::from(bytes), 5);
        }
    }
}
