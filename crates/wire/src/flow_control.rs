//! Control messages of one flow: acknowledgements, epochs, changes of the pipeline, measurements.

use crate::control::{
    CONTROL_BODY_BYTES_MAX, MISSING_RANGES_MAX, REASON_BYTES_MAX, cut, flag, option, pipeline, put_option,
    reason,
};
use crate::{Reader, WireError, Writer};

/// A control message of one flow. [`Control::Flow`](crate::Control::Flow) adds the number of the flow.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum FlowControl {
    /// Sink to source: the sink's partner has accepted everything before `next`.
    Acknowledge {
        /// Its epoch.
        epoch: u32,
        /// The first sequence that was not accepted.
        next: u64,
    },
    /// Sink to source: these sequences of a reliable flow are missing.
    Missing {
        /// Its epoch.
        epoch: u32,
        /// First and one past the last sequence of each gap.
        ranges: Vec<(u64, u64)>,
    },
    /// Sink to source: the sink abandons this epoch. Start the next one with the complete state.
    Resync {
        /// The abandoned epoch.
        epoch: u32,
    },
    /// Source to sink: an epoch has begun, and all earlier ones are over.
    Epoch {
        /// The new epoch.
        epoch: u32,
        /// The previous epoch, or 0 if there is none, and one past its last sequence.
        prev: (u32, u64),
        /// True if the epoch continues the previous one; false if the previous one's unacknowledged messages
        /// are abandoned.
        continues: bool,
    },
    /// Source to sink: messages before `sequence` that were not acknowledged are dropped and will not come.
    Trimmed {
        /// Its epoch. All earlier epochs are included.
        epoch: u32,
        /// One past the last dropped sequence.
        sequence: u64,
    },
    /// Source to sink: the flow ends before `sequence`.
    End {
        /// Its epoch.
        epoch: u32,
        /// One past the last sequence.
        sequence: u64,
    },
    /// A control message from one half of a pair to the other.
    Pair {
        /// Its epoch.
        epoch: u32,
        /// The number of the pair in the pipeline, from 0.
        pair: u16,
        /// The pair's own bytes.
        body: Vec<u8>,
    },
    /// Sink to source: measurements of the flow, for pairs that adapt.
    Feedback {
        /// Records received since the flow began.
        received: u64,
        /// Records lost since the flow began.
        lost: u64,
        /// One-way delay: median of the last interval, in microseconds.
        delay_us: u32,
        /// Jitter: 99th less 1st percentile of the delay in the last interval, in microseconds.
        jitter_us: u32,
    },
    /// Sink to source: requests another pipeline for this flow.
    Propose {
        /// The pipeline in canonical form.
        pipeline: String,
    },
    /// Source to sink: the flow has another pipeline from this epoch on.
    Change {
        /// The first epoch with the new pipeline.
        epoch: u32,
        /// The pipeline in canonical form.
        pipeline: String,
    },
    /// Reply to `Change`: the sink is ready or refuses. Reply to `Propose`: the source refuses.
    Changed {
        /// The epoch of the change; 0 in reply to `Propose`.
        epoch: u32,
        /// The reason for a refusal.
        refusal: Option<String>,
    },
    /// Sink to source: the flow's messages now pass through the pipeline of this epoch.
    Begun {
        /// The epoch.
        epoch: u32,
    },
}

const ACKNOWLEDGE: u8 = 12;
const MISSING: u8 = 13;
const RESYNC: u8 = 14;
const EPOCH: u8 = 15;
const TRIMMED: u8 = 27;
const END: u8 = 16;
const PAIR: u8 = 17;
const FEEDBACK: u8 = 21;
const PROPOSE: u8 = 23;
const CHANGE: u8 = 24;
const CHANGED: u8 = 25;
const BEGUN: u8 = 26;

impl FlowControl {
    fn kind(&self) -> u8 {
        match self {
            FlowControl::Acknowledge { .. } => ACKNOWLEDGE,
            FlowControl::Missing { .. } => MISSING,
            FlowControl::Resync { .. } => RESYNC,
            FlowControl::Epoch { .. } => EPOCH,
            FlowControl::Trimmed { .. } => TRIMMED,
            FlowControl::End { .. } => END,
            FlowControl::Pair { .. } => PAIR,
            FlowControl::Feedback { .. } => FEEDBACK,
            FlowControl::Propose { .. } => PROPOSE,
            FlowControl::Change { .. } => CHANGE,
            FlowControl::Changed { .. } => CHANGED,
            FlowControl::Begun { .. } => BEGUN,
        }
    }

