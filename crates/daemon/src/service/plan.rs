//! The plan of a run file, checked without starting, opening or creating anything.

use crate::config::{AttachWords, ConnectWords, RunFile};
use broker::ShareRequest;
use broker::ShareWords;
use contract::ServiceError;
use hub::outlet;
use session::Limits;
use std::fs::File;
use std::io::{self, Read};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

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
}

/// One address to listen on, and the devices shared there.
pub(super) struct SharePlan {
    /// The request, with an empty list of devices.
    pub(super) request: ShareRequest,
    pub(super) devices: Vec<ShareWords>,
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
        let plan = || Plan::of(&self.words()?);
        match self {
            Source::File(path) => plan().map_err(|error| named(&path.display().to_string(), error)),
            Source::Text(_) => plan().map_err(|error| named("-", error)),
            Source::Share(_) => plan(),
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

    /// Checks the source without any effect.
    pub fn check(&self) -> Result<(), ServiceError> {
        self.plan().map(drop)
    }
}

/// Adds `place`, the name of the source, to an error.
fn named(place: &str, error: ServiceError) -> ServiceError {
    match error {
        ServiceError::Usage(problem) => ServiceError::Usage(format!("{place}: {problem}")),
        other => other,
    }
}

fn text_at(path: &Path) -> Result<String, ServiceError> {
    let place = path.display().to_string();
    let file = File::open(path).map_err(|error| ServiceError::os(format!("reading {place}"), error))?;
    text_of(file, &place)
}

fn text_of(from: impl Read, place: &str) -> Result<String, ServiceError> {
    let mut text = String::new();
    let read = from.take(RUN_FILE_BYTES_MAX + 1).read_to_string(&mut text);
    read.map_err(|error| ServiceError::os(format!("reading {place}"), error))?;
    if text.len() as u64 > RUN_FILE_BYTES_MAX {
        return Err(ServiceError::Usage(format!(
            "longer than {RUN_FILE_BYTES_MAX} bytes: is it a run file?"
        )));
    }
    Ok(text)
}

impl Plan {
    fn of(file: &RunFile) -> Result<Plan, ServiceError> {
        // Outlets of side ports are opened, or created, only when an entry starts.
        let mut bare = file.clone();
        let ports = |ports: &mut Vec<String>| outlet::check(&std::mem::take(ports));
        let wrong = |error| ServiceError::Usage(error);
        bare.share.iter_mut().try_for_each(|words| ports(&mut words.ports)).map_err(wrong)?;
        bare.attach.iter_mut().try_for_each(|words| ports(&mut words.ports)).map_err(wrong)?;
        bare.connect.iter_mut().try_for_each(|words| ports(&mut words.ports)).map_err(wrong)?;
        let mut shares: Vec<SharePlan> = Vec::new();
        for request in bare.share_requests()? {
            shares.push(SharePlan {
                request: ShareRequest { devices: Vec::new(), ..request },
                devices: vec![],
            });
        }
        for words in &file.share {
            let listen = words.listen_address()?;
            if let Some(plan) = shares.iter_mut().find(|plan| plan.request.listen == listen) {
                let mut words = words.clone();
                words.find_peers()?;
                plan.devices.push(words);
            }
        }
        bare.attach_requests()?;
        bare.connections()?;
        let metrics = file.service.metrics.as_deref().map(crate::metrics::address).transpose()?;
        Ok(Plan { shares, attaches: file.attach.clone(), connects: file.connect.clone(), metrics })
    }
}
