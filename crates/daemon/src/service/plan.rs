//! The plan of a run file, checked without starting, opening or creating anything.

use super::fleet::Fleet;
use super::hotplug::{check_rule, is_rule};
use crate::config::{AttachWords, ConnectWords, RunFile, entry, place};
use broker::ShareRequest;
use broker::ShareWords;
use broker::offers::check_offer;
use contract::ServiceError;
use hosts::place::listen_remark;
use hub::outlet;
use session::Limits;
use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io::{self, Read};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use sys::listening;
use trust::Trust;

/// Most bytes of a run file, far more than a user writes.
const RUN_FILE_BYTES_MAX: u64 = 1 << 20;

/// The source of the entries.
#[derive(Debug, Clone)]
pub enum Source {
    /// A file, which is read again at each reload.
    File(PathBuf),
    /// Text that was read once, for example from standard input.
    Text(String),
    /// One `[[share]]`.
    Share(Box<ShareWords>),
}

/// The entries to run.
#[derive(Default)]
pub(super) struct Plan {
    pub(super) shares: Vec<SharePlan>,
    pub(super) attaches: Vec<AttachWords>,
    pub(super) connects: Vec<ConnectWords>,
    /// The address that serves metrics.
    pub(super) metrics: Option<SocketAddr>,
    /// The key lines beside the file.
    pub(super) fleet: Option<Fleet>,
    /// Remarks for the user.
    pub(super) remarks: Vec<String>,
}

/// One address to listen on, and the devices shared there.
pub(super) struct SharePlan {
    /// The request, with an empty list of devices.
    pub(super) request: ShareRequest,
    pub(super) devices: Vec<ShareWords>,
}

impl Plan {
    /// Returns whether a sharing at this address belongs to it.
    pub(super) fn listens_on(&self, at: SocketAddr) -> bool {
        self.shares.iter().any(|share| share.request.listen == at)
    }
}

impl SharePlan {
    /// Returns whether a `DeviceHost` with these properties satisfies the plan without a restart.
    pub(super) fn continues(&self, secure: bool, announced: bool, limits: &Limits) -> bool {
        let (trust, announce) = (self.request.trust.is_some(), self.request.announce);
        (trust, announce) == (secure, announced) && self.request.limits == *limits
    }
}

impl Source {
    /// Returns the file at `path`, or standard input for `-`. Anything but a regular file, such as a pipe, is read
    /// here, as it can be read only once.
    pub fn at(path: &Path) -> Result<Source, ServiceError> {
        if path.as_os_str() == "-" {
            let place = "standard input";
            return text_of(io::stdin(), place).map(Source::Text).map_err(|error| named(place, error));
        }
        match std::fs::metadata(path) {
            Ok(metadata) if !metadata.is_file() && !metadata.is_dir() => {
                text_at(path).map(Source::Text).map_err(|error| named(&path.display().to_string(), error))
            }
            _ => Ok(Source::File(path.into())),
        }
    }

    /// Reads and checks the source. An error names the entry.
    pub(super) fn plan(&self) -> Result<Plan, ServiceError> {
        let fleet = self.fleet()?;
        let words = self.words().map_err(|error| self.named(error))?;
        Plan::of(&words, fleet).map_err(|error| self.named(error))
    }

    /// Adds the name of the source to an error of the user.
    fn named(&self, error: ServiceError) -> ServiceError {
        match error {
            ServiceError::Usage(problem) => ServiceError::Usage(format!("{}{problem}", self.prefix())),
            other => other,
        }
    }

    /// The name of the source before an error.
    fn prefix(&self) -> String {
        match self {
            Source::File(path) => format!("{}: ", path.display()),
            Source::Text(_) => "-: ".into(),
            Source::Share(_) => String::new(),
        }
    }

    /// Returns whether standard output carries data. A file that cannot be read is reported later.
    pub fn writes_stdout(&self) -> bool {
        self.words().is_ok_and(|file| file.writes_stdout())
    }

    fn words(&self) -> Result<RunFile, ServiceError> {
        match self {
            Source::Text(text) => RunFile::parse(text),
            Source::Share(words) => Ok(RunFile { share: vec![(**words).clone()], ..RunFile::default() }),
            Source::File(path) => RunFile::parse(&text_at(path)?),
        }
    }

    /// Reads the key lines beside the file, if there are some.
    fn fleet(&self) -> Result<Option<Fleet>, ServiceError> {
        match self {
            Source::File(path) => Fleet::beside(path),
            Source::Text(_) | Source::Share(_) => Ok(None),
        }
    }

    /// Checks the source without any effect. Returns remarks for the user.
    pub fn check(&self) -> Result<Vec<String>, ServiceError> {
        let (plan, file) = (self.plan()?, self.words()?);
        let check = |at, place: String| {
            listening::check(at).map_err(|error| {
                ServiceError::os(format!("{}{place}: listening on {at}", self.prefix()), error)
            })
        };
        for at in plan.shares.iter().map(|share| share.request.listen) {
            let mut entries = file.share.iter().enumerate();
            let found = entries.find(|(_, words)| words.listen_address().is_ok_and(|listen| listen == at));
            let (index, device) = found.map_or((0, ""), |(index, words)| (index, &words.device));
            check(at, entry("share", index, device))?;
        }
        if let Some(at) = plan.metrics {
            check(at, "metrics in [service]".into())?;
        }
        Ok(plan.remarks)
    }
}

