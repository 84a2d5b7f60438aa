//! The protocol of spacenavd between the daemon and programs with libspnav, version 1 and, for older programs, version 0
//! (spacenavd's `src/proto.h`). Sans-IO.
//!
//! Everything that crosses the socket is a packet of eight `i32` in the host's byte order, except two words of four bytes: the
//! request for a version, and the sensitivity of version 0.

use wire::formats::motion::{AXES, BUTTONS_MAX, Motion, Update};

/// The length of a packet, bytes.
pub(super) const PACKET_BYTES: usize = 32;
/// The version that both ends of this program know.
pub(super) const VERSION: u32 = 1;
/// The path of the device in the answers of this program: its own socket is no device of the host.
pub(super) const OWN_PATH: &str = "outboard";
/// Longest name of a device, bytes.
pub(super) const NAME_BYTES_MAX: usize = 255;

/// Marks a request, and the word that requests a version.
const TAG: u32 = 0x7faa_0000;
const CHANGE_VERSION: u32 = TAG | 0x5500;
/// Bytes of a text in one packet, and the flag of a packet that is not its first.
const TEXT_BYTES: usize = 24;
const CONTINUED: u32 = 0x1_0000;

/// Kinds of events (`UEV_*`), and the bits of a program's mask for the first three.
mod event {
    pub(super) const MOTION: i32 = 0;
    pub(super) const PRESS: i32 = 1;
    pub(super) const RELEASE: i32 = 2;
    pub(super) const DEVICE: i32 = 3;
    pub(super) const MASK_MOTION: i32 = 1;
    pub(super) const MASK_BUTTON: i32 = 2;
    pub(super) const MASK_DEVICE: i32 = 4;
}

/// Requests (`REQ_*`).
pub(super) mod request {
    pub(crate) const NAME: u32 = 0x1000;
    pub(crate) const SET_SENSITIVITY: u32 = 0x1001;
    pub(crate) const SENSITIVITY: u32 = 0x1002;
    pub(crate) const SET_MASK: u32 = 0x1003;
    pub(crate) const MASK: u32 = 0x1004;
    pub(crate) const DEVICE_NAME: u32 = 0x2000;
    pub(crate) const DEVICE_PATH: u32 = 0x2001;
    pub(crate) const AXIS_COUNT: u32 = 0x2002;
    pub(crate) const BUTTON_COUNT: u32 = 0x2003;
    pub(crate) const IDS: u32 = 0x2004;
    pub(crate) const TYPE: u32 = 0x2005;
    pub(crate) const GLOBAL_SENSITIVITY: u32 = 0x3001;
    pub(crate) const AXIS_SENSITIVITY: u32 = 0x3003;
    pub(crate) const DEAD_ZONE: u32 = 0x3005;
    pub(crate) const INVERTED: u32 = 0x3007;
    pub(crate) const AXIS_MAP: u32 = 0x3009;
    pub(crate) const BUTTON_MAP: u32 = 0x300b;
    pub(crate) const BUTTON_ACTION: u32 = 0x300d;
    pub(crate) const KEY_MAP: u32 = 0x300f;
    pub(crate) const SWAPPED: u32 = 0x3011;
    pub(crate) const LED: u32 = 0x3013;
    pub(crate) const GRABBED: u32 = 0x3015;
    pub(crate) const SERIAL_PATH: u32 = 0x3017;
    pub(crate) const REPEAT: u32 = 0x3019;
}

/// One packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Packet(pub(super) [i32; PACKET_BYTES / 4]);

impl Packet {
    pub(super) fn from_bytes(bytes: &[u8; PACKET_BYTES]) -> Packet {
        let mut packet = Packet::default();
        let (words, _) = bytes.as_chunks::<4>();
        packet.0.iter_mut().zip(words).for_each(|(number, word)| *number = i32::from_ne_bytes(*word));
        packet
    }

    pub(super) fn to_bytes(self) -> [u8; PACKET_BYTES] {
        let mut bytes = [0; PACKET_BYTES];
        bytes
            .as_chunks_mut::<4>()
            .0
            .iter_mut()
            .zip(self.0)
            .for_each(|(word, number)| *word = number.to_ne_bytes());
        bytes
    }

    /// Returns a request without data.
    pub(super) fn request(kind: u32) -> Packet {
        let mut packet = Packet::default();
        packet.0[0] = (TAG | kind).cast_signed();
        packet
    }

    /// Returns true for the answer to this request.
    pub(super) fn answers(&self, kind: u32) -> bool {
        self.0[0].cast_unsigned() == TAG | kind
    }

