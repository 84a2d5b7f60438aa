//! Assembles stamps into passages: the steps of one message through one host, from point to point.

use flow::trace::FlowTrace;
use pipeline::{Point, Stamp};
use std::collections::BTreeMap;
use std::rc::Rc;

/// Maximum number of incomplete messages; above it, all of them are closed.
const OPEN_MAX: usize = 1 << 15;
/// Collections to wait for the kernel's stamps after a message was written.
const KERNEL_ROUNDS: u32 = 2;
/// Collections after which an incomplete message counts as unfinished: it was dropped, or merged into another.
const OPEN_ROUNDS: u32 = 120;

/// One direction of one flow on one host.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Path {
    pub(super) process: i32,
    /// `share` or `attach`.
    pub(super) role: String,
    pub(super) device: String,
    pub(super) peer: String,
    pub(super) flow: u32,
    pub(super) to_application: bool,
    pub(super) is_source: bool,
    pub(super) pairs: Vec<String>,
}

/// The step between two points.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Part {
    /// Position among the parts of a passage.
    rank: u32,
    pub(super) name: String,
    pub(super) kind: &'static str,
}

/// The steps of one message through one host.
#[derive(Debug)]
pub(super) struct Passage {
    pub(super) path: Rc<Path>,
    pub(super) bytes: u32,
    /// Epoch and sequence number of its record.
    pub(super) number: Option<(u32, u64)>,
    /// Times at its points in order, nanoseconds; monotonic.
    pub(super) points: Vec<(Point, u64)>,
    /// Steps in the kernel after the write: start and end.
    pub(super) kernel: Vec<(Part, u64, u64)>,
}

impl Path {
    pub(super) fn direction(&self) -> &'static str {
        if self.to_application { "device -> application" } else { "application -> device" }
    }

    /// Returns the step that ends at `point`.
    pub(super) fn part(&self, point: Point) -> Part {
        let pair = |number: u16| self.pairs.get(usize::from(number)).map_or("a pair", String::as_str);
        let (name, kind) = match point {
            Point::Made => ("created".into(), "elsewhere"),
            Point::Arrived => ("the other host and the network".into(), "elsewhere"),
            Point::Read if self.is_source => ("waits in the device".into(), "kernel"),
            Point::Read => ("waits in the kernel".into(), "kernel"),
            Point::Received if self.is_source => ("read of the device".into(), "syscall"),
            Point::Received => ("read of the socket".into(), "syscall"),
            Point::Ordered => ("order".into(), "session"),
            Point::Waited(number) => (format!("waits for {}", pair(number)), "queue"),
            Point::Left(number) => (pair(number).into(), "stage"),
            Point::Numbered => ("number and store".into(), "session"),
            Point::Pushed => ("hand to the transport".into(), "session"),
            Point::Writing => ("waits for the end of the burst".into(), "queue"),
            Point::Written => ("write to the socket".into(), "syscall"),
            Point::Handing => ("waits for the node".into(), "queue"),
            Point::Handed => ("write to the node".into(), "syscall"),
            Point::Delivered => ("flush of the node".into(), "syscall"),
            _ => ("kernel".into(), "kernel"),
        };
        Part { rank: self.rank(point), name, kind }
    }

    /// Returns the position of a point. The sink runs the pairs in reverse order.
    fn rank(&self, point: Point) -> u32 {
        const AFTER: u32 = 1 << 18;
        let pair = |number: u16| 2 * u32::from(if self.is_source { number } else { u16::MAX - number });
        match point {
            Point::Made => 0,
            Point::Arrived => 1,
            Point::Read => 2,
            Point::Received => 3,
            Point::Ordered => 4,
            Point::Waited(number) => 5 + pair(number),
            Point::Left(number) => 6 + pair(number),
            Point::Numbered | Point::Handing => AFTER,
            Point::Pushed | Point::Handed => AFTER + 1,
            Point::Writing | Point::Delivered => AFTER + 2,
            _ => AFTER + 3,
        }
    }
}

impl Passage {
    /// Creates a passage from all stamps of one message, oldest first; `None` if the message is incomplete.
    fn new(path: Rc<Path>, stamps: &[Stamp]) -> Option<Passage> {
        let last = if path.is_source { Point::Written } else { Point::Delivered };
        let mut points: Vec<(Point, u64)> = Vec::new();
        let mut own = [None; 3];
        for stamp in stamps {
            match stamp.point {
                Point::Scheduled => own[0] = Some(stamp.at_ns),
                Point::Sent => own[1] = Some(stamp.at_ns),
                Point::Acknowledged => own[2] = Some(stamp.at_ns),
                // Data may arrive during the call that reads it, so its stamp may precede the call's.
                point => points.push((point, stamp.at_ns.max(points.last().map_or(0, |last| last.1)))),
            }
        }
        let begins = points.iter().position(|(point, _)| *point == Point::Read)?;
        let written = points.iter().position(|(point, _)| *point == last)?;
        if begins > 2 || written + 1 != points.len() {
            return None;
        }
        let mut since = points[written - 1].1;
        let mut kernel = Vec::new();
        let names = ["write to scheduler", "scheduler to driver", "driver to acknowledged"];
        for (rank, (name, at)) in (1..).zip(names.into_iter().zip(own)) {
            let Some(at) = at else { continue };
            // The stamps come from two clocks; no part may end before it begins.
            let at = at.max(since);
            kernel.push((Part { rank, name: name.into(), kind: "kernel" }, since, at));
            since = at;
        }
        Some(Passage {
            bytes: stamps.iter().map(|stamp| stamp.bytes).find(|bytes| *bytes > 0).unwrap_or(0),
            number: stamps.iter().find_map(|stamp| stamp.number),
            path,
            points,
            kernel,
        })
    }

