//! "The Partner architecture (2002)", tables 3 and 4: 1200 bytes in one to four chunks, from other representations to the
//! partner vector and back, with and without a copy, and the indirect call alone.

use buffers::Body;
use bytes::Bytes;
use contract::{
    Attributes, Ctl, CtlReply, Direction, FlowKey, FlowTemplate, Message, Partner, PartnerError,
    PartnerResult, Pull, Pulled, Pushed, Readiness,
};
use serde_json::{Value, json};
use smallvec::SmallVec;
use std::hint::black_box;
use std::io::IoSlice;

const MESSAGE_BYTES: usize = 1200;
const OPERATIONS: u32 = 200_000;
const TURNS: usize = 15;

/// A partner that does nothing. Only the call remains.
struct Nothing {
    calls: u64,
}

impl Partner for Nothing {
    fn open(&mut self, _: &FlowTemplate, _: &Attributes) -> PartnerResult<FlowKey> {
        Ok(FlowKey::DEFAULT)
    }

    fn close(&mut self, _: FlowKey) -> PartnerResult {
        Ok(())
    }

    fn push(&mut self, _: FlowKey, _: Message) -> Result<Pushed, (PartnerError, Message)> {
        Ok(Pushed::Taken)
    }

    fn pull(&mut self, _: FlowKey, _: Pull<'_>) -> PartnerResult<Pulled> {
        self.calls += 1;
        Ok(Pulled::Nothing)
    }

    fn ctl(&mut self, _: FlowKey, _: Ctl<'_>) -> PartnerResult<CtlReply> {
        Ok(CtlReply::Done)
    }

    fn readiness(&self, _: FlowKey, _: Direction) -> Readiness<'_> {
        Readiness::never()
    }
}

/// Returns the nanoseconds of one operation in the fastest turn: the paper's code ran alone and undisturbed.
fn cost_ns(mut operation: impl FnMut()) -> f64 {
    let mut turn = || {
        let begun = sys::clock::boot_ns();
        (0..OPERATIONS).for_each(|_| operation());
        (sys::clock::boot_ns() - begun) as f64 / f64::from(OPERATIONS)
    };
    (0..TURNS).map(|_| turn()).fold(f64::INFINITY, f64::min)
}

/// One row: Outboard's times with 1 to 4 chunks, and the paper's.
struct Row {
    name: &'static str,
    ours_ns: [f64; 4],
    paper_ns: Option<[f64; 4]>,
}

/// Static memory, like a driver's buffers: an iovec only points to it.
static MEMORY: [u8; MESSAGE_BYTES] = [7; MESSAGE_BYTES];

fn chunks(count: usize) -> impl Iterator<Item = &'static [u8]> {
    MEMORY.chunks(MESSAGE_BYTES / count)
}

fn each(cost: impl Fn(usize) -> f64) -> [f64; 4] {
    std::array::from_fn(|i| cost(i + 1))
}

fn to_vector() -> Vec<Row> {
    vec![
        Row {
            name: "iovec, no copy",
            ours_ns: each(|n| {
                let iovec: Vec<&'static [u8]> = chunks(n).collect();
                cost_ns(|| {
                    let pieces = black_box(&iovec).iter().map(|chunk| Bytes::from_static(chunk));
                    black_box(pieces.collect::<Body>());
                })
            }),
            paper_ns: Some([17.0, 12.0, 15.0, 17.0]),
        },
        Row {
            name: "message (counted chunks), no copy",
            ours_ns: each(|n| {
                let message: Vec<Bytes> = chunks(n).map(Bytes::copy_from_slice).collect();
                cost_ns(|| {
                    black_box(black_box(&message).iter().cloned().collect::<Body>());
                })
            }),
            paper_ns: Some([16.0, 13.0, 24.0, 27.0]),
        },
        Row {
            name: "message, with a copy",
            ours_ns: each(|n| {
                let message: Vec<&'static [u8]> = chunks(n).collect();
                cost_ns(|| {
                    let pieces = black_box(&message).iter().map(|chunk| Bytes::copy_from_slice(chunk));
                    black_box(pieces.collect::<Body>());
                })
            }),
            paper_ns: Some([193.0, 297.0, 417.0, 513.0]),
        },
    ]
}

