use super::header::{Header, channels, rate};
use super::probe::{self, BURST, Control, MARKER};
use super::*;
use crate::sound::tests::{segmental_snr_db, tone, voice};
use crate::sound::{Sound, duration, frames_in};
use contract::{Body, Feedback, Half, Message, Outbox, Port, StageError, Time};
use proptest::prelude::*;
use std::time::Duration;
use testkit::stage::conforms;
use wire::formats::audio::{SampleFormat, SampleSpec};

const MONO: SampleSpec = SampleSpec { format: SampleFormat::S16, channels: 1, rate_hz: 48_000 };
const START: Time = Time::from_millis(1000);

#[test]
fn it_conforms() {
    for given in [&[][..], &[("kbits", "6")], &[("kbits", "510")], &[("when", "needed")]] {
        conforms(&Opus, given, &Format::Audio);
    }
}

fn half(half: Half) -> Box<dyn Stage> {
    let options = Options::defaults(Opus.options()).unwrap();
    Opus.half(half, &options, &Format::Audio, &Site::default()).unwrap()
}

/// The packets of `samples`, in quanta of `quantum` frames; the source half has been told of `loss`.
fn packets(spec: &SampleSpec, samples: &[f32], quantum: usize, loss: f64) -> Vec<Message> {
    let (mut source, mut out) = (half(Half::Source), Outbox::default());
    let feedback = Feedback {
        received: 1000 - (loss * 1000.0) as u64,
        lost: (loss * 1000.0) as u64,
        ..Feedback::default()
    };
    for _ in 0..30 {
        source.handle_feedback(&feedback, START, &mut out).unwrap();
    }
    for (number, part) in samples.chunks(quantum * usize::from(spec.channels)).enumerate() {
        let created = START.after(duration(spec, number * quantum));
        let sound = Sound { spec: *spec, position: (number * quantum) as u64, samples: part.to_vec() };
        source.handle(Port::MAIN, sound.into_message(created), created, &mut out).unwrap();
    }
    source.handle_end(Port::MAIN, START, &mut out).unwrap();
    out.messages.into_iter().map(|(_, message)| message).collect()
}

/// The decoded sound of these packets, each sample at its creation time.
fn decoded(
    spec: &SampleSpec,
    packets: impl IntoIterator<Item = Message>,
    frames: usize,
) -> (Vec<f32>, Box<dyn Stage>) {
    let (mut sink, mut out) = (half(Half::Sink), Outbox::default());
    for packet in packets {
        sink.handle(Port::MAIN, packet, START, &mut out).unwrap();
    }
    let mut samples = vec![0.0; frames];
    for (_, message) in out.messages {
        let sound = Sound::parse(&message.body).unwrap();
        assert_eq!(sound.spec, *spec);
        let seconds = message.created.signed_since(START) as f64 / 1e9;
        let first = (seconds * f64::from(spec.rate_hz)).round() as i64;
        for (frame, values) in sound.samples.chunks(usize::from(spec.channels)).enumerate() {
            if let Ok(at) = usize::try_from(first + frame as i64)
                && let Some(sample) = samples.get_mut(at)
            {
                *sample = values[0];
            }
        }
    }
    (samples, sink)
}

fn figure(stage: &dyn Stage, name: &str) -> f64 {
    stage.report().iter().find(|(known, _)| *known == name).unwrap().1
}

#[test]
fn sound_leaves_at_its_time_and_as_it_was() {
    for (channels, quantum, kbits) in [(1, 240, 32), (2, 240, 96), (1, 128, 32), (2, 1024, 96)] {
        let spec = SampleSpec { channels, ..MONO };
        let samples = tone(&spec, 0, 48_000);
        let packets = packets(&spec, &samples, quantum, 0.0);
        let bytes: usize = packets.iter().map(|packet| packet.body.len() - header::BYTES).sum();
        assert!(bytes < kbits * 1000 / 8 * 3 / 2, "{channels} channels: {bytes} bytes in a second");
        let (heard, _) = decoded(&spec, packets, 48_000);
        let sent: Vec<f32> = samples.iter().step_by(channels.into()).copied().collect();
        let snr = segmental_snr_db(&sent[4800..43_200], &heard[4800..43_200], 48_000);
        assert!(snr > 12.0, "{channels} channels, {quantum} frames: {snr} dB");
    }
}

/// The level of sound in decibels of full scale, at least -70.
fn level_db(samples: &[f32]) -> f32 {
    let power = samples.iter().map(|value| value.powi(2)).sum::<f32>() / samples.len() as f32;
    (10.0 * power.log10()).max(-70.0)
}