    /// Returns the index of its first point on this host: its creation at a source; else its arrival, or its read if
    /// the kernel does not report the arrival.
    fn begin(&self) -> usize {
        let is_elsewhere =
            !self.path.is_source && self.points.first().is_some_and(|first| first.0 == Point::Made);
        usize::from(is_elsewhere)
    }

    /// Returns its consecutive steps on this host: start and end.
    pub(super) fn parts(&self) -> impl Iterator<Item = (Part, u64, u64)> {
        self.points[self.begin()..].windows(2).map(|pair| (self.path.part(pair[1].0), pair[0].1, pair[1].1))
    }

    /// Returns the sums of its steps, start and end: device to user, user to socket ("Multimedia teleconferencing
    /// driver" (1995), chapter 4), and all.
    pub(super) fn sums(&self) -> impl Iterator<Item = (Part, u64, u64)> {
        let (names, border) = match self.path.is_source {
            true => (["device to program", "program to socket", "whole"], Point::Received),
            false => (["socket to program", "program to node", "whole"], Point::Ordered),
        };
        let begin = self.points[self.begin()].1;
        let end = self.points.last().map_or(begin, |last| last.1);
        let middle = self.points.iter().find(|(point, _)| *point == border).map_or(begin, |found| found.1);
        let sums = [(begin, middle), (middle, end), (begin, end)];
        let sum = |(rank, (name, (from, to)))| {
            let name = String::from(name);
            (Part { rank, name, kind: "sum" }, from, to)
        };
        (0..).zip(names.into_iter().zip(sums)).map(sum)
    }

    /// Returns the time between creation and arrival, if the clocks of both hosts are known.
    pub(super) fn elsewhere(&self) -> Option<(Part, u64, u64)> {
        let begin = self.begin();
        let made = self.points[..begin].first()?;
        let name = "creation to arrival, by both clocks".into();
        Some((Part { rank: 0, name, kind: "elsewhere" }, made.1, self.points[begin].1))
    }
}

/// Incomplete messages.
#[derive(Debug, Default)]
pub(super) struct Assembly {
    paths: Vec<Rc<Path>>,
    /// By path and mark: the last collection with a stamp of it, and its stamps.
    open: BTreeMap<(usize, u32), (u32, Vec<Stamp>)>,
    round: u32,
    /// Number of unfinished messages by path.
    pub(super) unfinished: BTreeMap<Rc<Path>, u64>,
}

impl Assembly {
    /// Adds one collection of stamps of a flow.
    pub(super) fn add(&mut self, role: &str, process: i32, flow: &FlowTrace) -> Rc<Path> {
        let path = Path {
            process,
            role: role.into(),
            device: flow.name.clone(),
            peer: flow.peer.clone(),
            flow: flow.flow,
            to_application: flow.to_application,
            is_source: flow.is_source,
            pairs: flow.pairs.clone(),
        };
        let number = self.paths.iter().position(|known| **known == path).unwrap_or_else(|| {
            self.paths.push(Rc::new(path));
            self.paths.len() - 1
        });
        for stamp in &flow.stamps.stamps {
            let (round, stamps) = self.open.entry((number, stamp.mark)).or_default();
            *round = self.round;
            stamps.push(*stamp);
        }
        Rc::clone(&self.paths[number])
    }