    /// Writes the kind, the number of the flow, then the fields in their order.
    pub(crate) fn write(&self, flow: u32, w: &mut Writer) {
        w.u8(self.kind()).u32(flow);
        match self {
            FlowControl::Acknowledge { epoch, next } => {
                w.u32(*epoch).u64(*next);
            }
            FlowControl::Missing { epoch, ranges } => {
                w.u32(*epoch).u16(ranges.len() as u16);
                for (from, to) in ranges {
                    w.u64(*from).u64(*to);
                }
            }
            FlowControl::Resync { epoch } => {
                w.u32(*epoch);
            }
            FlowControl::Epoch { epoch, prev, continues } => {
                w.u32(*epoch).u32(prev.0).u64(prev.1).u8((*continues).into());
            }
            FlowControl::Trimmed { epoch, sequence } => {
                w.u32(*epoch).u64(*sequence);
            }
            FlowControl::End { epoch, sequence } => {
                w.u32(*epoch).u64(*sequence);
            }
            FlowControl::Pair { epoch, pair, body } => {
                w.u32(*epoch).u16(*pair).blob(body);
            }
            FlowControl::Feedback { received, lost, delay_us, jitter_us } => {
                w.u64(*received).u64(*lost).u32(*delay_us).u32(*jitter_us);
            }
            FlowControl::Propose { pipeline } => {
                w.text(pipeline);
            }
            FlowControl::Change { epoch, pipeline } => {
                w.u32(*epoch).text(pipeline);
            }
            FlowControl::Changed { epoch, refusal } => {
                w.u32(*epoch);
                put_option(w, refusal, |w, reason| w.text(cut(reason, REASON_BYTES_MAX)));
            }
            FlowControl::Begun { epoch } => {
                w.u32(*epoch);
            }
        }
    }

    /// Reads a message of this kind behind its kind byte, and the flow it belongs to. `None` for another kind.
    pub(crate) fn parse(kind: u8, r: &mut Reader<'_>) -> Result<Option<(u32, FlowControl)>, WireError> {
        if ![
            ACKNOWLEDGE,
            MISSING,
            RESYNC,
            EPOCH,
            TRIMMED,
            END,
            PAIR,
            FEEDBACK,
            PROPOSE,
            CHANGE,
            CHANGED,
            BEGUN,
        ]
        .contains(&kind)
        {
            return Ok(None);
        }
        let flow = r.u32("number of the flow")?;
        let message = match kind {
            ACKNOWLEDGE => FlowControl::Acknowledge {
                epoch: r.u32("acknowledge epoch")?,
                next: r.u64("acknowledge next")?,
            },
            MISSING => {
                let epoch = r.u32("missing epoch")?;
                let count = r.count("missing ranges", MISSING_RANGES_MAX)?;
                let range = |r: &mut Reader<'_>| Ok((r.u64("missing from")?, r.u64("missing to")?));
                let ranges = (0..count).map(|_| range(r)).collect::<Result<_, _>>()?;
                FlowControl::Missing { epoch, ranges }
            }
            RESYNC => FlowControl::Resync { epoch: r.u32("resync epoch")? },
            EPOCH => FlowControl::Epoch {
                epoch: r.u32("epoch")?,
                prev: (r.u32("ended epoch")?, r.u64("ended sequence")?),
                continues: flag(r, "epoch continues")?,
            },
            TRIMMED => {
                FlowControl::Trimmed { epoch: r.u32("trimmed epoch")?, sequence: r.u64("trimmed sequence")? }
            }
            END => FlowControl::End { epoch: r.u32("end epoch")?, sequence: r.u64("end sequence")? },
            PAIR => FlowControl::Pair {
                epoch: r.u32("pair epoch")?,
                pair: r.u16("pair number")?,
                body: r.blob("pair body", CONTROL_BODY_BYTES_MAX)?.into(),
            },
            FEEDBACK => FlowControl::Feedback {
                received: r.u64("feedback received")?,
                lost: r.u64("feedback lost")?,
                delay_us: r.u32("feedback delay")?,
                jitter_us: r.u32("feedback jitter")?,
            },
            PROPOSE => FlowControl::Propose { pipeline: pipeline(r, "propose pipeline")? },
            CHANGE => FlowControl::Change {
                epoch: r.u32("change epoch")?,
                pipeline: pipeline(r, "change pipeline")?,
            },
            CHANGED => FlowControl::Changed {
                epoch: r.u32("changed epoch")?,
                refusal: option(r, "changed refusal", reason)?,
            },
            BEGUN => FlowControl::Begun { epoch: r.u32("begun epoch")? },
            _ => return Ok(None),
        };
        Ok(Some((flow, message)))
    }
}
