//! Force-feedback effects (`struct ff_effect`), without its union: the parameters of every kind are 16-bit
//! words.

use super::code;

/// Parameters, in words, of the largest kind of effect: two axes of a condition, six each.
pub const EFFECT_PARAMETERS_MAX: usize = 12;

/// An effect, as an application uploads it. Times are in milliseconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Effect {
    /// `FF_RUMBLE`, `FF_PERIODIC` and so on.
    pub kind: u16,
    /// Its number on the device; -1 requests a new one.
    pub id: i16,
    /// The direction that the force comes from: 0x4000 is a quarter turn.
    pub direction: u16,
    /// The button that starts it.
    pub trigger_button: u16,
    /// The shortest time between two starts by the button.
    pub trigger_interval_ms: u16,
    /// How long it plays; 0 means for ever.
    pub length_ms: u16,
    /// The delay before it plays.
    pub delay_ms: u16,
    /// The parameters of this kind, in the order of `linux/input.h`; an envelope's four come last. Unused ones
    /// are 0. Custom waveforms are not supported.
    pub parameters: [u16; EFFECT_PARAMETERS_MAX],
}

/// The number of parameters of a kind of effect; `None` for an unknown kind.
pub fn effect_parameters(kind: u16) -> Option<usize> {
    Some(match kind {
        code::FF_RUMBLE => 2,
        code::FF_CONSTANT => 5,
        code::FF_RAMP => 6,
        code::FF_PERIODIC => 9,
        code::FF_SPRING..=code::FF_INERTIA => 12,
        _ => return None,
    })
}

/// The length of the kernel's union in words: that of a periodic effect, with the pointer at its end.
const UNION_WORDS: usize = 12 + size_of::<usize>() / 2;

/// `struct ff_effect`.
#[derive(Debug, Clone, Copy, Default)]
#[repr(C)]
pub(super) struct KernelEffect {
    kind: u16,
    pub(super) id: i16,
    direction: u16,
    trigger: [u16; 2],
    replay: [u16; 2],
    parameters: Union,
}

#[derive(Debug, Clone, Copy, Default)]
#[repr(C)]
struct Union {
    /// Aligned like the pointer that one of its kinds holds.
    align: [usize; 0],
    words: [u16; UNION_WORDS],
}

const _: () = assert!(size_of::<KernelEffect>() == size_of::<libc::ff_effect>());

impl From<&Effect> for KernelEffect {
    /// The words after the parameters stay 0: a custom waveform without samples and with a null pointer.
    fn from(effect: &Effect) -> Self {
        let mut words = [0; UNION_WORDS];
        let count = effect_parameters(effect.kind).unwrap_or(0);
        words[..count].copy_from_slice(&effect.parameters[..count]);
        KernelEffect {
            kind: effect.kind,
            id: effect.id,
            direction: effect.direction,
            trigger: [effect.trigger_button, effect.trigger_interval_ms],
            replay: [effect.length_ms, effect.delay_ms],
            parameters: Union { align: [], words },
        }
    }
}

impl KernelEffect {
    /// Returns the effect, if its kind is known.
    pub(super) fn effect(&self) -> Option<Effect> {
        let mut parameters = [0; EFFECT_PARAMETERS_MAX];
        let count = effect_parameters(self.kind)?;
        parameters[..count].copy_from_slice(&self.parameters.words[..count]);
        Some(Effect {
            kind: self.kind,
            id: self.id,
            direction: self.direction,
            trigger_button: self.trigger[0],
            trigger_interval_ms: self.trigger[1],
            length_ms: self.replay[0],
            delay_ms: self.replay[1],
            parameters,
        })
    }
}
