//! The receiving direction: pieces of all ways, in the order of their numbers.
//!
//! The numbers on each way rise. So the next piece is the head of its way once everything before it was taken, and one
//! piece for each way is enough.

use super::unit::{Mark, Piece};
use super::way::{Received, Receiving, Sending, Way};
use super::{Choice, StripedPartner};
use contract::{End, FlowKey, Message, Next, PartnerError, PartnerResult, Time};
use session::WAYS_MAX;
use std::io;
use wire::BODY_BYTES_MAX;

/// Rounds over all ways of one pull, at most, so that a fast peer does not starve the rest of the event loop.
const ROUNDS_MAX: usize = 32;

impl StripedPartner {
    /// Receives until a record is complete, and stores its flow.
    pub(super) fn next(&mut self) -> PartnerResult<Next> {
        self.take_events()?;
        for _ in 0..ROUNDS_MAX {
            while let Some(piece) = self.take_piece()? {
                if let Some((flow, record)) = self.assembly.add(piece, BODY_BYTES_MAX)? {
                    self.flow = FlowKey(flow);
                    self.counts.received += 1;
                    self.counts.received_bytes += record.len() as u64;
                    return Ok(Next::Message(Message::new(Time::ZERO, record)));
                }
            }
            if !self.receive_ways()? {
                break;
            }
        }
        match self.has_ended() {
            true if !self.assembly.is_empty() => Err(self.broken("it ended in the middle of a record")),
            true => Ok(Next::End),
            false => Ok(Next::Nothing),
        }
    }

    /// Returns true if [`StripedPartner::next`] may return something.
    pub(super) fn has_next(&self) -> bool {
        let has_piece =
            self.ways.iter().any(|way| way.head.as_ref().is_some_and(|head| head.number <= self.expected));
        has_piece || self.may_receive() || self.has_ended()
    }

    /// Returns true if a way has bytes whose event was taken from the set.
    pub(super) fn may_receive(&self) -> bool {
        // A device host does not know the number of the link before the first way has named it.
        let readable = if self.link.is_some() { self.ways.len() } else { 1 };
        self.set.is_some() && self.ways[..readable].iter().any(Way::wants_bytes)
    }

    /// Returns true if no piece will ever follow.
    fn has_ended(&self) -> bool {
        self.ways.iter().all(|way| way.receiving == Receiving::Ended && way.head.is_none())
    }

    /// Takes the next piece, if it is the head of a way.
    fn take_piece(&mut self) -> PartnerResult<Option<Piece>> {
        for index in 0..self.ways.len() {
            let Some(head) = &self.ways[index].head else { continue };
            if head.number < self.expected {
                return Err(self.broken("it sent a piece of a record twice"));
            }
            if head.number == self.expected {
                self.expected += 1;
                let piece = self.ways[index].head.take();
                self.advance(index)?;
                return Ok(piece);
            }
        }
        Ok(None)
    }

    /// Receives once from each way without a head. Returns whether something arrived.
    pub(super) fn receive_ways(&mut self) -> PartnerResult<bool> {
        let mut progress = false;
        for index in 0..self.ways.len() {
            let is_early = index > 0 && self.link.is_none();
            if is_early || !self.ways[index].wants_bytes() {
                continue;
            }
            match self.ways[index].receive(self.set.is_none()) {
                Received::Some => {
                    progress = true;
                    self.advance(index)?;
                }
                Received::Nothing => {}
                Received::Cut(error) => self.handle_cut(index, &error)?,
            }
        }
        // Marks have answers.
        self.flush_ways()?;
        self.remove_over();
        Ok(progress)
    }

    /// Handles the marks of a way up to its next piece.
    fn advance(&mut self, index: usize) -> PartnerResult {
        loop {
            match self.ways[index].advance() {
                Ok(Some(mark)) => self.handle_mark(index, mark)?,
                Ok(None) => return Ok(()),
                // A device host refuses a connection in words of another protocol.
                Err(_) if self.ways[index].is_unused() && index > 0 => {
                    return self.handle_cut(index, &io::ErrorKind::InvalidData.into());
                }
                Err(problem) => return Err(self.broken(&problem)),
            }
        }
    }

    fn handle_mark(&mut self, index: usize, mark: Mark) -> PartnerResult {
        match mark {
            Mark::Join(link) => self.handle_join(index, link)?,
            Mark::Want(ways) => {
                self.demand.of_peer = u32::try_from(ways).unwrap_or(WAYS_MAX).clamp(1, WAYS_MAX);
                self.update_ways();
            }
            // The first way serves the other direction until that ends, too.
            Mark::End if index > 0 => self.ways[index].end(),
            Mark::End => {}
        }
        Ok(())
    }

    fn handle_join(&mut self, index: usize, link: u64) -> PartnerResult {
        match (self.end, self.link) {
            (End::Dialled, Some(own)) if own != link => return Err(self.broken("it joined another link")),
            // A way of an earlier link came late.
            (End::Accepted, Some(own)) if own != link => {
                self.drop_way(index);
                return Ok(());
            }
            (End::Accepted, _) => {
                self.link = Some(link);
                self.ways[index].mark(Mark::Join(link));
            }
            (End::Dialled, _) => {}
        }
        let way = &mut self.ways[index];
        way.receiving = Receiving::Open;
        if way.sending == Sending::Joining {
            way.sending = Sending::Open;
        }
        let now = Time(sys::clock::boot_ns());
        let observation = self.observe(now);
        if let Choice::Found(search) = &mut self.choice {
            search.on_opened(&observation, now);
        }
        self.update_ways();
        Ok(())
    }

    pub(super) fn broken(&self, problem: &str) -> PartnerError {
        PartnerError::Peer(format!("{}: {problem}", self.peer))
    }
}