fn from_vector() -> Vec<Row> {
    let body = |n| chunks(n).map(Bytes::copy_from_slice).collect::<Body>();
    vec![
        Row {
            name: "iovec, no copy",
            ours_ns: each(|n| {
                let body = body(n);
                cost_ns(|| {
                    let mut iovec = SmallVec::<[IoSlice<'_>; 8]>::new();
                    black_box(&body).io_slices(0, &mut iovec);
                    black_box(&iovec);
                })
            }),
            paper_ns: Some([11.0, 13.0, 16.0, 19.0]),
        },
        Row {
            name: "message (driver memory), no copy",
            ours_ns: each(|n| {
                let body = chunks(n).map(Bytes::from_static).collect::<Body>();
                cost_ns(|| {
                    black_box(black_box(&body).clone());
                })
            }),
            paper_ns: Some([2.7, 2.7, 5.3, 5.3]),
        },
        Row {
            name: "message (counted chunks), no copy",
            ours_ns: each(|n| {
                let body = body(n);
                cost_ns(|| {
                    black_box(black_box(&body).clone());
                })
            }),
            paper_ns: None,
        },
        Row {
            name: "message, with a copy",
            ours_ns: each(|n| {
                let body = body(n);
                let mut message = vec![0; MESSAGE_BYTES];
                cost_ns(|| {
                    black_box(black_box(&body).copy_to(black_box(&mut message)));
                })
            }),
            paper_ns: Some([898.0, 1125.0, 1208.0, 1419.0]),
        },
        Row {
            name: "a header put in front and taken off",
            ours_ns: each(|n| {
                let mut body = body(n);
                cost_ns(|| {
                    black_box(&mut body).push_front(&[1; 28]);
                    black_box(black_box(&mut body).take_front::<28>());
                })
            }),
            paper_ns: None,
        },
    ]
}

fn print(title: &str, rows: &[Row]) {
    println!("\n{title}\n{:<38} {:>30} {:>30}", "ns, in 1/2/3/4 chunks", "ours", "paper");
    let joined = |figures: &[f64; 4]| figures.map(|ns| format!("{ns:.1}")).join(" / ");
    for row in rows {
        let paper = row.paper_ns.as_ref().map_or("-".into(), joined);
        println!("{:<38} {:>30} {paper:>30}", row.name, joined(&row.ours_ns));
    }
}

fn figures(rows: &[Row]) -> Value {
    rows.iter()
        .map(|row| json!({ "name": row.name, "ours_ns": row.ours_ns, "paper_ns": row.paper_ns }))
        .collect()
}

/// Runs `partner`.
pub(crate) fn run() -> Value {
    println!("{MESSAGE_BYTES} bytes; the paper's machine ran at 1.5 GHz (12 cycles are 8 ns)");
    println!(
        "The paper's messages are plain pointers; a counted chunk costs an atomic operation to take and to drop"
    );
    let (to, from) = (to_vector(), from_vector());
    print("To the partner vector (the paper's table 3)", &to);
    print("From the partner vector (the paper's table 4)", &from);
    let mut partner: Box<dyn Partner> = black_box(Box::new(Nothing { calls: 0 }));
    let call_ns = cost_ns(|| {
        let _ = black_box(black_box(&mut partner).pull(FlowKey::DEFAULT, Pull::Ask));
    });
    println!("\nThe indirect call alone: {call_ns:.1} ns (paper: 8 ns)");
    json!({
        "experiment": "partner",
        "message_bytes": MESSAGE_BYTES,
        "to_vector": figures(&to),
        "from_vector": figures(&from),
        "indirect_call_ns": call_ns,
        "indirect_call_paper_ns": 8,
    })
}
