//! The first control frames of a program with `frame=declared`: its flows are known before it is offered.
//!
//! ```text
//! broker                                  program
//!   │ hello: role, format of the flow  ──►  │
//!   │ ◄── hello: role, format, values       │   within [`HELLO_TIMEOUT`]
//! ```

use contract::{Description, FlowClass, FlowDirection, FlowOffer, Format, Role};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags, recv, send};
use std::os::fd::BorrowedFd;
use std::time::{Duration, Instant};
use wire::module::{DEVICE_FRAME_BYTES_MAX, MODULE_HEADER_BYTES, MODULE_VERSION};
use wire::{ModuleFrame, ModuleHeader};

/// Time limit for a program's hello: a small computer loads a large library before it.
const HELLO_TIMEOUT: Duration = Duration::from_secs(20);
/// Longest summary, bytes.
const SUMMARY_BYTES_MAX: usize = 200;

/// The end of a program's frames before its hello.
#[derive(Debug)]
pub(super) enum NoHello {
    /// It has closed descriptor 3, perhaps by its exit.
    Closed,
    Problem(String),
}

impl From<String> for NoHello {
    fn from(problem: String) -> NoHello {
        NoHello::Problem(problem)
    }
}

/// A program's account of itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Declaration {
    /// The flow from the device to the application, and the flow back if there is one.
    pub(super) flows: Vec<FlowOffer>,
    /// One line of text for users; may be empty.
    pub(super) summary: String,
    /// The program sends its complete state on request.
    pub(super) has_snapshots: bool,
}

fn role_name(role: Role) -> &'static str {
    match role {
        Role::Device => "device",
        Role::Application => "application",
    }
}

/// Exchanges hellos. Errors say what the program did, without its name.
pub(super) fn exchange(
    socket: BorrowedFd<'_>,
    role: Role,
    like: Option<&Description>,
) -> Result<Declaration, NoHello> {
    let until = Instant::now() + HELLO_TIMEOUT;
    request(socket, role, like)?;
    let mut header = [0; MODULE_HEADER_BYTES];
    receive(socket, &mut header, until)?;
    let header = ModuleHeader::parse(&header).map_err(invalid)?;
    if header.length as usize > DEVICE_FRAME_BYTES_MAX {
        return Err(NoHello::Problem(format!(
            "it sent a control frame of {} bytes, over the limit of {DEVICE_FRAME_BYTES_MAX}",
            header.length
        )));
    }
    let mut body = vec![0; header.length as usize];
    receive(socket, &mut body, until)?;
    Ok(declaration(ModuleFrame::parse(header.kind, &body).map_err(invalid)?, role)?)
}

/// Reads a program's first control frame.
fn declaration(frame: ModuleFrame, role: Role) -> Result<Declaration, String> {
    match frame {
        ModuleFrame::Hello { version, role: said, format, options } => {
            if version != MODULE_VERSION {
                return Err(format!("its hello has version {version}, this host has {MODULE_VERSION}"));
            }
            let used = role_name(role);
            if said != used {
                return Err(format!("it declares the role `{said}`, and it is used as `{used}`"));
            }
            parse(&format, &options)
        }
        ModuleFrame::Error(problem) => Err(format!("it reports: {}", clean(&problem))),
        other => Err(format!("its first control frame is no hello, but {other:?}")),
    }
}

/// Sends the runner's hello.
pub(super) fn request(socket: BorrowedFd<'_>, role: Role, like: Option<&Description>) -> Result<(), String> {
    let hello = hello(role, like).emit(0);
    match send(socket, &hello, SendFlags::NOSIGNAL | SendFlags::DONTWAIT) {
        // It has exited; the end of its frames tells.
        Ok(_) | Err(Errno::PIPE | Errno::CONNRESET) => Ok(()),
        Err(error) => Err(format!("sending a hello to it: {error}")),
    }
}

