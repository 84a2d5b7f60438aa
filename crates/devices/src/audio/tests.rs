use super::engine::{self, ThreadEnd};
use super::joint::Joint;
use super::memory::{Memory, SLOTS, Word};
use super::partner::AudioPartner;
use super::player::Player;
use super::recorder::Recorder;
use super::writer::{RingWriter, SlotReader};
use super::{Audio, FADE_FRAMES, Frame, RATE_HZ, SPEC, Target, fuzz};
use contract::{
    Attributes, Body, Ctl, CtlReply, Description, DeviceClass, Direction, FlowClass, FlowKey, FlowTemplate,
    Format, Half, Kind, Message, Options, Outbox, Partner, PartnerError, Port, Presence, Pull, Pulled,
    Pushed, Readiness, Site, Stage, Time,
};
use proptest::prelude::*;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use testkit::partner::{Harness, conforms};
use wire::formats::audio::{Frames, SampleFormat, SampleSpec, encode};

/// A quantum of the tests.
const QUANTUM: usize = 128;
/// A tone of 440 Hz, and its steepest step from one frame to the next.
const AMPLITUDE: f64 = 12_000.0;
const STEP_MAX: f64 = AMPLITUDE * 440.0 * std::f64::consts::TAU / RATE_HZ as f64;

fn template(direction: Direction) -> FlowTemplate {
    FlowTemplate { direction, format: Format::Audio, class: FlowClass::Timely }
}

/// Frames of the tone, from one position on.
fn tone(position: u64, count: usize) -> Vec<Frame> {
    let sample = |at: u64| {
        let phase = (at % u64::from(RATE_HZ)) as f64 * 440.0 / f64::from(RATE_HZ);
        (AMPLITUDE * (phase * std::f64::consts::TAU).sin()).round() as i16
    };
    (position..position + count as u64).map(|at| [sample(at), -sample(at)]).collect()
}

fn bytes_of(frames: &[Frame]) -> Vec<u8> {
    frames.as_flattened().iter().flat_map(|sample| sample.to_le_bytes()).collect()
}

/// Checks that no step between two frames is a click: the tone's own step, forwards or backwards, plus that of the volume of
/// an end and of a beginning.
#[track_caller]
fn assert_no_click(frames: &[Frame]) {
    let limit = 2.0 * STEP_MAX + 2.0 * AMPLITUDE / FADE_FRAMES as f64 + 2.0;
    for (at, pair) in frames.windows(2).enumerate() {
        let step = f64::from((i32::from(pair[1][0]) - i32::from(pair[0][0])).abs());
        assert!(step <= limit, "a step of {step} at frame {at}, beyond {limit}");
    }
}

fn memory() -> Arc<Memory> {
    Arc::new(Memory::map(Memory::create().unwrap()).unwrap())
}

#[test]
fn a_joint_passes_frames_as_they_are_until_there_is_a_gap() {
    let mut joint = Joint::new();
    let mut heard = tone(0, FADE_FRAMES + 2000);
    joint.play(&mut heard);
    assert_eq!(heard[FADE_FRAMES..], tone(0, FADE_FRAMES + 2000)[FADE_FRAMES..]);
    assert_no_click(&heard);
    let last = heard.last().copied().unwrap();
    let mut gap = vec![[7, 7]; 500];
    joint.fill(&mut gap);
    assert!((i32::from(gap[0][0]) - i32::from(last[0])).abs() < 60, "it begins with the last frame");
    assert!(gap[FADE_FRAMES..].iter().all(|frame| *frame == [0, 0]), "silence after 5 ms");
    assert!(gap[..FADE_FRAMES - 10].iter().any(|frame| *frame != [0, 0]), "no cut");
}

