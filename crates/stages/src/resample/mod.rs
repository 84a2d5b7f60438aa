//! `resample`: lets the clock of the sink's device set the pace of sound, and converts to the rate of that device.
//!
//! The clocks of two sound devices differ by up to some 100 parts in a million (ppm), so one of them sooner or later runs out of
//! sound, or has too much. The sink half knows how much the device holds ([`Stage::handle_fill`]), and makes each quantum longer or
//! shorter by a little. The source half passes messages on.
//!
//! ```text
//! quantum ──► RateConverter ──► device           steer: [`ClockControl`]
//!                  ▲ steer        │ fill
//!                  └── control ◄──┘
//! ```

mod clock;
#[cfg(test)]
mod tests;

use crate::checkpoint::{CheckpointReader, CheckpointWriter, malformed};
use crate::sound::{RateConverter, STEER_MAX, Sound, duration};
use clock::ClockControl;
use contract::{
    Body, Fill, Format, Message, ModuleEntry, Options, Outbox, Pair, Port, Promises, Report, Site, Stage,
    StageResult, Time,
};
use wire::formats::audio::{FRAMES_MAX, RATE_HZ_MAX, RATE_HZ_MIN, SampleSpec};

/// The pair.
pub(crate) struct Resample;

impl Pair for Resample {
    fn entry(&self) -> ModuleEntry {
        ModuleEntry {
            name: "resample",
            summary: "lets sound follow the clock and the rate of the device that plays it",
            doc: include_str!("doc.md"),
            options: &[],
        }
    }

    fn promises(&self, _options: &Options) -> Promises {
        Promises { may_change: true, ..Promises::default() }
    }

    fn accept(&self, format: &Format, _options: &Options) -> Result<Format, String> {
        match format {
            Format::Audio => Ok(Format::Audio),
            other => Err(format!("it resamples `audio`; `{other}` has no samples")),
        }
    }

    fn isolates(&self, _options: &Options) -> Result<(), String> {
        Err("it asks the device how much sound it holds, and a process of its own cannot".into())
    }

    fn sink(&self, _options: &Options, _format: &Format, _site: &Site) -> StageResult<Box<dyn Stage>> {
        Ok(Box::<Sink>::default())
    }
}

/// A conversion for sound of one kind.
struct Conversion {
    from: SampleSpec,
    to: SampleSpec,
    converter: RateConverter,
    /// The position of the next input, and of the next output.
    next: [u64; 2],
}

#[derive(Default)]
struct Sink {
    conversion: Option<Conversion>,
    control: ClockControl,
    fill: Option<Fill>,
    gaps: u64,
}

impl Sink {
    /// The conversion for `sound`; a new one if its rate or the device's has changed.
    fn conversion(&mut self, sound: &Sound) -> StageResult<&mut Conversion> {
        let rate_hz = self.fill.map_or(sound.spec.rate_hz, |fill| fill.rate_hz);
        let to = SampleSpec { rate_hz, ..sound.spec };
        let fits = |known: &&mut Conversion| known.from == sound.spec && known.to == to;
        if self.conversion.as_mut().filter(fits).is_none() {
            let converter = RateConverter::new(&sound.spec, rate_hz);
            let next = [sound.position, scaled(sound.position, &sound.spec, &to)];
            self.conversion = Some(Conversion { from: sound.spec, to, converter, next });
        }
        // It was made if it was missing.
        self.conversion.as_mut().ok_or_else(malformed)
    }
}

/// A number of frames at the other rate.
fn scaled(frames: u64, from: &SampleSpec, to: &SampleSpec) -> u64 {
    let scaled = u128::from(frames) * u128::from(to.rate_hz) / u128::from(from.rate_hz);
    u64::try_from(scaled).unwrap_or(u64::MAX)
}

impl Stage for Sink {
    fn handle(&mut self, port: Port, message: Message, _now: Time, out: &mut Outbox) -> StageResult {
        let Some(sound) = Sound::parse(&message.body) else {
            out.send(port, message);
            return Ok(());
        };
        let steer = -self.control.correction();
        let conversion = self.conversion(&sound)?;
        let (from, to) = (conversion.from, conversion.to);
        // A gap before this quantum is one behind it too.
        let missing = sound.position.wrapping_sub(conversion.next[0]);
        let is_gap = missing != 0;
        let position =
            conversion.next[1].wrapping_add(scaled(missing.min(u64::from(RATE_HZ_MAX) << 10), &from, &to));
        let samples = conversion.converter.convert(&sound.samples, steer)?.to_vec();
        let frames = samples.len() / usize::from(to.channels);
        conversion.next =
            [sound.position.wrapping_add(sound.frames() as u64), position.wrapping_add(frames as u64)];
        let delay = duration(&to, conversion.converter.delay_frames());
        self.gaps += u64::from(is_gap);
        // A higher rate makes more frames than a message may have.
        for (number, part) in samples.chunks(FRAMES_MAX * usize::from(to.channels)).enumerate() {
            let before = number * FRAMES_MAX;
            let created = message.created.before(delay).after(duration(&to, before));
            let part =
                Sound { spec: to, position: position.wrapping_add(before as u64), samples: part.to_vec() };
            out.send(port, Message { attributes: message.attributes, ..part.into_message(created) });
        }
        Ok(())
    }

    fn handle_fill(&mut self, _port: Port, fill: Fill, now: Time, _out: &mut Outbox) -> StageResult {
        if (RATE_HZ_MIN..=RATE_HZ_MAX).contains(&fill.rate_hz) {
            self.fill = Some(fill);
            self.control.update(&fill, now);
        }
        Ok(())
    }

    /// The learned difference of the clocks, so that the next worker need not learn it again.
    fn checkpoint(&self) -> Option<Body> {
        let mut checkpoint = CheckpointWriter::default();
        checkpoint.put([self.control.drift().to_bits()]);
        Some(checkpoint.finish())
    }

    fn restore(&mut self, checkpoint: Body) -> StageResult {
        let mut reader = CheckpointReader(checkpoint);
        let drift = f64::from_bits(reader.number()?);
        if !(drift.abs() <= STEER_MAX && reader.is_empty()) {
            return Err(malformed());
        }
        self.control = ClockControl::with_drift(drift);
        Ok(())
    }

    fn report(&self) -> Vec<Report> {
        let held_ms = self.fill.map_or(0.0, |fill| fill.held.as_secs_f64() * 1e3);
        let target_ms = self.fill.map_or(0.0, |fill| fill.target.as_secs_f64() * 1e3);
        vec![
            ("drift_ppm", self.control.drift() * 1e6),
            ("correction_ppm", self.control.correction() * 1e6),
            ("fill_ms", held_ms),
            ("fill_target_ms", target_ms),
            ("gaps", self.gaps as f64),
        ]
    }
}
