//! Devices of ALSA: for hosts without PipeWire, for desktops where PulseAudio has the sound, and for programs that know ALSA alone.
//!
//! A node for programs is one half of snd-aloop: Outboard uses its device 1, programs use its device 0.
//!
//! One loop waits for the control socket, the device that records and the device that plays. `plughw` converts rate, format and
//! channels if the device has others than Outboard; it is the device itself if not.

use super::engine::{Other, Started, ThreadEnd};
use super::memory::Word;
use super::player::Player;
use super::recorder::Recorder;
use super::{CHANNELS, FRAME_BYTES, Facts, Frame, Plan, QUANTUM_FRAMES, RATE_HZ, SPEC, Target};
use crate::plain::os;
use ::alsa as lib;
use contract::{DeviceError, Listing, Role};
use lib::pcm::{Access, Format, HwParams, PCM, State};
use lib::poll::{Descriptors, pollfd};
use lib::{Direction, ValueOr};
use std::io;
use std::os::fd::AsRawFd;
use sys::clock::boot_ns;
use wire::formats::audio::FRAMES_MAX;

/// The card of snd-aloop, and its device for Outboard.
const LOOPBACK: (&str, u32) = ("Loopback", 1);
/// The quanta that the device holds at most: a device that plays is this late.
const QUANTA: u32 = 4;
/// The wait for a device, so that a device that says nothing is checked too.
const WAIT_MS: i32 = 1000;

/// The problems with a name of PipeWire: no server answers, or it has no sound.
const NO_PIPEWIRE: &str = "no PipeWire server answers, so only devices of ALSA can be used: `audio:hw:CARD`; \
                           a service of the user, not of the system, reaches PipeWire (docs/guide/sound.md)";
const PULSEAUDIO: &str = "PulseAudio has the sound of this desktop, not PipeWire: share its default devices \
                          as `audio`, or a device of ALSA as `audio:hw:CARD`";

/// Returns the plan for a host whose sound PipeWire does not carry: the default devices of ALSA, or snd-aloop for programs.
pub(super) fn replaced(plan: Plan) -> Result<Plan, DeviceError> {
    match (plan.role, &plan.target) {
        (Role::Application, _) => {
            let (card, device) = LOOPBACK;
            Ok(Plan { target: Target::Card(card.into(), device), ..plan })
        }
        (Role::Device, Target::Name(name)) => {
            let problem = if sys::sound_server::pulseaudio_runs() { PULSEAUDIO } else { NO_PIPEWIRE };
            Err(DeviceError::Spec { what: format!("audio:{name}"), problem: problem.into() })
        }
        (Role::Device, _) => Ok(plan),
    }
}

/// Returns the name of the device for the library.
fn device_name(target: &Target) -> String {
    match target {
        Target::Card(card, device) => format!("plughw:CARD={card},DEV={device}"),
        _ => "default".into(),
    }
}

fn failed(name: &str, error: lib::Error) -> DeviceError {
    let errno = error.errno();
    let advice = match errno {
        libc::EBUSY => "another program has it alone: `fuser -v /dev/snd/*` shows which",
        libc::EACCES | libc::EPERM => "join the group that owns it, usually `audio`",
        _ if name.contains(LOOPBACK.0) => {
            "sudo modprobe snd-aloop; or let PipeWire carry the sound (package pipewire-pulse)"
        }
        _ => "`cat /proc/asound/cards` lists the cards, `aplay -l` their devices",
    };
    os(format!("opening the ALSA device {name}"), io::Error::from_raw_os_error(errno), Some(advice))
}

/// Opens a device with Outboard's format.
fn open(name: &str, direction: Direction) -> lib::Result<PCM> {
    let pcm = PCM::new(name, direction, true)?;
    {
        let hardware = HwParams::any(&pcm)?;
        hardware.set_access(Access::RWInterleaved)?;
        hardware.set_format(Format::S16LE)?;
        hardware.set_channels(CHANNELS as u32)?;
        hardware.set_rate(RATE_HZ, ValueOr::Nearest)?;
        hardware.set_period_size_near(QUANTUM_FRAMES.into(), ValueOr::Nearest)?;
        hardware.set_buffer_size_near((QUANTA * QUANTUM_FRAMES).into())?;
        pcm.hw_params(&hardware)?;
        let (buffer, period) = (hardware.get_buffer_size()?, hardware.get_period_size()?);
        let software = pcm.sw_params_current()?;
        software.set_avail_min(period)?;
        software.set_start_threshold(buffer - period)?;
        pcm.sw_params(&software)?;
    }
    if direction == Direction::Capture {
        pcm.start()?;
    }
    Ok(pcm)
}