fn invalid(error: wire::WireError) -> String {
    format!("its hello is invalid: {error}")
}

/// The runner's hello. An application learns the flows and the device that its node is for.
fn hello(role: Role, like: Option<&Description>) -> ModuleFrame {
    let flow = |direction| like.and_then(|like| like.flows.iter().find(|flow| flow.direction == direction));
    let name = |direction| flow(direction).map_or_else(String::new, |flow| flow.format.name().to_string());
    let mut options = Vec::new();
    if let Some(like) = like.filter(|_| role == Role::Application) {
        options.push(("class".into(), like.class.clone()));
        options.push(("summary".into(), clean(&like.summary)));
        options.push(("back".into(), name(FlowDirection::ApplicationToDevice)));
    }
    let format = match role {
        Role::Device => String::new(),
        Role::Application => name(FlowDirection::DeviceToApplication),
    };
    ModuleFrame::Hello { version: MODULE_VERSION, role: role_name(role).into(), format, options }
}

/// Advice for a program without a hello.
pub(super) const ADVICE: &str = "write it with `outboard_module` (sdk), or leave out frame=declared";

/// Fills `into`, or fails at the deadline.
fn receive(socket: BorrowedFd<'_>, into: &mut [u8], until: Instant) -> Result<(), NoHello> {
    let mut filled = 0;
    while filled < into.len() {
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            let seconds = HELLO_TIMEOUT.as_secs();
            return Err(NoHello::Problem(format!(
                "it sent no hello on descriptor 3 within {seconds} s. It may still be starting: send the hello first and load \
                 afterwards, in `start` of `outboard_module`. A program without a hello needs no frame=declared"
            )));
        }
        let left = Timespec::try_from(left).ok();
        match poll(&mut [PollFd::new(&socket, PollFlags::IN)], left.as_ref()) {
            Ok(0) | Err(Errno::INTR) => continue,
            Ok(_) => {}
            Err(error) => return Err(NoHello::Problem(format!("waiting for its hello: {error}"))),
        }
        match recv(socket, &mut into[filled..], RecvFlags::DONTWAIT) {
            Ok((0, _)) | Err(Errno::CONNRESET) => return Err(NoHello::Closed),
            Ok((count, _)) => filled += count,
            Err(Errno::AGAIN | Errno::INTR) => {}
            Err(error) => return Err(NoHello::Problem(format!("reading its hello: {error}"))),
        }
    }
    Ok(())
}

/// Reads the format and the values of a program's hello.
pub(super) fn parse(format: &str, options: &[(String, String)]) -> Result<Declaration, String> {
    let value = |name: &str| {
        options.iter().find(|(known, _)| known == name).map(|(_, value)| value.as_str()).unwrap_or_default()
    };
    let format = parse_format(format)?;
    let class = match value("class") {
        "" => class_of(&format),
        "reliable" => FlowClass::Reliable,
        "timely" => FlowClass::Timely,
        "state" => FlowClass::State,
        other => {
            return Err(format!("it declares the class `{other}`; there are: reliable, timely, state"));
        }
    };
    let mut flows = vec![FlowOffer { direction: FlowDirection::DeviceToApplication, format, class }];
    if !value("back").is_empty() {
        let format = parse_format(value("back"))?;
        let class = class_of(&format);
        flows.push(FlowOffer { direction: FlowDirection::ApplicationToDevice, format, class });
    }
    let has_snapshots = value("snapshot") == "true";
    Ok(Declaration { flows, summary: clean(value("summary")), has_snapshots })
}

fn parse_format(name: &str) -> Result<Format, String> {
    let known = Format::names().join(", ");
    Format::from_name(name)
        .ok_or_else(|| format!("it declares the format `{}`; there are: {known}", clean(name)))
}

/// The class of a flow whose program names none.
fn class_of(format: &Format) -> FlowClass {
    match format {
        Format::Evdev | Format::Motion | Format::Viewer | Format::Hid => FlowClass::State,
        _ => FlowClass::Reliable,
    }
}