    /// Returns the data of an answer, unless it reports a failure.
    pub(super) fn data(&self) -> Option<&[i32; 6]> {
        (self.0[7] >= 0).then(|| self.0[1..7].as_array()).flatten()
    }

    /// Returns the bytes of a text in this packet, and how many follow in further packets.
    pub(super) fn text(&self) -> Option<(Vec<u8>, usize)> {
        let left = usize::try_from(self.0[7]).ok()? & 0xffff;
        let here = left.min(TEXT_BYTES);
        Some((self.to_bytes()[4..4 + here].to_vec(), left - here))
    }
}

/// Returns the word that requests [`VERSION`]. The daemon answers with the version that it speaks; an older one does not answer.
pub(super) fn version_request() -> [u8; 4] {
    (CHANGE_VERSION | VERSION).to_ne_bytes()
}

/// Returns the version in an answer.
pub(super) fn version_in(word: [u8; 4]) -> Option<u32> {
    let word = u32::from_ne_bytes(word);
    (word & 0xffff_ff00 == CHANGE_VERSION).then_some(word & 0xff)
}

/// An event of the daemon.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Incoming {
    /// The cap or a button. The period of a motion is in milliseconds, as the daemon counts.
    Update(Update),
    /// The daemon has lost a device.
    DeviceLost,
    /// Anything else.
    Other,
}

impl Incoming {
    /// Parses an event.
    pub(super) fn parse(packet: &Packet) -> Incoming {
        let [kind, data @ ..] = packet.0;
        let button = |pressed| match u16::try_from(data[0]) {
            Ok(number) if number < BUTTONS_MAX => Incoming::Update(Update::Button { number, pressed }),
            _ => Incoming::Other,
        };
        match kind {
            event::MOTION => {
                let mut axes = [0; AXES];
                axes.copy_from_slice(&data[..AXES]);
                let period_us = u32::try_from(data[6]).unwrap_or(0).saturating_mul(1000);
                Incoming::Update(Update::Motion(Motion { axes, period_us }))
            }
            event::PRESS => button(true),
            event::RELEASE => button(false),
            event::DEVICE if data[0] == 1 => Incoming::DeviceLost,
            _ => Incoming::Other,
        }
    }
}

/// The device that programs see.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct Facts {
    pub(super) name: String,
    /// USB vendor and product; 0 if unknown.
    pub(super) ids: [u16; 2],
    pub(super) buttons: u16,
    /// spacenavd's number for the model.
    pub(super) model: u16,
}

/// A program's half of the protocol, as the daemon sees it.
///
/// | version | input | answer |
/// |---|---|---|
/// | 0 | the word that requests a version | the same word with the version; then version 1 |
/// | 0 | any other word | none: it is the sensitivity |
/// | 1 | a packet | a packet, or several with a text |
#[derive(Debug)]
pub(super) struct Program {
    version: u32,
    sensitivity: f32,
    mask: i32,
    /// The beginning of a word or packet.
    input: Vec<u8>,
}

impl Program {
    pub(super) fn new() -> Program {
        Program {
            version: 0,
            sensitivity: 1.0,
            mask: event::MASK_MOTION | event::MASK_BUTTON,
            input: Vec::new(),
        }
    }

    /// Takes bytes of the program. Appends the answers to `output`.
    pub(super) fn receive(&mut self, mut bytes: &[u8], facts: &Facts, output: &mut Vec<u8>) {
        while let Some((byte, rest)) = bytes.split_first() {
            self.input.push(*byte);
            bytes = rest;
            if self.version == 0
                && let Ok(word) = <[u8; 4]>::try_from(self.input.as_slice())
            {
                self.input.clear();
                self.receive_word(word, output);
            } else if let Ok(packet) = <&[u8; PACKET_BYTES]>::try_from(self.input.as_slice()) {
                let packet = Packet::from_bytes(packet);
                self.input.clear();
                self.answer(&packet, facts, output);
            }
        }
    }

    fn receive_word(&mut self, word: [u8; 4], output: &mut Vec<u8>) {
        match version_in(word) {
            Some(wanted) => {
                self.version = wanted.min(VERSION);
                if self.version > 0 {
                    self.mask |= event::MASK_DEVICE;
                }
                output.extend((CHANGE_VERSION | self.version).to_ne_bytes());
            }
            None => _ = self.set_sensitivity(f32::from_ne_bytes(word)),
        }
    }

    fn set_sensitivity(&mut self, sensitivity: f32) -> bool {
        if sensitivity.is_finite() {
            self.sensitivity = sensitivity;
        }
        sensitivity.is_finite()
    }