proptest! {
    #[test]
    fn gaps_of_any_length_make_no_click(parts in prop::collection::vec((any::<bool>(), 0_usize..700), 1..30)) {
        let (mut joint, mut heard, mut position) = (Joint::new(), Vec::new(), 0);
        for (is_gap, count) in parts {
            let mut frames = tone(position, count);
            match is_gap {
                true => joint.fill(&mut frames),
                false => joint.play(&mut frames),
            }
            position += count as u64;
            heard.extend(frames);
        }
        assert_no_click(&heard);
    }

    #[test]
    fn numbers_of_a_compromised_worker_do_no_harm(bytes in prop::collection::vec(any::<u8>(), 0..400)) {
        fuzz::memory(&bytes);
    }

    #[test]
    fn any_message_is_converted_or_refused(
        format in 0_u8..3, channels in 1_u8..9, rate_hz in prop_oneof![Just(RATE_HZ), 8000_u32..192_000],
        frames in 1_usize..50, position: u64, seed in prop::collection::vec(any::<u8>(), 1..64),
    ) {
        let format = [SampleFormat::S16, SampleFormat::S32, SampleFormat::F32][usize::from(format)];
        let spec = SampleSpec { format, channels, rate_hz };
        let samples: Vec<u8> = seed.iter().copied().cycle().take(frames * spec.frame_bytes()).collect();
        fuzz::message(&Frames { spec, position, samples: &samples }.emit());
    }
}

/// Writer and player at their own pace: `pulls` before each message. Returns the frames that were played.
struct Line {
    memory: Arc<Memory>,
    writer: RingWriter,
    player: Player,
    position: u64,
    heard: Vec<Frame>,
}

impl Line {
    fn new() -> Line {
        let memory = memory();
        let (writer, player) = (RingWriter::new(memory.clone()), Player::new(memory.clone()));
        Line { memory, writer, player, position: 0, heard: Vec::new() }
    }

    fn write(&mut self, count: usize) {
        self.writer.write(self.position, tone(self.position, count));
        self.position += count as u64;
    }

    fn pull(&mut self, count: usize) {
        let mut frames = vec![[99, 99]; count];
        self.player.pull(&mut frames);
        self.heard.extend(frames);
    }

    fn fill(&self) -> u64 {
        self.writer.fill_frames()
    }
}

#[test]
fn an_even_pace_is_played_exactly_with_one_message_of_margin() {
    let mut line = Line::new();
    for _ in 0..5000 {
        line.write(QUANTUM);
        line.pull(QUANTUM);
    }
    assert_eq!(line.memory.load(Word::Underruns) + line.memory.load(Word::Skipped), 0);
    assert_eq!(line.fill(), QUANTUM as u64, "the margin");
    // The first pull waits for the margin.
    let expected = tone(0, line.heard.len() - QUANTUM);
    assert_eq!(line.heard[QUANTUM + FADE_FRAMES..], expected[FADE_FRAMES..]);
    assert_no_click(&line.heard);
}

#[test]
fn a_pause_is_silent_and_the_sound_goes_on_without_a_click() {
    let mut line = Line::new();
    for pause in [1, 2, 3, 10, 400] {
        for _ in 0..40 {
            line.write(QUANTUM);
            line.pull(QUANTUM);
        }
        (0..pause).for_each(|_| line.pull(QUANTUM));
    }
    (0..10).for_each(|_| line.pull(QUANTUM));
    assert_no_click(&line.heard);
    assert!(line.heard[line.heard.len() - QUANTUM..].iter().all(|frame| *frame == [0, 0]));
}

#[test]
fn lost_messages_leave_a_gap_of_their_length() {
    let mut line = Line::new();
    for number in 0..400 {
        if number % 20 == 7 {
            line.position += QUANTUM as u64;
        } else {
            line.write(QUANTUM);
        }
        line.pull(QUANTUM);
    }
    assert_no_click(&line.heard);
    assert_eq!(line.writer.lost_frames, 20 * QUANTUM as u64);
    assert!(line.memory.load(Word::Underruns) <= 1, "the length of a gap is kept");
}