/// Returns the text without control characters, and at most [`SUMMARY_BYTES_MAX`] bytes of it.
fn clean(text: &str) -> String {
    let mut text: String = text.chars().filter(|c| !c.is_control()).collect();
    text.truncate(text.floor_char_boundary(SUMMARY_BYTES_MAX));
    text
}

/// Checks that the flows of a device suit a program that stands in for its application. A program of plain bytes takes any.
pub(super) fn check_flows(declared: &Declaration, device: &Description) -> Result<(), String> {
    for own in declared.flows.iter().filter(|own| own.format != Format::Bytes) {
        let theirs = device.flows.iter().find(|theirs| theirs.direction == own.direction);
        let (verb, their_verb) = match own.direction {
            FlowDirection::DeviceToApplication => ("takes", "sends"),
            FlowDirection::ApplicationToDevice => ("sends", "takes"),
        };
        if let Some(theirs) = theirs.filter(|theirs| theirs.format != own.format) {
            return Err(format!(
                "it {verb} the format `{}`, and the device `{}` of class `{}` {their_verb} `{}`",
                own.format,
                clean(&device.summary),
                clean(&device.class),
                theirs.format
            ));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn declare(format: &str, options: &[(&str, &str)]) -> Result<Declaration, String> {
        let options: Vec<_> =
            options.iter().map(|(name, value)| (name.to_string(), value.to_string())).collect();
        parse(format, &options)
    }

    #[test]
    fn a_declaration_gives_flows_and_a_clean_summary() {
        let found = declare("motion", &[("summary", "a\ncap\x1b[2J"), ("back", "bytes")]).unwrap();
        let formats: Vec<_> = found.flows.iter().map(|flow| (flow.format.name(), flow.class)).collect();
        assert_eq!(formats, [("motion", FlowClass::State), ("bytes", FlowClass::Reliable)]);
        assert_eq!(found.summary, "acap[2J");
        assert_eq!(declare("audio", &[("class", "timely")]).unwrap().flows[0].class, FlowClass::Timely);
        assert_eq!(declare("bytes", &[("summary", &"é".repeat(300))]).unwrap().summary.len(), 200);
    }

    #[test]
    fn nonsense_is_refused_with_the_possible_values() {
        for (format, options, words) in [
            ("smell", &[][..], "`smell`; there are: bytes, evdev, motion"),
            ("", &[], "the format ``"),
            ("motion", &[("class", "eager")], "`eager`; there are: reliable, timely, state"),
            ("motion", &[("back", "smell")], "`smell`"),
        ] {
            let problem = declare(format, options).unwrap_err();
            assert!(problem.contains(words), "{problem}");
        }
    }

    #[test]
    fn a_program_that_is_still_starting_gets_advice() {
        let (ours, _theirs) = std::os::unix::net::UnixStream::pair().unwrap();
        let refused = receive(std::os::fd::AsFd::as_fd(&ours), &mut [0], Instant::now());
        let Err(NoHello::Problem(problem)) = refused else { panic!("{refused:?}") };
        assert!(problem.contains("within 20 s. It may still be starting: send the hello first"), "{problem}");
    }

    #[test]
    fn another_format_is_refused_with_both_names() {
        let device = |format| Description {
            class: "spnav".into(),
            summary: "cap".into(),
            flows: declare(format, &[]).unwrap().flows,
            application: "spnav",
            properties: Vec::new(),
        };
        let problem = check_flows(&declare("video", &[]).unwrap(), &device("motion")).unwrap_err();
        assert!(
            problem.contains("takes the format `video`") && problem.contains("sends `motion`"),
            "{problem}"
        );
        assert_eq!(check_flows(&declare("motion", &[]).unwrap(), &device("motion")), Ok(()));
        assert_eq!(check_flows(&declare("bytes", &[]).unwrap(), &device("motion")), Ok(()));
    }
}