    /// Answers a request. The settings of the daemon belong to the device host: here they have their defaults, and no program can
    /// change them.
    fn answer(&mut self, asked: &Packet, facts: &Facts, output: &mut Vec<u8>) {
        use request::*;
        let Packet([kind, data @ ..]) = *asked;
        let one = f32::to_bits(1.0).cast_signed();
        let with = |values: &[(usize, i32)]| {
            let mut answer = *asked;
            values.iter().for_each(|(at, value)| answer.0[1 + at] = *value);
            Some(answer)
        };
        let known = |values: &[(usize, i32)], most: i32| match (0..most).contains(&data[0]) {
            true => with(values),
            false => None,
        };
        let axes = AXES as i32;
        let answer = match kind.cast_unsigned() & 0xffff {
            // The daemon does not answer it, and the name serves its log alone.
            NAME => return,
            DEVICE_NAME => return send_text(*asked, &facts.name, output),
            DEVICE_PATH => return send_text(*asked, OWN_PATH, output),
            SERIAL_PATH => return send_text(*asked, "", output),
            SET_SENSITIVITY => {
                let is_set = self.set_sensitivity(f32::from_bits(data[0].cast_unsigned()));
                is_set.then_some(*asked)
            }
            SENSITIVITY => with(&[(0, self.sensitivity.to_bits().cast_signed())]),
            SET_MASK => {
                self.mask = data[0];
                Some(*asked)
            }
            MASK => with(&[(0, self.mask)]),
            AXIS_COUNT => with(&[(0, axes)]),
            BUTTON_COUNT => with(&[(0, facts.buttons.into())]),
            IDS if facts.ids != [0, 0] => with(&[(0, facts.ids[0].into()), (1, facts.ids[1].into())]),
            TYPE => with(&[(0, facts.model.into())]),
            GLOBAL_SENSITIVITY => with(&[(0, one)]),
            AXIS_SENSITIVITY => with(&[0, 1, 2, 3, 4, 5].map(|axis| (axis, one))),
            INVERTED => with(&[0, 1, 2, 3, 4, 5].map(|axis| (axis, 0))),
            DEAD_ZONE => known(&[(1, 0)], axes),
            AXIS_MAP => known(&[(1, data[0])], axes),
            BUTTON_MAP => known(&[(1, data[0])], BUTTONS_MAX.into()),
            BUTTON_ACTION | KEY_MAP => known(&[(1, 0)], BUTTONS_MAX.into()),
            SWAPPED => with(&[(0, 0)]),
            LED | GRABBED => with(&[(0, 1)]),
            REPEAT => with(&[(0, -1)]),
            _ => None,
        };
        let is_done = answer.is_some();
        let mut answer = answer.unwrap_or(*asked);
        answer.0[7] = if is_done { 0 } else { -1 };
        output.extend(answer.to_bytes());
    }

    /// Returns the event for this program, unless its mask excludes it.
    pub(super) fn event(&self, change: &Change) -> Option<Packet> {
        let mut packet = Packet::default();
        match *change {
            Change::Motion { axes, period_ms } => {
                packet.0[0] = event::MOTION;
                for (into, axis) in packet.0[1..].iter_mut().zip(axes) {
                    // As the daemon computes it, towards zero.
                    *into = (axis as f32 * self.sensitivity) as i32;
                }
                packet.0[7] = i32::try_from(period_ms).unwrap_or(i32::MAX);
                (self.mask & event::MASK_MOTION != 0).then_some(packet)
            }
            Change::Button { number, pressed } => {
                packet.0[0] = if pressed { event::PRESS } else { event::RELEASE };
                packet.0[1] = number.into();
                packet.0[2] = pressed.into();
                (self.mask & event::MASK_BUTTON != 0).then_some(packet)
            }
        }
    }
}

/// A change that programs see.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Change {
    Motion { axes: [i32; AXES], period_ms: u32 },
    Button { number: u16, pressed: bool },
}

