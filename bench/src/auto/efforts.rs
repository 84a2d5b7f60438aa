//! The constants of `compress(level=auto)`: time and ratio of each level for several kinds of content.

use super::networks::Draw;
use crate::setting::Failure;
use contract::{Format, Message, Options, Outbox, Port, Site, Stage, Time};
use serde_json::{Value, json};
use std::time::Instant;

const NOISE_BYTES: usize = 4096;
const SIDE: usize = 700;
/// Bytes of each kind of content for each level.
const MEASURED_BYTES: usize = 24 << 20;
/// The number of turns. The fastest counts: a disturbance only adds time.
const TURNS: usize = 3;

/// Draws a body.
type Maker = fn(&mut Draw) -> Vec<u8>;

/// Draws a message of a device: eight in ten are text, one is a frame, one cannot be compressed.
pub(super) fn mix(draw: &mut Draw) -> Vec<u8> {
    match (draw.share() * 10.0) as u32 {
        0 => frame(draw),
        1 => noise(draw),
        _ => text(draw),
    }
}

/// Draws 1 to 8 KiB of lines like a log's.
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
            // Some words are much more frequent than others.
            made.push_str(WORDS[(draw.share() * draw.share() * WORDS.len() as f64) as usize]);
            made.push(' ');
        }
        made.push_str(&format!("{:.3}\n", draw.share() * 100.0));
    }
    made.truncate(length);
    made.into_bytes()
}

/// Draws a grey frame of 700 x 700 pixels with areas of one shade.
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

/// Runs `efforts`: measures nanoseconds per uncompressed byte, the source of the constants in
/// `crates/stages/src/compress/effort.rs`.
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

/// Passes `messages` through a stage. Returns its output and the seconds.
fn timed(stage: &mut dyn Stage, messages: Vec<Message>) -> Result<(Vec<Message>, f64), Failure> {
    let (mut came, mut out) = (Vec::with_capacity(messages.len()), Outbox::default());
    let begun = Instant::now();
    for message in messages {
        stage.handle(Port::MAIN, message, Time::ZERO, &mut out)?;
        came.extend(out.messages.drain(..).map(|(_, message)| message));
    }
    Ok((came, begun.elapsed().as_secs_f64()))
}