#[test]
fn lost_packets_are_restored_or_concealed() {
    let samples = voice(&MONO, 6.0);
    let mut random = crate::random::Random::new(7);
    for loss in [0.01, 0.05] {
        let sent = packets(&MONO, &samples, 480, loss);
        let kept: Vec<bool> = sent.iter().map(|_| !random.chance(loss)).collect();
        let arrived = sent.iter().zip(&kept).filter(|(_, kept)| **kept).map(|(packet, _)| packet.clone());
        let (heard, sink) = decoded(&MONO, arrived, samples.len());
        assert!(figure(&*sink, "restored") > 0.0, "{loss}: FEC restored nothing");
        // The parts of the speech that were lost, without those of silence.
        let lost = sent.iter().zip(&kept).filter(|(_, kept)| !**kept).filter_map(|(packet, _)| {
            let first = packet.created.signed_since(START) * 48 / 1_000_000;
            let part = usize::try_from(first).ok()?..usize::try_from(first).ok()? + 480;
            let [sent, heard] = [samples.get(part.clone())?, heard.get(part)?].map(level_db);
            (sent > -40.0).then_some((sent - heard).abs())
        });
        let differences: Vec<f32> = lost.collect();
        let mean = differences.iter().sum::<f32>() / differences.len() as f32;
        assert!(mean < 6.0, "{loss}: what was lost is {mean} dB louder or quieter: {differences:?}");
    }
}

#[test]
fn a_burst_of_losses_is_a_gap_that_begins_and_ends_softly() {
    let samples = tone(&MONO, 0, 48_000);
    let sent = packets(&MONO, &samples, 480, 0.0);
    let arrived = sent.iter().enumerate().filter(|(number, _)| !(30..50).contains(number));
    let (heard, sink) = decoded(&MONO, arrived.map(|(_, packet)| packet.clone()), samples.len());
    assert!(figure(&*sink, "concealed") >= 7.0 && figure(&*sink, "restored") == 1.0);
    let energy = |range: std::ops::Range<usize>| heard[range].iter().map(|value| value.powi(2)).sum::<f32>();
    assert!(energy(14_400..14_880) > 10.0 * energy(18_240..18_720), "it fades");
    assert!(energy(28_800..29_280) > 10.0, "it goes on");
}

#[test]
fn late_packets_are_dropped_and_a_new_source_begins_anew() {
    let sent = packets(&MONO, &tone(&MONO, 0, 24_000), 480, 0.0);
    let (mut sink, mut out) = (half(Half::Sink), Outbox::default());
    for number in [0, 1, 3, 2, 4] {
        sink.handle(Port::MAIN, sent[number].clone(), START, &mut out).unwrap();
    }
    assert_eq!(out.drops.iter().map(|drop| drop.count).sum::<u64>(), 1);
    let positions = |out: &mut Outbox| -> Vec<u64> {
        let sounds = out.messages.drain(..).map(|(_, message)| Sound::parse(&message.body).unwrap());
        sounds.map(|sound| sound.position).collect()
    };
    assert_eq!(positions(&mut out), [0, 480, 960, 1440, 1920]);
    let mut far = sent[5].clone();
    let mut header = far.body.take_front::<{ header::BYTES }>().unwrap();
    header[2..].copy_from_slice(&0x9000_0000u32.to_le_bytes());
    far.body.push_front(&header);
    sink.handle(Port::MAIN, far, START, &mut out).unwrap();
    assert_eq!(positions(&mut out), [0x9000_0000]);
}

/// The packet as it is after a pause of the source.
fn after_pause(mut packet: Message, pause: Duration) -> Message {
    let header = packet.body.take_front::<{ header::BYTES }>().unwrap();
    let header = Header::parse(header).unwrap();
    let position = header.position.wrapping_add(frames_in(&header.spec, pause) as u32);
    packet.body.push_front(&Header { position, ..header }.emit());
    packet.created = packet.created.after(pause);
    packet
}

