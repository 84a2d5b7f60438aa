//! The sending direction: records become pieces, and each piece goes to a way that has room for it.

use super::unit::emit_piece;
use super::way::{Sending, Way};
use super::{BURST_BYTES, Choice, PIECE_BYTES_MAX, StripedPartner};
use contract::{Body, PartnerResult, Time};
use wire::{Container, RecordHeader};

/// The rest of a record of which pieces were sent.
#[derive(Debug)]
pub(super) struct Split {
    header: RecordHeader,
    rest: Body,
}

impl Split {
    /// Cuts a record; returns it if it is too short for that.
    fn begin(mut record: Body) -> Result<Split, Body> {
        if record.len() <= RecordHeader::BYTES + PIECE_BYTES_MAX {
            return Err(record);
        }
        let header = record.peek_front::<{ RecordHeader::BYTES }>().unwrap_or([0; RecordHeader::BYTES]);
        // `push` has checked it.
        let Ok(header) = RecordHeader::parse(&header, record.len()) else { return Err(record) };
        record.skip_front(RecordHeader::BYTES);
        Ok(Split { header, rest: record })
    }

    /// Takes the next piece, with a header of its own.
    fn take(&mut self) -> Body {
        let length = self.rest.len().min(PIECE_BYTES_MAX);
        let mut piece = self.rest.split_off_front(length).unwrap_or_default();
        let container = Container { length: length as u32, ..self.header.container };
        piece.push_front(&RecordHeader { container, ..self.header }.emit());
        piece
    }
}

impl StripedPartner {
    /// Sends until everything is sent or no way has room.
    pub(super) fn flush(&mut self) -> PartnerResult {
        self.take_events()?;
        if self.ways[0].sending == Sending::Joining {
            self.receive_ways()?;
        }
        self.flush_ways()?;
        while let Some(index) = self.way_with_room() {
            self.fill(index);
            self.flush_way(index)?;
        }
        if self.is_finishing
            && self.queue.is_empty()
            && self.split.is_none()
            && self.ways[0].sending != Sending::Joining
        {
            self.ways.iter_mut().for_each(Way::end);
            self.flush_ways()?;
        }
        self.remove_over();
        self.note_limited();
        Ok(())
    }

    /// Sends the units that wait in each way.
    pub(super) fn flush_ways(&mut self) -> PartnerResult {
        (0..self.ways.len()).try_for_each(|index| self.flush_way(index))
    }

    fn flush_way(&mut self, index: usize) -> PartnerResult {
        match self.ways[index].flush() {
            Ok(()) => Ok(()),
            Err(error) => self.handle_cut(index, &error),
        }
    }

    /// Returns the next way in turn with room for a piece, if there is a piece.
    fn way_with_room(&self) -> Option<usize> {
        if self.queue.is_empty() && self.split.is_none() {
            return None;
        }
        let in_use = self.choice.ways() as usize;
        let open = self.ways.iter().enumerate().filter(|(_, way)| way.is_open()).take(in_use);
        let with_room = open.filter(|(_, way)| way.may_send && way.is_flushed());
        // Names rise with the index.
        with_room.min_by_key(|(_, way)| (way.name <= self.turn, way.name)).map(|(index, _)| index)
    }

    /// Queues pieces at a way: as much as one call sends.
    fn fill(&mut self, index: usize) {
        let is_single = self.choice.ways() == 1 || self.ways.len() == 1;
        let bytes_max = if is_single { BURST_BYTES } else { PIECE_BYTES_MAX };
        let way = &mut self.ways[index];
        self.turn = way.name;
        let mut bytes = 0;
        while bytes < bytes_max {
            if self.split.is_none() {
                let Some(record) = self.queue.pop() else { break };
                self.counts.sent += 1;
                let split = if is_single { Err(record) } else { Split::begin(record) };
                match split {
                    Ok(split) => self.split = Some(split),
                    Err(record) => {
                        bytes += record.len();
                        way.queue(&emit_piece(record, self.next_number, false));
                        self.next_number += 1;
                    }
                }
            } else if let Some(split) = &mut self.split {
                let piece = split.take();
                let continues = !split.rest.is_empty();
                bytes += piece.len();
                way.queue(&emit_piece(piece, self.next_number, continues));
                self.next_number += 1;
                if !continues {
                    self.split = None;
                }
            }
        }
        way.has_sent_pieces |= bytes > 0;
    }

    /// Notes that the sender begins or ceases to wait for the network.
    fn note_limited(&mut self) {
        let has_more = !self.queue.is_empty() || self.split.is_some();
        let is_limited = has_more && self.ways[0].is_open();
        match (self.limited_since, is_limited) {
            (None, true) => {
                let now = Time(sys::clock::boot_ns());
                self.limited_since = Some(now);
                let is_resting = matches!(&self.choice, Choice::Found(search) if search.due().is_none());
                if is_resting {
                    let observation = self.observe(now);
                    if let Choice::Found(search) = &mut self.choice {
                        search.on_limited(now, &observation);
                    }
                    self.update_ways();
                }
            }
            (Some(since), false) => {
                self.limited += Time(sys::clock::boot_ns()).since(since);
                self.limited_since = None;
                self.ways[0].stall_detector.on_idle();
            }
            _ => {}
        }
        if is_limited && self.ways.len() == 1 {
            self.check_stall();
        }
    }

    /// Checks whether past losses slow the only way down, so that a new connection would be faster.
    fn check_stall(&mut self) {
        let now = Time(sys::clock::boot_ns());
        let Way { socket, stall_detector, .. } = &mut self.ways[0];
        if now < stall_detector.due() {
            return;
        }
        match sys::net::stream_state(socket) {
            Ok(stream) => self.is_stalled |= stall_detector.check(&stream, now),
            Err(_) => stall_detector.postpone(now),
        }
    }

    /// Returns true once if a new link would do better, after a check of the ways for which one is due.
    pub(super) fn is_held_back(&mut self) -> bool {
        let now = Time(sys::clock::boot_ns());
        for way in &mut self.ways {
            self.is_stalled |= way.check_sent(now);
        }
        std::mem::take(&mut self.is_stalled)
    }
}