#[test]
fn jitter_raises_the_margin_until_nothing_lacks_and_calm_lowers_it() {
    let mut line = Line::new();
    let mut underruns = Vec::new();
    // Ten messages come together, and then none for ten quanta.
    for _ in 0..1000 {
        (0..5).for_each(|_| line.write(QUANTUM));
        (0..10).for_each(|_| line.pull(QUANTUM));
        (0..5).for_each(|_| line.write(QUANTUM));
        underruns.push(line.memory.load(Word::Underruns));
    }
    assert_eq!(underruns[100], underruns[999], "it adapts at the beginning, then nothing lacks");
    let (jittered, window) = (line.fill(), 5 * RATE_HZ as usize / QUANTUM);
    assert!(jittered >= 5 * QUANTUM as u64, "{jittered} frames");
    for _ in 0..3 * window {
        line.write(QUANTUM);
        line.pull(QUANTUM);
    }
    assert!(line.fill() <= 2 * QUANTUM as u64, "{} frames wait after the calm", line.fill());
    assert_no_click(&line.heard);
}

#[test]
fn a_clock_that_is_fast_or_slow_is_bounded_and_makes_no_click() {
    // 1000 ppm: one message more, or less, for a thousand.
    for (extra, word) in [(1, Word::Skipped), (-1, Word::Underruns)] {
        let mut line = Line::new();
        let mut fill_max = 0;
        for number in 0..20_000 {
            let messages = if number % 1000 == 999 { 1 + extra } else { 1 };
            (0..messages).for_each(|_| line.write(QUANTUM));
            line.pull(QUANTUM);
            fill_max = fill_max.max(line.fill());
        }
        assert_no_click(&line.heard);
        assert!(line.memory.load(word) > 0);
        assert!(fill_max <= 24 * QUANTUM as u64, "{fill_max} frames waited");
    }
}

#[test]
fn sound_that_nobody_plays_is_not_old_when_somebody_does() {
    let mut line = Line::new();
    (0..4000).for_each(|_| line.write(QUANTUM));
    line.pull(QUANTUM);
    assert!(line.fill() <= 2 * QUANTUM as u64);
    for _ in 0..100 {
        line.write(QUANTUM);
        line.pull(QUANTUM);
    }
    assert_no_click(&line.heard);
}

#[test]
fn the_next_worker_continues_without_a_click() {
    let mut line = Line::new();
    for round in 0..20 {
        for _ in 0..50 {
            line.write(QUANTUM);
            line.pull(QUANTUM);
        }
        // The messages of the restart are lost; sometimes the player runs dry meanwhile.
        line.position += 3 * QUANTUM as u64;
        (0..round % 3 * 2).for_each(|_| line.pull(QUANTUM));
        line.writer = RingWriter::new(line.memory.clone());
    }
    assert_no_click(&line.heard);
}

/// The player ran out of frames and waits for more than one message. One comes, then a gap, or the next worker.
#[test]
fn frames_that_wait_for_more_end_without_a_click() {
    for has_next_worker in [false, true] {
        let mut line = Line::new();
        for _ in 0..20 {
            line.write(QUANTUM);
            line.pull(QUANTUM);
        }
        (0..4).for_each(|_| line.pull(QUANTUM));
        assert_eq!(line.fill(), 0);
        line.write(3 * QUANTUM);
        line.pull(QUANTUM);
        assert_eq!(line.fill(), 3 * QUANTUM as u64, "the player waits");
        line.position += 77_777;
        if has_next_worker {
            line.writer = RingWriter::new(line.memory.clone());
        }
        for _ in 0..20 {
            line.write(3 * QUANTUM);
            (0..3).for_each(|_| line.pull(QUANTUM));
        }
        assert!(line.heard.iter().rev().take(QUANTUM).any(|frame| *frame != [0, 0]), "the sound went on");
        assert_no_click(&line.heard);
    }
}