/// A headset that is plugged in again, or a node that no program has used for some time.
#[test]
fn nothing_is_concealed_after_a_pause_of_the_source() {
    let sent = packets(&MONO, &tone(&MONO, 0, 24_000), 480, 0.0);
    for (pause_s, is_concealed) in [(9, true), (11, false), (3600, false)] {
        let pause = Duration::from_secs(pause_s);
        let (mut sink, mut out) = (half(Half::Sink), Outbox::default());
        sent[..20].iter().for_each(|packet| {
            sink.handle(Port::MAIN, packet.clone(), START, &mut out).unwrap();
        });
        out.messages.clear();
        sink.handle(Port::MAIN, after_pause(sent[20].clone(), pause), START, &mut out).unwrap();
        let made = figure(&*sink, "concealed") + figure(&*sink, "restored");
        assert_eq!(made > 0.0, is_concealed, "{pause_s} s");
        let (_, last) = out.messages.back().unwrap();
        let position = Sound::parse(&last.body).unwrap().position;
        assert_eq!(position, 20 * 480 + pause_s * 48_000);
        assert_eq!(last.created, after_pause(sent[20].clone(), pause).created);
        assert_eq!(out.messages.len() > 1, is_concealed, "{pause_s} s");
    }
}

#[test]
fn other_rates_are_converted_and_many_channels_pass() {
    let spec = SampleSpec { format: SampleFormat::F32, channels: 2, rate_hz: 44_100 };
    let sent = packets(&spec, &tone(&spec, 0, 44_100), 441, 0.0);
    let at_48_khz = SampleSpec { rate_hz: 48_000, ..spec };
    let (heard, _) = decoded(&at_48_khz, sent, 48_000);
    let expected: Vec<f32> = tone(&at_48_khz, 0, 48_000).into_iter().step_by(2).collect();
    let snr = segmental_snr_db(&expected[9600..43_200], &heard[9600..43_200], 48_000);
    assert!(snr > 10.0, "{snr} dB");
    let surround = SampleSpec { channels: 6, ..MONO };
    let sound = Sound { spec: surround, position: 9, samples: vec![0.25; 6 * 256] }.into_message(START);
    let (mut source, mut out) = (half(Half::Source), Outbox::default());
    source.handle(Port::MAIN, sound.clone(), START, &mut out).unwrap();
    let (_, plain) = out.messages.pop_front().unwrap();
    assert_eq!(plain.body.peek_front(), Some([PLAIN]));
    half(Half::Sink).handle(Port::MAIN, plain, START, &mut out).unwrap();
    assert_eq!(out.messages.pop_front().unwrap().1, sound);
}

#[test]
fn the_rate_falls_while_sound_waits_for_the_network() {
    let (mut source, mut out) = (half(Half::Source), Outbox::default());
    let stereo = SampleSpec { channels: 2, ..MONO };
    let sound = Sound { spec: stereo, position: 0, samples: vec![0.0; 960] }.into_message(START);
    source.handle(Port::MAIN, sound, START, &mut out).unwrap();
    let kbits = |source: &dyn Stage| source.choices()[0].value.clone();
    assert_eq!(kbits(&*source), contract::Value::Integer(96));
    let waiting = Feedback { received: 50, waiting_bytes: 100_000, ..Feedback::default() };
    for _ in 0..20 {
        source.handle_feedback(&waiting, START, &mut out).unwrap();
    }
    assert_eq!(kbits(&*source), contract::Value::Integer(32));
    for _ in 0..100 {
        source.handle_feedback(&Feedback { received: 50, ..Feedback::default() }, START, &mut out).unwrap();
    }
    assert_eq!(kbits(&*source), contract::Value::Integer(96));
}

const QUANTUM: usize = 128;

/// A source half with `when=needed`, and one quantum of sound after the other.
struct Changing {
    source: Box<dyn Stage>,
    samples: Vec<f32>,
    number: usize,
}

impl Changing {
    fn new(samples: Vec<f32>) -> Changing {
        let options = Options::check(Opus.options(), [("when", "needed")]).unwrap();
        let source = Opus.half(Half::Source, &options, &Format::Audio, &Site::default()).unwrap();
        Changing { source, samples, number: 0 }
    }

    /// Sends `quanta` quanta; each 250 ms the sink's host reports `feedback`. The link is fast.
    fn send(&mut self, quanta: usize, feedback: &Feedback) -> Vec<Message> {
        let (mut out, mut sent) = (Outbox::default(), Vec::new());
        for _ in 0..quanta {
            let first = self.number * QUANTUM;
            let now = START.after(duration(&MONO, first));
            let samples = self.samples.iter().cycle().skip(first % self.samples.len()).take(QUANTUM);
            let sound = Sound { spec: MONO, position: first as u64, samples: samples.copied().collect() };
            self.source.handle(Port::MAIN, sound.into_message(now), now, &mut out).unwrap();
            self.number += 1;
            if self.number.is_multiple_of(94) {
                self.source.handle_feedback(feedback, now, &mut out).unwrap();
            }
            for (_, message) in out.messages.split_off(0) {
                match message.body.peek_front() {
                    Some([MARKER]) => {}
                    Some([BURST]) => {
                        let answer = Control::Spread(Duration::from_millis(1)).emit();
                        self.source.handle_control(&answer, now, &mut out).unwrap();
                    }
                    _ => sent.push(message),
                }
            }
        }
        sent
    }
}