/// Appends a text in as many packets as it needs.
fn send_text(mut packet: Packet, text: &str, output: &mut Vec<u8>) {
    let mut left = &text.as_bytes()[..text.floor_char_boundary(NAME_BYTES_MAX)];
    let mut flag = 0;
    loop {
        let (here, rest) = left.split_at(left.len().min(TEXT_BYTES));
        packet.0[7] = left.len() as i32 | flag;
        let mut bytes = packet.to_bytes();
        bytes[4..4 + TEXT_BYTES].fill(0);
        bytes[4..4 + here.len()].copy_from_slice(here);
        output.extend(bytes);
        (left, flag) = (rest, CONTINUED.cast_signed());
        if left.is_empty() {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn facts() -> Facts {
        Facts {
            name: "A SpaceNavigator with a name of 3Dconnexion".into(),
            ids: [0x46d, 0xc626],
            buttons: 2,
            model: 6,
        }
    }

    fn answers(program: &mut Program, bytes: &[u8]) -> Vec<u8> {
        let mut output = Vec::new();
        program.receive(bytes, &facts(), &mut output);
        output
    }

    /// A program that has changed to version 1.
    fn program() -> Program {
        let mut program = Program::new();
        assert_eq!(answers(&mut program, &version_request()), version_request());
        program
    }

    fn ask(program: &mut Program, packet: Packet) -> Packet {
        let output = answers(program, &packet.to_bytes());
        Packet::from_bytes(output.as_slice().try_into().unwrap())
    }

    #[test]
    fn a_newer_program_gets_the_version_that_is_known() {
        let mut program = Program::new();
        let answer = answers(&mut program, &(CHANGE_VERSION | 9).to_ne_bytes());
        assert_eq!(answer, version_request());
    }

    #[test]
    fn a_program_of_version_0_sets_its_sensitivity() {
        let mut program = Program::new();
        for (word, x) in [(0.5_f32, 50), (f32::NAN, 50), (-2.0, -200)] {
            assert!(answers(&mut program, &word.to_ne_bytes()).is_empty());
            let change = Change::Motion { axes: [100, 0, 0, 0, 0, 0], period_ms: 16 };
            assert_eq!(program.event(&change), Some(Packet([0, x, 0, 0, 0, 0, 0, 16])));
        }
    }

    #[test]
    fn requests_about_the_device_are_answered() {
        let mut program = program();
        for (kind, data) in [
            (request::AXIS_COUNT, [6, 0]),
            (request::BUTTON_COUNT, [2, 0]),
            (request::IDS, [0x46d, 0xc626]),
            (request::TYPE, [6, 0]),
        ] {
            let answer = ask(&mut program, Packet::request(kind));
            assert!(answer.answers(kind));
            assert_eq!(answer.data().map(|all| [all[0], all[1]]), Some(data));
        }
    }

    #[test]
    fn a_long_name_takes_several_packets() {
        let output = answers(&mut program(), &Packet::request(request::DEVICE_NAME).to_bytes());
        let mut name = Vec::new();
        for packet in output.as_chunks::<PACKET_BYTES>().0 {
            name.extend(Packet::from_bytes(packet).text().unwrap().0);
        }
        assert_eq!(String::from_utf8(name).unwrap(), facts().name);
        assert_eq!(output.len(), 2 * PACKET_BYTES);
    }

    #[test]
    fn settings_are_read_only() {
        let mut program = program();
        for kind in [0x3000, 0x3008, 0x3012, 0x3ffe, 0x3fff, 0x2fff] {
            assert_eq!(ask(&mut program, Packet::request(kind)).data(), None, "{kind:x}");
        }
        let mut beyond = Packet::request(request::AXIS_MAP);
        beyond.0[1] = 6;
        assert_eq!(ask(&mut program, beyond).data(), None);
    }

    #[test]
    fn a_mask_selects_events() {
        let mut program = program();
        let mut mask = Packet::request(request::SET_MASK);
        mask.0[1] = event::MASK_BUTTON;
        assert!(ask(&mut program, mask).data().is_some());
        assert_eq!(program.event(&Change::Motion { axes: [1; AXES], period_ms: 1 }), None);
        let press = Change::Button { number: 3, pressed: true };
        assert_eq!(program.event(&press), Some(Packet([1, 3, 1, 0, 0, 0, 0, 0])));
    }

    proptest! {
        #[test]
        fn events_survive_both_directions(axes: [i16; AXES], ms in 0u32..4_000_000, number in 0..BUTTONS_MAX, pressed: bool) {
            let axes = axes.map(i32::from);
            let program = Program::new();
            let motion = program.event(&Change::Motion { axes, period_ms: ms }).unwrap();
            let update = Update::Motion(Motion { axes, period_us: ms * 1000 });
            prop_assert_eq!(Incoming::parse(&Packet::from_bytes(&motion.to_bytes())), Incoming::Update(update));
            let button = program.event(&Change::Button { number, pressed }).unwrap();
            prop_assert_eq!(Incoming::parse(&button), Incoming::Update(Update::Button { number, pressed }));
        }

        #[test]
        fn any_input_is_answered_within_bounds(bytes: Vec<u8>) {
            let mut program = Program::new();
            let mut output = Vec::new();
            program.receive(&bytes, &facts(), &mut output);
            prop_assert!(program.input.len() < PACKET_BYTES && output.len() <= 4 * bytes.len());
        }
    }
}