/// Runs the devices of a plan until the worker's end is gone.
pub(super) fn run(plan: &Plan, end: &ThreadEnd, started: &mut Started) {
    // A late thread is heard. Without the privilege, the shortest time slice has to do.
    if !sys::thread::be_urgent() {
        sys::thread::be_prompt();
    }
    let name = device_name(&plan.target);
    // Each direction that the plan leaves open is one that the device has.
    let has = |flow: Option<bool>, direction| match flow {
        Some(has) => Ok(has),
        None => match open(&name, direction) {
            Ok(_) => Ok(true),
            Err(error) if error.errno() == libc::ENOENT => Ok(false),
            Err(error) => Err(error),
        },
    };
    let directions = match plan.role {
        Role::Device => [Direction::Capture, Direction::Playback],
        Role::Application => [Direction::Playback, Direction::Capture],
    };
    let flows = has(plan.to_application, directions[0])
        .and_then(|to_application| Ok((to_application, has(plan.to_device, directions[1])?)));
    let (to_application, to_device) = match flows {
        Ok((false, false)) => {
            return started.report(Err(failed(&name, lib::Error::new("open", libc::ENOENT))));
        }
        Ok(flows) => flows,
        Err(error) => return started.report(Err(failed(&name, error))),
    };
    let (records, plays) = match plan.role {
        Role::Device => (to_application, to_device),
        Role::Application => (to_device, to_application),
    };
    let title = match (plan.role, &plan.target) {
        (Role::Device, Target::Card(card, _)) => card_name(card).unwrap_or_else(|| card.clone()),
        (Role::Device, _) => super::host_name(),
        (Role::Application, _) => plan.name.clone(),
    };
    let mut facts = Some(Facts { name: title, to_application, to_device });
    loop {
        match session(&name, records, plays, end, &mut || {
            end.set_absent(false);
            if let Some(facts) = facts.take() {
                started.report(Ok(facts));
            }
        }) {
            Ok(()) => return,
            Err(error) if facts.is_some() => return started.report(Err(failed(&name, error))),
            Err(_) if plan.role == Role::Device => end.set_absent(true),
            Err(_) => {}
        }
        if !end.wait_to_retry() {
            return;
        }
    }
}

/// Uses the devices until one fails, or the worker's end is gone. Calls `opened` once they are open.
fn session(
    name: &str,
    records: bool,
    plays: bool,
    end: &ThreadEnd,
    opened: &mut dyn FnMut(),
) -> lib::Result<()> {
    let mut playback = match plays {
        true => Some(Playback::open(name, end)?),
        false => None,
    };
    let mut capture = None;
    if records && !end.is_wanted() {
        // Only to know that it is there: nothing records while nobody listens.
        open(name, Direction::Capture)?;
    }
    opened();
    loop {
        match (records && end.is_wanted(), &capture) {
            (true, None) => {
                let position = boot_ns() / 1_000 * u64::from(RATE_HZ) / 1_000_000;
                let recorder = Recorder::new(end.memory.clone(), end.wake(), position);
                capture = Some((open(name, Direction::Capture)?, recorder));
            }
            (false, Some(_)) => capture = None,
            _ => {}
        }
        let control = pollfd { fd: end.control().as_raw_fd(), events: libc::POLLIN, revents: 0 };
        let mut waits = vec![control];
        if let Some(playback) = &playback {
            waits.extend(playback.pcm.get()?);
        }
        if let Some((pcm, _)) = &capture {
            waits.extend(pcm.get()?);
        }
        lib::poll::poll(&mut waits, WAIT_MS).or_else(|error| match error.errno() {
            libc::EINTR => Ok(0),
            _ => Err(error),
        })?;
        if waits[0].revents != 0 && end.clear() == Other::Gone {
            return Ok(());
        }
        if let Some(playback) = &mut playback {
            playback.play(end)?;
        }
        if let Some((pcm, recorder)) = &mut capture {
            record(pcm, recorder)?;
        }
    }
}