#[test]
fn times_of_quanta_are_smooth_and_follow_the_clock() {
    let (end, _descriptors) = engine::ends().unwrap();
    let mut slots = SlotReader::new(end.memory.clone());
    slots.set_wanted(true);
    let mut recorder = Recorder::new(end.memory.clone(), end.wake(), 5);
    let period_ns = SPEC.duration_ns(QUANTUM as u64);
    let mut created = Vec::new();
    for number in 0..500_u64 {
        // The thread wakes up to 1 ms late.
        let late_ns = number * 7919 % 1_000_000;
        recorder.record(&bytes_of(&tone(0, QUANTUM)), 1_000_000_000 + number * period_ns + late_ns, 0);
        let quantum = slots.next().unwrap();
        assert_eq!(quantum.position, 5 + number * QUANTUM as u64);
        created.push(quantum.created_ns);
    }
    let spacing: Vec<_> = created.windows(2).map(|pair| pair[1] - pair[0]).collect();
    assert!(spacing.iter().all(|spacing_ns| spacing_ns.abs_diff(period_ns) < 80_000), "{spacing:?}");
    let last_ns = 1_000_000_000 + 498 * period_ns;
    assert!(created[499].abs_diff(last_ns) < 1_500_000, "{} is not {last_ns}", created[499]);
}

#[test]
fn quanta_that_nobody_reads_are_counted_and_leave_a_gap() {
    let (end, _descriptors) = engine::ends().unwrap();
    let mut slots = SlotReader::new(end.memory.clone());
    let mut recorder = Recorder::new(end.memory.clone(), end.wake(), 0);
    recorder.record(&bytes_of(&tone(0, QUANTUM)), 1, 0);
    assert_eq!(slots.next(), None, "nobody wants them");
    slots.set_wanted(true);
    for _ in 0..SLOTS + 10 {
        recorder.record(&bytes_of(&tone(0, QUANTUM)), 1, 0);
    }
    assert_eq!(end.memory.load(Word::Dropped), 10 * QUANTUM as u64);
    let positions: Vec<_> = std::iter::from_fn(|| slots.next()).map(|quantum| quantum.position).collect();
    assert_eq!(positions.len() as u64, SLOTS);
    recorder.record(&bytes_of(&tone(0, QUANTUM)), 1, 0);
    let after = slots.next().unwrap().position;
    assert_eq!(after - positions.last().unwrap(), 11 * QUANTUM as u64);
    recorder.record(&bytes_of(&tone(0, QUANTUM)), 1, 40);
    assert_eq!(slots.next().unwrap().position - after, QUANTUM as u64 + 40, "frames that the server missed");
}

/// A partner, and the sound thread's end with its real player and recorder.
struct Far {
    partner: Box<dyn Partner>,
    end: Option<ThreadEnd>,
    recorder: Recorder,
    fed: u64,
}

impl Far {
    fn new(has_out: bool, has_in: bool) -> Far {
        let (end, descriptors) = engine::ends().unwrap();
        let [control, memory] = <[OwnedFd; 2]>::try_from(descriptors).unwrap();
        let partner = AudioPartner::new("a card".into(), control, memory, has_out, has_in).unwrap();
        let recorder = Recorder::new(end.memory.clone(), end.wake(), 0);
        Far { partner: Box::new(partner), end: Some(end), recorder, fed: 0 }
    }

    fn open(direction: Direction) -> (Far, FlowKey) {
        let mut far = Far::new(direction == Direction::Out, direction == Direction::In);
        let key = far.partner.open(&template(direction), &Attributes::default()).unwrap();
        (far, key)
    }

    fn message(frames: Frames<'_>) -> Message {
        Message { created: Time(1), attributes: Attributes::default(), body: Body::from(frames.emit()) }
    }
}

/// Only the end that exists is fed: the suite asks for flows that the partner does not have.
struct Side(Far, Direction);

impl Harness for Side {
    fn partner(&mut self) -> &mut dyn Partner {
        self.0.partner.as_mut()
    }

    fn template(&self, direction: Direction) -> Option<FlowTemplate> {
        (direction == self.1).then(|| template(direction))
    }

    fn feed(&mut self) -> Option<Vec<u8>> {
        let (frames, position) = (bytes_of(&tone(self.0.fed, QUANTUM)), self.0.fed);
        self.0.fed += QUANTUM as u64;
        self.0.recorder.record(&frames, sys::clock::boot_ns(), 0);
        Some(Frames { spec: SPEC, position, samples: &frames }.emit())
    }

    fn end(&mut self) -> bool {
        false
    }