/// Checks each device and its name, as far as this is possible without opening it.
fn check_devices(shares: &[ShareWords]) -> Result<(), ServiceError> {
    let mut names: BTreeMap<SocketAddr, Vec<String>> = BTreeMap::new();
    for (index, words) in shares.iter().enumerate() {
        let placed = |error| place(error, "share", index, &words.device);
        let request = words.request().map_err(placed)?;
        check_rule(words).map_err(placed)?;
        // The devices of a rule get numbers after their names.
        let mut own = Vec::new();
        let names = if is_rule(words) { &mut own } else { names.entry(request.listen).or_default() };
        request.devices.iter().try_for_each(|device| check_offer(device, names)).map_err(placed)?;
    }
    Ok(())
}

/// Adds `place`, the name of the source, to an error.
pub(super) fn named(place: &str, error: ServiceError) -> ServiceError {
    match error {
        ServiceError::Usage(problem) => ServiceError::Usage(format!("{place}: {problem}")),
        other => other,
    }
}

pub(super) fn text_at(path: &Path) -> Result<String, ServiceError> {
    let place = path.display().to_string();
    let file = File::open(path).map_err(|error| ServiceError::os(format!("reading {place}"), error))?;
    text_of(file, &place)
}

fn text_of(from: impl Read, place: &str) -> Result<String, ServiceError> {
    let mut bytes = Vec::new();
    let read = from.take(RUN_FILE_BYTES_MAX + 1).read_to_end(&mut bytes);
    read.map_err(|error| ServiceError::os(format!("reading {place}"), error))?;
    if bytes.len() as u64 > RUN_FILE_BYTES_MAX {
        return Err(ServiceError::Usage(format!(
            "longer than {RUN_FILE_BYTES_MAX} bytes: is it a run file?"
        )));
    }
    String::from_utf8(bytes).map_err(|error| {
        let valid = &error.as_bytes()[..error.utf8_error().valid_up_to()];
        let line = 1 + valid.iter().filter(|byte| **byte == b'\n').count();
        ServiceError::Usage(format!("line {line}: the text is not UTF-8: save the file as UTF-8"))
    })
}

impl Plan {
    fn of(file: &RunFile, fleet: Option<Fleet>) -> Result<Plan, ServiceError> {
        let known = fleet.as_ref().map(|fleet| fleet.preview(&Trust::open()?)).transpose()?;
        // Outlets of side ports are opened, or created, only when an entry starts.
        let mut bare = file.clone();
        let ports = |ports: &mut Vec<String>| outlet::check(&std::mem::take(ports));
        let wrong = |error| ServiceError::Usage(error);
        bare.share.iter_mut().try_for_each(|words| ports(&mut words.ports)).map_err(wrong)?;
        bare.attach.iter_mut().try_for_each(|words| ports(&mut words.ports)).map_err(wrong)?;
        bare.connect.iter_mut().try_for_each(|words| ports(&mut words.ports)).map_err(wrong)?;
        for (index, words) in bare.share.iter_mut().enumerate() {
            words.find_peers(known.as_ref()).map_err(|error| place(error, "share", index, &words.device))?;
        }
        bare.attach.iter_mut().for_each(|words| words.known = known.clone());
        let mut shares: Vec<SharePlan> = Vec::new();
        for request in bare.share_requests()? {
            shares.push(SharePlan {
                request: ShareRequest { devices: Vec::new(), ..request },
                devices: vec![],
            });
        }
        for (words, checked) in file.share.iter().zip(&bare.share) {
            let listen = words.listen_address()?;
            if let Some(plan) = shares.iter_mut().find(|plan| plan.request.listen == listen) {
                plan.devices.push(ShareWords { allowed: checked.allowed.clone(), ..words.clone() });
            }
        }
        check_devices(&bare.share)?;
        bare.attach_requests()?;
        bare.connections()?;
        let metrics = file.service.metrics.as_deref().map(crate::metrics::address).transpose()?;
        let listens: BTreeSet<_> = file.share.iter().filter_map(|words| words.listen.as_deref()).collect();
        let mut remarks: Vec<_> = listens.into_iter().filter_map(listen_remark).collect();
        remarks.extend(fleet.iter().flat_map(|fleet| fleet.remarks.iter().cloned()));
        let (attaches, connects) = (file.attach.clone(), file.connect.clone());
        Ok(Plan { shares, attaches, connects, metrics, fleet, remarks })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_device_is_checked_before_it_is_opened() {
        let check = |text: &str| match Source::Text(text.into()).check() {
            Ok(remarks) => remarks.concat(),
            Err(error) => error.to_string(),
        };
        let share =
            |device: &str, more: &str| format!("[[share]]\ndevice = '{device}'\ninsecure = true\n{more}\n");
        for (text, says) in [
            (share("null", "") + &share("null", ""), "number 2 (null): two devices are called `null`"),
            (share("null", "name = ''"), "`` cannot be a device's name"),
            (share("serial:/dev/ttyS0", "via = 'gray'"), "gray"),
            (share("evdev:*", "via = 'scale(width=9)'"), "scale"),
            (
                share("evdev:Logitech*", ""),
                "number 1 (evdev:Logitech*): `evdev:Logitech*`: a pattern without",
            ),
            (share("exec:cat,frame=word", ""), "frame"),
            (share("pattern", "hub = 'copies'"), "hub"),
            (share("null", "listen = '192.0.2.1'"), "listening on 192.0.2.1:7845: Cannot assign"),
            (share("null", "[service]\nmetrics = '192.0.2.1:1'"), "listening on 192.0.2.1:1: Cannot assign"),
        ] {
            let found = check(&text);
            assert!(found.contains(says), "{text}: {found}");
        }
        let fits = share("null", "") + &share("null", "listen = ':7846'") + &share("serial:/dev/tty*", "");
        assert_eq!(check(&(fits + &share("serial:/dev/tty*", ""))), "");
    }
}
