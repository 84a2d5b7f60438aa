//! `fault`: a test pair that loses, repeats and corrupts messages.

#[cfg(test)]
mod tests;

use crate::random::Random;
use contract::{
    Format, Message, ModuleEntry, OptionKind, OptionSpec, Options, Outbox, Pair, Port, Promises, Report,
    Site, Stage, StageResult, Time, agreed,
};

/// The pair.
pub(crate) struct Fault;

static OPTIONS: [OptionSpec; 4] = [
    agreed("loss", OptionKind::Share, "0%", "share of messages lost"),
    agreed("repeat", OptionKind::Share, "0%", "share of messages sent twice"),
    agreed("corrupt", OptionKind::Share, "0%", "share of messages with one bit flipped"),
    agreed("seed", OptionKind::Integer { min: 0, max: i64::MAX }, "1", "seed of the random numbers"),
];

const LOST: &str = "lost on purpose";

impl Pair for Fault {
    fn entry(&self) -> ModuleEntry {
        ModuleEntry {
            name: "fault",
            summary: "test pair: loses, repeats and corrupts messages",
            doc: include_str!("doc.md"),
            options: &OPTIONS,
        }
    }

    fn promises(&self, options: &Options) -> Promises {
        Promises {
            may_drop: options.number("loss") > 0.0,
            may_change: options.number("corrupt") > 0.0 || options.number("repeat") > 0.0,
            ..Promises::default()
        }
    }

    fn source(&self, options: &Options, _format: &Format, _site: &Site) -> StageResult<Box<dyn Stage>> {
        let mut seeds = Random::new(options.integer("seed").unsigned_abs());
        let mut fault =
            |name| Chance { share: options.number(name), random: Random::new(seeds.draw()), count: 0 };
        let (loss, repeat, corrupt) = (fault("loss"), fault("repeat"), fault("corrupt"));
        Ok(Box::new(Source { loss, repeat, corrupt, messages: 0 }))
    }
}

/// One kind of fault, with its own random numbers.
struct Chance {
    share: f64,
    random: Random,
    count: u64,
}

impl Chance {
    fn draw(&mut self) -> bool {
        let hit = self.random.chance(self.share);
        self.count += u64::from(hit);
        hit
    }
}

struct Source {
    loss: Chance,
    repeat: Chance,
    corrupt: Chance,
    messages: u64,
}

impl Stage for Source {
    fn handle(&mut self, port: Port, mut message: Message, _now: Time, out: &mut Outbox) -> StageResult {
        self.messages += 1;
        if self.loss.draw() {
            out.drop_counted(LOST, 1);
            return Ok(());
        }
        if !message.body.is_empty() && self.corrupt.draw() {
            let mut bytes = message.body.into_bytes().to_vec();
            let bit = self.corrupt.random.up_to(bytes.len() as u64 * 8 - 1);
            bytes[(bit / 8) as usize] ^= 1 << (bit % 8);
            message.body = bytes.into();
        }
        if self.repeat.draw() {
            out.send(port, message.clone());
        }
        out.send(port, message);
        Ok(())
    }

    fn report(&self) -> Vec<Report> {
        vec![
            ("messages", self.messages as f64),
            ("lost", self.loss.count as f64),
            ("repeated", self.repeat.count as f64),
            ("corrupted", self.corrupt.count as f64),
        ]
    }
}