    fn body(&self, number: u64) -> Vec<u8> {
        Frames { spec: SPEC, position: number, samples: &bytes_of(&tone(number, 1)) }.emit()
    }

    /// Sound that is not played in time is dropped, so the far side does not receive everything: other tests listen.
    fn taken(&mut self) -> Option<Vec<u8>> {
        None
    }
}

#[test]
fn a_microphone_conforms() {
    conforms(|| Side(Far::new(true, false), Direction::Out));
}

#[test]
fn a_speaker_conforms() {
    conforms(|| Side(Far::new(false, true), Direction::In));
}

#[test]
fn a_recorded_quantum_is_one_message_with_its_time() {
    let (mut far, key) = Far::open(Direction::Out);
    let samples = bytes_of(&tone(0, 100));
    assert!(matches!(far.partner.pull(key, Pull::Yours), Ok(Pulled::Nothing)));
    far.recorder.record(&samples, 1_000_000_000, 0);
    let Ok(Pulled::Message(_, mut message)) = far.partner.pull(key, Pull::Yours) else {
        panic!("no message")
    };
    assert_eq!(message.created, Time(1_000_000_000 - SPEC.duration_ns(100)));
    let body = message.body.as_slice();
    assert_eq!(Frames::parse(body), Ok(Frames { spec: SPEC, position: 0, samples: &samples }));
}

#[test]
fn a_microphone_records_only_while_its_flow_is_open() {
    let (mut far, key) = Far::open(Direction::Out);
    let end = far.end.clone().unwrap();
    assert!(end.is_wanted());
    far.partner.close(key).unwrap();
    assert!(!end.is_wanted());
    far.recorder.record(&bytes_of(&tone(0, 10)), 1, 0);
    let key = far.partner.open(&template(Direction::Out), &Attributes::default()).unwrap();
    assert!(matches!(far.partner.pull(key, Pull::Yours), Ok(Pulled::Nothing)), "an old quantum");
}

#[test]
fn every_sample_format_and_number_of_channels_is_played() {
    let (mut far, key) = Far::open(Direction::In);
    let mut player = Player::new(far.end.as_ref().unwrap().memory.clone());
    let mut position = 0;
    for channels in [1, 2, 6] {
        for format in [SampleFormat::S16, SampleFormat::S32, SampleFormat::F32] {
            let values: Vec<f32> = (0..QUANTUM)
                .flat_map(|_| (0..channels).map(|channel| [0.5, -0.25, 0.9][channel % 3]))
                .collect();
            let spec = SampleSpec { format, channels: channels as u8, rate_hz: RATE_HZ };
            let (samples, mut frames) = (encode(format, &values), [Frame::default(); QUANTUM]);
            for _ in 0..10 {
                let message = Far::message(Frames { spec, position, samples: &samples });
                assert!(matches!(far.partner.push(key, message), Ok(Pushed::Taken)));
                position += QUANTUM as u64;
                player.pull(&mut frames);
            }
            let expected = if channels == 1 { [16_384, 16_384] } else { [16_384, -8192] };
            assert_eq!(frames, [expected; QUANTUM], "{format:?}, {channels} channels");
        }
    }
}

#[test]
fn another_rate_is_refused_with_advice() {
    let (mut far, key) = Far::open(Direction::In);
    let spec = SampleSpec { rate_hz: 44_100, ..SPEC };
    let message = Far::message(Frames { spec, position: 0, samples: &[0; 4] });
    let Err((PartnerError::Message(problem), _)) = far.partner.push(key, message) else { panic!("taken") };
    assert!(problem.contains("resample"), "{problem}");
    let broken = Message { created: Time(1), attributes: Attributes::default(), body: Body::from(vec![9]) };
    assert!(matches!(far.partner.push(key, broken), Err((PartnerError::Message(_), _))));
}