#[test]
fn sound_is_coded_while_needed_and_the_changes_leave_no_trace() {
    let mut changing = Changing::new(tone(&MONO, 0, 48_000));
    let quiet = Feedback { received: 94, ..Feedback::default() };
    let lossy = Feedback { received: 90, lost: 4, ..Feedback::default() };
    let beginning = changing.send(375 * 13, &quiet);
    let is_plain = |message: &Message| message.body.peek_front() == Some([PLAIN]);
    assert!(!is_plain(&beginning[0]) && is_plain(beginning.last().unwrap()), "coded until the link is known");
    let first = (changing.number * QUANTUM) as u64;
    let mut sent = changing.send(375, &quiet);
    assert!(sent.iter().all(is_plain));
    sent.extend(changing.send(375, &lossy));
    let coded = sent.iter().filter(|message| message.body.peek_front() != Some([PLAIN])).count();
    assert!(coded > 0, "three reports of losses");
    // The wait, and the return of the times: at a thousandth of the elapsed time.
    sent.extend(changing.send(375 * 50, &quiet));
    let last = sent.last().unwrap();
    assert_eq!(last.body.peek_front(), Some([PLAIN]), "30 s after the last loss");
    let last_at = START.after(duration(&MONO, (changing.number - 1) * QUANTUM));
    assert_eq!(last.created, last_at, "the times are exact again");

    let (mut sink, mut out) = (half(Half::Sink), Outbox::default());
    for message in sent {
        sink.handle(Port::MAIN, message, START, &mut out).unwrap();
    }
    assert_eq!(out.drops.len(), 0);
    let (mut heard, mut next_at) = (Vec::new(), None::<Time>);
    for (_, message) in out.messages {
        let sound = Sound::parse(&message.body).unwrap();
        assert_eq!(sound.position, first + heard.len() as u64, "no gap and no repeat");
        let next = message.created.after(duration(&MONO, sound.frames()));
        if let Some(at) = next_at.replace(next) {
            let jump = message.created.signed_since(at);
            // A change to packets delays by a packet, less a quantum, and by the codec; nothing else moves by more than rounding.
            assert!((-20_000..15_000_000).contains(&jump), "{jump} ns at {}", sound.position);
        }
        heard.extend(sound.samples);
    }
    let expected: Vec<f32> = changing.samples.iter().cycle().copied().take(heard.len()).collect();
    let frames = heard.len() / 480 * 480;
    let worst = (0..frames / 480).map(|part| {
        let part = part * 480..part * 480 + 480;
        let noise = expected[part.clone()].iter().zip(&heard[part.clone()]).map(|(a, b)| (a - b).powi(2));
        (noise.sum::<f32>() / expected[part.clone()].iter().map(|a| a.powi(2)).sum::<f32>(), part.start)
    });
    let (worst, at) = worst.max_by(|one, other| one.0.total_cmp(&other.0)).unwrap();
    // As much as the codec itself makes; a jump would be as loud as the tone.
    assert!(worst < 0.3, "noise of {worst} at {at}");
}

/// A picture of the same time is in step with the sound.
#[test]
fn the_times_of_coded_sound_are_exact_at_the_beginning_and_become_so_after_a_change() {
    let quiet = Feedback { received: 94, ..Feedback::default() };
    let lossy = Feedback { received: 90, lost: 4, ..Feedback::default() };
    let mut changing = Changing::new(tone(&MONO, 0, 48_000));
    let later_ns = |sent: Vec<Message>| {
        let (mut sink, mut out) = (half(Half::Sink), Outbox::default());
        for message in sent {
            assert_ne!(message.body.peek_front(), Some([PLAIN]));
            sink.handle(Port::MAIN, message, START, &mut out).unwrap();
        }
        let (_, last) = out.messages.back().unwrap();
        // A codec that has heard nothing begins before the sound does: at a position below 0, of 32 bits.
        let position = i64::from((Sound::parse(&last.body).unwrap().position as u32).cast_signed());
        last.created.signed_since(START) - position * 1_000_000_000 / i64::from(MONO.rate_hz)
    };
    let beginning = later_ns(changing.send(375, &quiet));
    assert!(beginning.abs() < 50_000, "{beginning} ns");
    assert_eq!(changing.send(375 * 13, &quiet).last().unwrap().body.peek_front(), Some([PLAIN]));
    changing.send(375, &lossy);
    let change = later_ns(changing.send(37, &lossy));
    assert!((10_000_000..15_000_000).contains(&change), "{change} ns");
    changing.send(375 * 15, &lossy);
    let at_last = later_ns(changing.send(37, &lossy));
    assert!(at_last.abs() < 50_000, "{at_last} ns");
}

