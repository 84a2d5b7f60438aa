//! What `compress(level=auto)` goes by: content of several kinds, and what each level takes on it.

use super::networks::Draw;
use crate::Failure;
use contract::{Format, Message, Options, Outbox, Port, Site, Stage, Time};
use serde_json::{Value, json};
use std::time::Instant;

const NOISE_BYTES: usize = 4096;
const SIDE: usize = 700;
/// Bytes that go through each level, of each kind of content.
const MEASURED_BYTES: usize = 24 << 20;
/// The fastest of so many turns counts: what disturbs only takes time.
const TURNS: usize = 3;

/// Makes a body.
type Maker = fn(&mut Draw) -> Vec<u8>;

/// What a device makes: eight in ten messages are text, one is a frame, one cannot be compressed.
pub(super) fn mix(draw: &mut Draw) -> Vec<u8> {
    match (draw.share() * 10.0) as u32 {
        0 => frame(draw),
        1 => noise(draw),
        _ => text(draw),
    }
}

/// Lines as a log has them, 1 to 8 KiB.
fn text(draw: &mut Draw) -> Vec<u8> {
    const WORDS: [&str; 24] = [
        "sensor",
        "motor",
        "position",
        "limit",
        "reached",
        "calibrated",
        "temperature",
        "pressure",
        "valve",
        "opened",
        "closed",
        "waiting",
        "for",
        "the",
        "operator",
        "warning",
        "joint",
        "velocity",
        "within",
        "tolerance",
        "left",
        "right",
        "camera",
        "restarted",
    ];
    let length = 1024 + (draw.share() * 7168.0) as usize;
    let mut made = String::with_capacity(length + 128);
    while made.len() < length {
        made.push_str(&format!("{:.6} unit-{} ", draw.share() * 1e5, (draw.share() * 64.0) as u32));
        for _ in 0..3 + (draw.share() * 6.0) as usize {
            // Some words are far more frequent than others.
            made.push_str(WORDS[(draw.share() * draw.share() * WORDS.len() as f64) as usize]);
            made.push(' ');
        }
        made.push_str(&format!("{:.3}\n", draw.share() * 100.0));
    }
    made.truncate(length);
    made.into_bytes()
}

/// A gray frame of 700 x 700 points: areas of one shade each.
fn frame(draw: &mut Draw) -> Vec<u8> {
    let mut points = vec![32; SIDE * SIDE];
    for _ in 0..40 {
        let mut within = |from: usize, to: usize| from + (draw.share() * (to - from) as f64) as usize;
        let (left, top) = (within(0, SIDE), within(0, SIDE));
        let (right, bottom) = ((left + within(8, 200)).min(SIDE), (top + within(8, 100)).min(SIDE));
        let shade = within(0, 256) as u8;
        for row in top..bottom {
            points[row * SIDE + left..row * SIDE + right].fill(shade);
        }
    }
    points
}

fn noise(draw: &mut Draw) -> Vec<u8> {
    (0..NOISE_BYTES).map(|_| (draw.share() * 256.0) as u8).collect()
}

/// Measures what each level takes on each kind, in nanoseconds for each byte before compression: where the
/// constants in `crates/stages/src/compress/effort.rs` come from.
pub(crate) fn run() -> Result<Value, Failure> {
    let pair = stages::PAIRS.iter().find(|pair| pair.name() == "compress").ok_or("there is no compress")?;
    let kinds: [(&str, Maker); 3] = [("flat", frame), ("text", text), ("noise", noise)];
    let mut rows = Vec::new();
    println!("| level | content | wire bytes / bytes | compress, ns/byte | decompress, ns/byte |");
    println!("|---|---|---|---|---|");
    for (method, level) in [("lz4", "0"), ("zstd", "1"), ("zstd", "3"), ("zstd", "6"), ("zstd", "9")] {
        let options = Options::check(pair.options(), [("method", method), ("level", level)])?;
        let mut source = pair.source(&options, &Format::Bytes, &Site::default())?;
        let mut sink = pair.sink(&options, &Format::Bytes, &Site::default())?;
        for (kind, make) in kinds {
            let mut draw = Draw(7);
            let mut bodies = Vec::new();
            while bodies.iter().map(Vec::len).sum::<usize>() < MEASURED_BYTES {
                bodies.push(make(&mut draw));
            }
            let bytes = bodies.iter().map(Vec::len).sum::<usize>() as f64;
            let (mut made, mut compress, mut decompress) = (Vec::new(), f64::INFINITY, f64::INFINITY);
            for _ in 0..TURNS {
                let (came, seconds) = timed(&mut *source, messages(&bodies))?;
                compress = compress.min(seconds / bytes * 1e9);
                made = came;
                let (_, seconds) = timed(&mut *sink, made.clone())?;
                decompress = decompress.min(seconds / bytes * 1e9);
            }
            let share = made.iter().map(|message| message.body.len()).sum::<usize>() as f64 / bytes;
            println!("| {method} {level} | {kind} | {share:.3} | {compress:.2} | {decompress:.2} |");
            rows.push(json!({
                "method": method, "level": level, "content": kind, "share": share,
                "compress_ns": compress, "decompress_ns": decompress,
            }));
        }
    }
    Ok(json!({ "experiment": "efforts", "rows": rows }))
}

fn messages(bodies: &[Vec<u8>]) -> Vec<Message> {
    bodies.iter().map(|body| Message::new(Time::ZERO, body.clone())).collect()
}

/// Lets `messages` through: what came of them, and the seconds it took.
fn timed(stage: &mut dyn Stage, messages: Vec<Message>) -> Result<(Vec<Message>, f64), Failure> {
    let (mut came, mut out) = (Vec::with_capacity(messages.len()), Outbox::default());
    let begun = Instant::now();
    for message in messages {
        stage.handle(Port::MAIN, message, Time::ZERO, &mut out)?;
        came.extend(out.messages.drain(..).map(|(_, message)| message));
    }
    Ok((came, begun.elapsed().as_secs_f64()))
}