#[test]
fn an_unplugged_device_is_reported_and_a_sound_thread_that_ends_too() {
    let (mut far, key) = Far::open(Direction::Out);
    assert_eq!(far.partner.presence(), None);
    far.end.as_ref().unwrap().set_absent(true);
    assert!(matches!(far.partner.presence(), Some(Presence::Absent(reason)) if reason.contains("a card")));
    assert_eq!(far.partner.presence(), None);
    far.end.as_ref().unwrap().set_absent(false);
    assert_eq!(far.partner.presence(), Some(Presence::Present));
    let Far { mut partner, end, recorder, .. } = far;
    drop((end, recorder));
    assert!(matches!(partner.pull(key, Pull::Yours), Err(PartnerError::Gone(_))));
}

#[test]
fn a_stage_learns_the_fill_while_somebody_plays() {
    let (mut far, key) = Far::open(Direction::In);
    let mut player = Player::new(far.end.as_ref().unwrap().memory.clone());
    let samples = bytes_of(&tone(0, QUANTUM));
    let mut position = 0;
    let mut push = |far: &mut Far| {
        let message = Far::message(Frames { spec: SPEC, position, samples: &samples });
        position += QUANTUM as u64;
        assert!(matches!(far.partner.push(key, message), Ok(Pushed::Taken)));
        match far.partner.ctl(key, Ctl::Fill) {
            Ok(CtlReply::Fill(fill)) => Some((fill.held, fill.target, fill.lead)),
            _ => None,
        }
    };
    assert_eq!(push(&mut far), None, "nobody plays");
    let mut fill = None;
    for _ in 0..20 {
        player.pull(&mut [Frame::default(); QUANTUM]);
        fill = push(&mut far);
    }
    let [one, two] =
        [1, 2].map(|quanta| std::time::Duration::from_nanos(SPEC.duration_ns(quanta * QUANTUM as u64)));
    assert_eq!(fill, Some((two, two, one)), "an even pace keeps the target");
    for _ in 0..40 {
        fill = push(&mut far);
    }
    assert_eq!(fill, None, "nobody plays any more");
}

/// A source and a player whose clocks and quanta differ, with `resample` between them, in virtual time.
struct Clocks {
    far: Far,
    key: FlowKey,
    player: Player,
    resample: Box<dyn Stage>,
    quantum: usize,
    pull: usize,
    /// The share by which the source's clock is faster than the player's.
    drift: f64,
    sent: u64,
    pulled: u64,
}

impl Clocks {
    fn new(quantum: usize, pull: usize, drift: f64) -> Clocks {
        let (far, key) = Far::open(Direction::In);
        let player = Player::new(far.end.as_ref().unwrap().memory.clone());
        let pair = stages::PAIRS.iter().find(|pair| pair.entry().name == "resample").unwrap();
        let options = Options::defaults(pair.options()).unwrap();
        let resample = pair.half(Half::Sink, &options, &Format::Audio, &Site::default()).unwrap();
        Clocks { far, key, player, resample, quantum, pull, drift, sent: 0, pulled: 0 }
    }

    fn push(&mut self, now: Time) {
        let spec = SampleSpec { channels: 1, ..SPEC };
        let samples = vec![0; self.quantum * spec.frame_bytes()];
        let message = Far::message(Frames { spec, position: self.sent, samples: &samples });
        self.sent += self.quantum as u64;
        let mut out = Outbox::default();
        self.resample.handle(Port::MAIN, message, now, &mut out).unwrap();
        for (port, message) in std::mem::take(&mut out.messages) {
            assert!(matches!(self.far.partner.push(self.key, message), Ok(Pushed::Taken)));
            if let Ok(CtlReply::Fill(fill)) = self.far.partner.ctl(self.key, Ctl::Fill) {
                self.resample.handle_fill(port, fill, now, &mut out).unwrap();
            }
        }
    }

    /// Runs for a second. Returns the underruns so far, and the most frames that a pull of this second left.
    fn second(&mut self) -> (u64, u64) {
        let mut left_max = 0;
        let end = (self.pulled + u64::from(RATE_HZ)) as f64;
        // Pulls come in the middle of a quantum.
        let phase = self.quantum as f64 / 2.0;
        while (self.pulled as f64) < end {
            let sent = self.sent as f64 / (1.0 + self.drift);
            let pulled = self.pulled as f64 + phase;
            if sent < pulled {
                self.push(Time((sent * 1e9 / f64::from(RATE_HZ)) as u64));
                continue;
            }
            self.player.pull(&mut vec![Frame::default(); self.pull]);
            self.pulled += self.pull as u64;
            left_max = left_max.max(self.load(Word::Left));
        }
        (self.load(Word::Underruns), left_max)
    }