    /// Ends a collection and returns the complete messages.
    pub(super) fn finish(&mut self, is_last: bool) -> Vec<Passage> {
        self.round += 1;
        let mut finished = Vec::new();
        let is_full = self.open.len() > OPEN_MAX;
        let (round, paths, unfinished) = (self.round, &self.paths, &mut self.unfinished);
        self.open.retain(|(number, _), (last, stamps)| {
            let age = round - *last;
            if age < KERNEL_ROUNDS && !is_last {
                return true;
            }
            match Passage::new(Rc::clone(&paths[*number]), stamps) {
                Some(passage) => finished.push(passage),
                None if age < OPEN_ROUNDS && !is_last && !is_full => return true,
                None => *unfinished.entry(Rc::clone(&paths[*number])).or_default() += 1,
            }
            false
        });
        finished.sort_by_key(|passage| passage.points[0].1);
        finished
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use pipeline::Stamps;

    /// Returns a flow in which one message passed these points at these times.
    pub(in crate::trace) fn flow(is_source: bool, mark: u32, points: &[(Point, u64)]) -> FlowTrace {
        let stamp = |(point, at_ns): &(Point, u64)| Stamp {
            at_ns: *at_ns,
            mark,
            point: *point,
            bytes: 70,
            number: Some((1, mark.into())),
        };
        FlowTrace {
            name: "pad".into(),
            peer: "other".into(),
            flow: 0,
            to_application: true,
            is_source,
            pairs: vec!["a".into(), "b".into()],
            offset_ns: Some(5000),
            stamps: Stamps { stamps: points.iter().map(stamp).collect(), ..Stamps::default() },
        }
    }

    pub(in crate::trace) const SOURCE: &[(Point, u64)] = &[
        (Point::Made, 1000),
        (Point::Read, 2000),
        (Point::Received, 2500),
        (Point::Left(0), 3000),
        (Point::Waited(1), 3400),
        (Point::Left(1), 3600),
        (Point::Numbered, 3700),
        (Point::Pushed, 3900),
        (Point::Writing, 4000),
        (Point::Written, 9000),
        (Point::Sent, 8000),
        (Point::Acknowledged, 12_000),
    ];
    pub(in crate::trace) const SINK: &[(Point, u64)] = &[
        (Point::Made, 6000),
        (Point::Arrived, 15_000),
        (Point::Read, 14_000),
        (Point::Received, 16_000),
        (Point::Ordered, 16_100),
        (Point::Left(1), 16_200),
        (Point::Left(0), 16_400),
        (Point::Handing, 16_500),
        (Point::Handed, 17_000),
        (Point::Delivered, 17_500),
    ];

    pub(in crate::trace) fn passage(is_source: bool, mark: u32, points: &[(Point, u64)]) -> Passage {
        let mut assembly = Assembly::default();
        assembly.add("share", 7, &flow(is_source, mark, points));
        assembly.finish(true).pop().unwrap()
    }

    fn shown(parts: impl Iterator<Item = (Part, u64, u64)>) -> Vec<(String, u64)> {
        parts.map(|(part, from, to)| (part.name, to - from)).collect()
    }

    #[test]
    fn parts_are_consecutive_and_add_up_to_the_sums() {
        for (is_source, points) in [(true, SOURCE), (false, SINK)] {
            let passage = passage(is_source, 3, points);
            let parts: Vec<_> = passage.parts().collect();
            assert!(parts.windows(2).all(|two| two[0].2 == two[1].1));
            let whole = shown(passage.sums()).pop().unwrap().1;
            assert_eq!(parts.iter().map(|part| part.2 - part.1).sum::<u64>(), whole);
            let ranks: Vec<_> = parts.iter().map(|part| part.0.rank).collect();
            assert!(ranks.is_sorted(), "{ranks:?}");
            assert_eq!((passage.bytes, passage.number), (70, Some((1, 3))));
        }
        let source = passage(true, 3, SOURCE);
        let sums = [("device to program", 1500), ("program to socket", 6500), ("whole", 8000)];
        assert_eq!(shown(source.sums()), sums.map(|(name, ns)| (name.to_string(), ns)));
        let kernel = [("scheduler to driver", 4000), ("driver to acknowledged", 4000)];
        assert_eq!(shown(source.kernel.into_iter()), kernel.map(|(name, ns)| (name.to_string(), ns)));
        // A message that arrives during the call did not wait.
        let sink = passage(false, 3, SINK);
        assert_eq!(shown(sink.parts())[0], ("waits in the kernel".into(), 0));
        assert_eq!(shown(sink.elsewhere().into_iter())[0].1, 9000);
    }

    #[test]
    fn partial_collections_are_merged_and_unfinished_messages_counted() {
        let mut assembly = Assembly::default();
        assembly.add("share", 7, &flow(true, 1, &SOURCE[..4]));
        assert!(assembly.finish(false).is_empty());
        assembly.add("share", 7, &flow(true, 1, &SOURCE[4..]));
        // One message without its beginning, and one that was merged into another.
        assembly.add("share", 7, &flow(true, 2, &SOURCE[4..]));
        assembly.add("share", 7, &flow(true, 3, &SOURCE[..4]));
        let mut finished = Vec::new();
        for _ in 0..OPEN_ROUNDS + 1 {
            finished.extend(assembly.finish(false));
        }
        assert_eq!(finished.iter().map(|passage| passage.number).collect::<Vec<_>>(), [Some((1, 1))]);
        assert_eq!(assembly.unfinished.values().copied().collect::<Vec<_>>(), [2]);
        assert!(assembly.open.is_empty());
    }
}