/// A device that plays. It takes whole periods, which many devices have longer than Outboard asks for.
struct Playback {
    pcm: PCM,
    period_frames: usize,
    player: Player,
    frames: Vec<Frame>,
}

impl Playback {
    fn open(name: &str, end: &ThreadEnd) -> lib::Result<Playback> {
        let pcm = open(name, Direction::Playback)?;
        let (_, period) = pcm.get_params()?;
        let period_frames = usize::try_from(period).unwrap_or(FRAMES_MAX).clamp(1, FRAMES_MAX);
        let player = Player::new(end.memory.clone());
        Ok(Playback { pcm, period_frames, player, frames: vec![Frame::default(); FRAMES_MAX] })
    }

    /// Writes as many periods as the device has room for, in one pull: the fill follows from all that the device takes at once.
    fn play(&mut self, end: &ThreadEnd) -> lib::Result<()> {
        let pcm = &self.pcm;
        loop {
            let room = match pcm.avail_update() {
                Ok(room) => usize::try_from(room).unwrap_or(0).min(FRAMES_MAX),
                Err(error) => {
                    end.memory.add(Word::Underruns, 1);
                    pcm.try_recover(error, true)?;
                    continue;
                }
            };
            let count = room - room % self.period_frames;
            if count == 0 {
                return check(pcm);
            }
            let frames = &mut self.frames[..count];
            self.player.pull(frames);
            match pcm.io_i16()?.writei(frames.as_flattened()) {
                Ok(_) => {}
                Err(error) if error.errno() == libc::EAGAIN => return Ok(()),
                Err(error) => pcm.try_recover(error, true)?,
            }
        }
    }
}

/// Reads the frames that the device has recorded.
fn record(pcm: &PCM, recorder: &mut Recorder) -> lib::Result<()> {
    let mut samples = [0; QUANTUM_FRAMES as usize * CHANNELS];
    loop {
        match pcm.io_i16()?.readi(&mut samples) {
            Ok(0) => return check(pcm),
            Ok(count) => {
                let bytes: Vec<u8> =
                    samples[..count * CHANNELS].iter().flat_map(|sample| sample.to_le_bytes()).collect();
                debug_assert_eq!(bytes.len(), count * FRAME_BYTES);
                // The device has captured further frames since.
                let later_frames = pcm.delay().map_or(0, |frames| u64::try_from(frames).unwrap_or(0));
                let later_frames = later_frames.min(RATE_HZ.into());
                recorder.record(&bytes, boot_ns().saturating_sub(SPEC.duration_ns(later_frames)), 0);
            }
            Err(error) if error.errno() == libc::EAGAIN => return check(pcm),
            Err(error) => {
                pcm.try_recover(error, true)?;
                pcm.start()?;
            }
        }
    }
}

fn check(pcm: &PCM) -> lib::Result<()> {
    match pcm.state() {
        State::Disconnected => Err(lib::Error::new("snd_pcm_state", libc::ENODEV)),
        _ => Ok(()),
    }
}

fn card_name(card: &str) -> Option<String> {
    let found = lib::card::Card::from_str(&std::ffi::CString::new(card).ok()?).ok()?;
    found.get_name().ok()
}

/// Lists the devices of all cards.
pub(super) fn list() -> Vec<Listing> {
    lib::card::Iter::new()
        .filter_map(Result::ok)
        .flat_map(|card| list_card(&card).unwrap_or_default())
        .collect()
}

fn list_card(card: &lib::card::Card) -> lib::Result<Vec<Listing>> {
    let control = lib::Ctl::from_card(card, true)?;
    let info = control.card_info()?;
    let id = info.get_id()?.to_string();
    let listing = |device: i32| {
        let device = u32::try_from(device).ok()?;
        let named = |direction| control.pcm_info(device, 0, direction).ok();
        let (records, plays) = (named(Direction::Capture), named(Direction::Playback));
        let kind = match (&records, &plays) {
            (Some(_), Some(_)) => "microphone and speaker",
            (Some(_), None) => "microphone",
            _ => "speaker",
        };
        let found = records.or(plays)?;
        let name = found.get_name().ok()?.to_string();
        Some(Listing {
            spec: format!("audio:hw:{id}:{device}"),
            summary: format!("{}, {name} ({kind})", info.get_name().ok()?),
            problem: None,
            ours: false,
        })
    };
    Ok(lib::ctl::DeviceIter::new(&control).filter_map(listing).collect())
}