    fn load(&self, word: Word) -> u64 {
        self.far.end.as_ref().unwrap().memory.load(word)
    }
}

/// The host of the source has other quanta than that of the player, in both directions, and its own clock.
#[test]
fn a_pull_may_be_much_longer_than_a_message_or_much_shorter() {
    for (quantum, pull) in
        [(128, 128), (128, 512), (128, 1024), (128, 2048), (128, 4096), (128, 8192), (256, 2048), (1024, 128)]
    {
        for drift in [0.0, 300e-6, -300e-6] {
            let mut clocks = Clocks::new(quantum, pull, drift);
            let [(learned, _), (later, left_max)] =
                [10, 40].map(|seconds| (0..seconds).map(|_| clocks.second()).last().unwrap());
            let case = format!("messages of {quantum}, pulls of {pull}, drift {drift}");
            assert_eq!(later, learned, "{case}: it ran dry again");
            assert!(left_max <= 3 * quantum as u64, "{case}: {left_max} frames wait for no pull");
        }
    }
}

#[test]
fn figures_name_what_was_lost() {
    let (mut far, key) = Far::open(Direction::In);
    let samples = bytes_of(&tone(0, QUANTUM));
    for position in [0, 3 * QUANTUM as u64] {
        far.partner.push(key, Far::message(Frames { spec: SPEC, position, samples: &samples })).unwrap();
    }
    let Ok(CtlReply::Report(report)) = far.partner.ctl(FlowKey::DEFAULT, Ctl::Report) else {
        panic!("no report")
    };
    let value = |name: &str| report.iter().find(|(known, _)| *known == name).map(|(_, value)| *value);
    assert_eq!(value("frames written"), Some(2.0 * QUANTUM as f64));
    assert_eq!(value("frames waiting"), Some(4.0 * QUANTUM as f64), "with the gap, for a player that begins");
    assert_eq!(value("frames lost before"), Some(2.0 * QUANTUM as f64));
    let readiness = far.partner.readiness(key, Direction::In);
    assert!(matches!(readiness, Readiness { now: true, .. }));
}

#[test]
fn targets_are_as_documented() {
    let card = |name: &str, device| Target::Card(name.into(), device);
    for (text, target) in [
        ("", Target::Both),
        ("mic", Target::Microphone),
        ("speaker", Target::Speaker),
        (
            "alsa_input.pci-0000_00_1f.3.analog-stereo",
            Target::Name("alsa_input.pci-0000_00_1f.3.analog-stereo".into()),
        ),
        ("hw:Loopback:1", card("Loopback", 1)),
        ("hw:0", card("0", 0)),
    ] {
        assert_eq!(Target::parse(text).unwrap(), target);
    }
    for wrong in ["hw:", "hw:a b", "hw:a:b", "hw:a,b", "hw:../x", "a\nb", &"x".repeat(200)] {
        assert!(Target::parse(wrong).is_err(), "{wrong:?}");
    }
}

#[test]
fn a_description_of_a_peer_is_checked() {
    let description = |properties: Vec<u8>| Description {
        class: "audio".into(),
        summary: String::new(),
        flows: super::flows(true, true),
        application: "audio",
        properties,
    };
    let name = wire::Writer::new().text("Sound\nof a\u{7} host").finish();
    assert_eq!(super::name_of(&description(name.clone())).unwrap(), "Soundof a host");
    assert_eq!(Audio.kind(&description(name)).unwrap(), Kind::Audio);
    for wrong in [vec![], vec![1], wire::Writer::new().text(&"x".repeat(129)).finish()] {
        assert!(Audio.kind(&description(wrong)).is_err());
    }
}