#[test]
fn a_host_without_the_codec_receives_sound_as_it_is() {
    let mut changing = Changing::new(tone(&MONO, 0, 48_000));
    let lossy = Feedback { received: 90, lost: 4, ..Feedback::default() };
    let mut sink = plain::Sink::default();
    let mut out = Outbox::default();
    // Four quanta are a packet.
    for message in changing.send(4, &lossy) {
        sink.handle(Port::MAIN, message, START, &mut out).unwrap();
    }
    let [control] = &out.controls[..] else { panic!("one control message") };
    changing.source.handle_control(control, START, &mut Outbox::default()).unwrap();
    for message in changing.send(3750, &lossy) {
        assert_eq!(message.body.peek_front(), Some([PLAIN]));
        sink.handle(Port::MAIN, message, START, &mut out).unwrap();
    }
    assert!(
        out.messages.len() >= 3750 && out.drops.len() <= 1,
        "{} and {}",
        out.messages.len(),
        out.drops.len()
    );
}

#[test]
fn a_probe_measures_the_link() {
    let (mut sink, mut out) = (half(Half::Sink), Outbox::default());
    let mut at = START;
    for spread in [Duration::from_millis(40), Duration::ZERO] {
        for message in probe::messages(at) {
            sink.handle(Port::MAIN, message, at, &mut out).unwrap();
            at = at.after(spread);
        }
    }
    assert_eq!(out.controls, [vec![1, 0xc0, 0xb8, 0x02], vec![1, 1]]);
    let [_, burst] = probe::messages(at);
    sink.handle(Port::MAIN, burst, at, &mut out).unwrap();
    assert_eq!((out.controls.len(), out.messages.len()), (2, 0), "no marker came before this burst");
    assert_eq!(Control::parse(&out.controls[0]), Ok(Control::Spread(Duration::from_millis(40))));
    assert_eq!(probe::bytes_a_second(Duration::from_millis(40)).round(), 95_000.0);
    for malformed in [&[][..], &[1], &[0, 1], &[1, 0x80], &[2]] {
        assert!(Control::parse(malformed).is_err(), "{malformed:?}");
    }
}

#[test]
fn header_layout() {
    let spec = SampleSpec { format: SampleFormat::F32, channels: 2, rate_hz: 48_000 };
    let header = Header { spec, position: 0x0403_0201 };
    assert_eq!(header.emit(), [1, 0b10_0101, 1, 2, 3, 4]);
    for rate_hz in [8000, 12_000, 16_000, 24_000, 48_000] {
        for (channels, format) in [(1, SampleFormat::S16), (2, SampleFormat::S32), (2, SampleFormat::F32)] {
            let header = Header { spec: SampleSpec { format, channels, rate_hz }, position: 77 };
            assert_eq!(Header::parse(header.emit()), Some(header));
        }
    }
    assert_eq!(Header::parse([1, 0b0000_0110, 0, 0, 0, 0]), None);
    assert_eq!(Header::parse([1, 5 << 3, 0, 0, 0, 0]), None);
    assert_eq!((rate(44_100).is_none(), channels(3).is_none()), (true, true));
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    /// Any packets of a peer: an error, or sound of a bounded length.
    #[test]
    fn any_packet_is_decoded_or_refused(
        packets in prop::collection::vec((any::<u8>(), any::<u32>(), prop::collection::vec(any::<u8>(), 0..300)), 1..20),
    ) {
        let (mut sink, mut out) = (half(Half::Sink), Outbox::default());
        for (properties, position, packet) in packets {
            let mut body = Body::from(packet);
            let [a, b, c, d] = position.to_le_bytes();
            body.push_front(&[1, properties % 40, a, b, c, d]);
            match sink.handle(Port::MAIN, Message::new(START, body), START, &mut out) {
                Ok(()) | Err(StageError::Input(_)) => {}
                Err(error) => prop_assert!(false, "{error}"),
            }
            let frames: usize = out.messages.drain(..).map(|(_, m)| Sound::parse(&m.body).unwrap().frames()).sum();
            prop_assert!(frames <= 48_000 / 1000 * 320, "{frames} frames of one packet");
        }
    }
}
