//! Saves the state of a source in its recovery log, and resumes from it.
//!
//! | event | saved |
//! |---|---|
//! | a new epoch, an acknowledgement | the ticket |
//! | a record of a reliable flow is numbered | the record, until it is acknowledged |
//! | before a message is read from the device | the number of messages that exist only in this process |
//! | after the reads of a run | the same number, the device state and the number of dropped messages |
//!
//! The number of messages is saved before the read, because a crash during the read loses the message that it reads.

use super::SourcePath;
use crate::recovery::RecoveryLog;
use crate::types::FlowPlan;
use contract::{Ctl, CtlReply, FlowClass, FlowKey, Message, Partner, RecoveryCtl};
use pipeline::DropCounts;
use session::{Limits, SourceFlow, StoreFull};
use std::collections::VecDeque;
use wire::RecordHeader;
use wire::ticket::FlowTicket;

/// Drop reason of messages that end with their session.
pub const PEER_RESTARTED: &str = "the other host restarted";

/// State that a flow passes to the next session's flow on the same device.
#[derive(Default)]
pub struct SourceHandover {
    /// Unacknowledged messages, oldest first, as they left the last stage.
    unsent: VecDeque<Message>,
    drops: DropCounts,
    /// Messages in `drops` that the device's partner reported. The partner continues its count.
    device_drops: u64,
}

/// Creates the flow's source from the saved state, if there is any. Returns the source and whether it resumed.
pub(super) fn resume(
    plan: &mut FlowPlan,
    lossy: bool,
    limits: &Limits,
    log: Option<&mut RecoveryLog>,
    drops: &mut DropCounts,
) -> (SourceFlow, bool) {
    let mut fresh = SourceFlow::new(plan.flow, plan.class, lossy, limits);
    let Some(log) = log else { return (fresh, false) };
    let Some(saved) = log.source().filter(|saved| saved.ticket.flow == plan.flow) else {
        *drops = log.losses().drop_counts();
        return (fresh, false);
    };
    *drops = saved.losses.drop_counts();
    plan.resume_pipeline(&saved.pipeline);
    let count = saved.records.as_ref().map_or(0, |records| records.len() as u64);
    let source =
        saved.records.map(|records| SourceFlow::resume(&saved.ticket, records, plan.class, lossy, limits));
    match source {
        Some(Ok(source)) => (source, true),
        Some(Err(_)) | None => {
            drops.add("lost with the worker", count);
            fresh.restart_at(saved.ticket.epoch.saturating_add(1));
            (fresh, true)
        }
    }
}

impl SourcePath {
    /// Takes the recovery log and the state for the next session, for a rebuilt path.
    pub fn into_handover(mut self) -> (u32, Option<RecoveryLog>, SourceHandover) {
        self.stages.settle(&mut self.drops);
        let numbered = self.source.stored().filter_map(|mut record| {
            record.body.take_front::<{ RecordHeader::BYTES }>()?;
            Some(record)
        });
        let numbered: Vec<Message> = numbered.collect();
        let (in_doubt, held) = (numbered.len() as u64, self.stages.at_risk() as u64);
        let mut unsent: VecDeque<Message> =
            numbered.into_iter().chain(self.stages.out.messages.drain(..)).collect();
        // Stages of the old session transformed these messages with its keys and state, so they are useless without
        // it.
        if self.plan.class == FlowClass::Reliable && self.plan.pipeline.pairs().is_empty() {
            self.drops.add("in doubt when the other host restarted", in_doubt);
        } else {
            self.drops.add(PEER_RESTARTED, unsent.len() as u64);
            unsent.clear();
        }
        self.drops.add(PEER_RESTARTED, held);
        let (drops, device_drops) = (self.drops, self.device_drops);
        (self.plan.flow, self.log, SourceHandover { unsent, drops, device_drops })
    }

    /// Continues with the state of the previous session's flow.
    pub fn inherit(&mut self, handover: SourceHandover) {
        (self.drops, self.device_drops) = (handover.drops, handover.device_drops);
        match self.plan.pipeline.pairs().is_empty() {
            true => self.stages.out.messages = handover.unsent,
            false => self.drops.add(PEER_RESTARTED, handover.unsent.len() as u64),
        }
    }

    /// Passes the saved device state to the device's partner.
    pub fn restore_device_state(&mut self, partner: &mut dyn Partner) {
        if let Some(log) = self.log.as_mut() {
            log.restore_device_state(partner, self.key);
        }
    }

    /// Saves the position of the flow and removes acknowledged and discarded records from the log.
    pub(super) fn save_ticket(&mut self) {
        if let Some(log) = self.log.as_mut() {
            log.save_ticket(&FlowTicket::Source(self.source.ticket()), self.plan.pipeline.text());
            log.trim(self.source.oldest());
        }
    }

    /// Saves a record of a reliable flow until it is acknowledged.
    pub(super) fn save_record(&mut self, record: &Message) {
        let Some(log) = self.log.as_mut().filter(|_| self.plan.class == FlowClass::Reliable) else {
            return;
        };
        let position = (self.source.epoch(), self.source.next_sequence() - 1);
        // A full store may have dropped its oldest records for this one.
        if self.store.policy == StoreFull::DropOldest {
            log.trim(self.source.oldest());
        }
        log.append(position, &record.body);
    }

    /// Returns the number of messages that exist only in this process. The recovery log holds the records of a
    /// reliable flow.
    fn volatile(&self) -> usize {
        let is_saved =
            self.plan.class == FlowClass::Reliable && self.log.as_ref().is_none_or(RecoveryLog::is_whole);
        let numbered = if is_saved { 0 } else { self.source.unacknowledged() };
        self.stages.at_risk() + self.stages.out.messages.len() + numbered
    }

    /// Saves the number of volatile messages before a message is read from the device.
    pub(super) fn handle_read_start(&self, partner: Option<&mut Box<dyn Partner>>) {
        if let Some(log) = &self.log {
            log.begin_read(self.volatile(), count(partner, self.key, Ctl::Recovery(RecoveryCtl::ReadAhead)));
        }
    }

    /// Saves the number of volatile messages after the reads of a run, the device state and the drop counts.
    pub(super) fn handle_read_end(&mut self, mut partner: Option<&mut Box<dyn Partner>>) {
        self.count_device_drops(partner.as_deref_mut());
        let (volatile, dropped) = (self.volatile(), self.drops.total());
        let Some(log) = self.log.as_mut() else { return };
        match partner {
            Some(partner) => {
                log.save_device_state(partner.as_mut(), self.key);
                log.end_read(volatile, count(Some(partner), self.key, Ctl::Recovery(RecoveryCtl::ReadAhead)));
            }
            None => log.end_read(volatile, 0),
        }
        log.save_dropped(dropped);
    }

    /// Adds the messages that the device's partner dropped to the drop counts.
    fn count_device_drops(&mut self, partner: Option<&mut Box<dyn Partner>>) {
        let count = count(partner, self.key, Ctl::Recovery(RecoveryCtl::Discarded));
        let prev = std::mem::replace(&mut self.device_drops, count);
        self.drops.add("dropped by the device", count.saturating_sub(prev));
    }
}

/// Returns the partner's numeric answer; 0 if it has none.
fn count(partner: Option<&mut Box<dyn Partner>>, key: FlowKey, question: Ctl<'_>) -> u64 {
    match partner.map(|partner| partner.ctl(key, question)) {
        Some(Ok(CtlReply::Count(count))) => count,
        _ => 0,
    }
}
