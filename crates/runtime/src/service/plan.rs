//! What a run file comes to, checked without starting, opening or making anything.

use crate::config::{AttachWords, ConnectWords, RunFile, ShareWords};
use crate::error::RuntimeError;
use crate::junction::outlet;
use crate::share::ShareRequest;
use session::Limits;
use std::fs::File;
use std::io::{self, Read};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

/// Far more than anybody writes.
const RUN_FILE_BYTES_MAX: u64 = 1 << 20;

/// Where the words come from.
#[derive(Debug, Clone)]
pub enum Source {
    /// A file, which is read again at each reload.
    File(PathBuf),
    /// Words that were read once, such as from standard input.
    Text(String),
    /// One `[[share]]`.
    Share(Box<ShareWords>),
}

/// What is to run.
#[derive(Default)]
pub(super) struct Plan {
    pub(super) shares: Vec<SharePlan>,
    pub(super) attaches: Vec<AttachWords>,
    pub(super) connects: Vec<ConnectWords>,
    /// Where metrics are served.
    pub(super) metrics: Option<SocketAddr>,
}

/// One place to listen and what is shared there.
pub(super) struct SharePlan {
    /// Without devices.
    pub(super) request: ShareRequest,
    pub(super) devices: Vec<ShareWords>,
}

impl SharePlan {
    /// Whether what listens there may go on.
    pub(super) fn goes_on(&self, secure: bool, announced: bool, limits: &Limits) -> bool {
        let (trust, announce) = (self.request.trust.is_some(), self.request.announce);
        (trust, announce) == (secure, announced) && self.request.limits == *limits
    }
}

impl Source {
    /// The file at `path`, or standard input where it is `-`. What is no regular file, such as a pipe, is read here,
    /// as it gives its words once.
    pub fn at(path: &Path) -> Result<Source, RuntimeError> {
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

    /// Reads and checks. An error says where in the file it is wrong.
    pub(super) fn plan(&self) -> Result<Plan, RuntimeError> {
        let plan = || Plan::of(&self.words()?);
        match self {
            Source::File(path) => plan().map_err(|error| named(&path.display().to_string(), error)),
            Source::Text(_) => plan().map_err(|error| named("-", error)),
            Source::Share(_) => plan(),
        }
    }

    /// Whether standard output is where data goes. A file that cannot be read is told of later.
    pub fn writes_stdout(&self) -> bool {
        self.words().is_ok_and(|file| file.writes_stdout())
    }

    fn words(&self) -> Result<RunFile, RuntimeError> {
        match self {
            Source::Text(text) => RunFile::parse(text),
            Source::Share(words) => Ok(RunFile { share: vec![(**words).clone()], ..RunFile::default() }),
            Source::File(path) => RunFile::parse(&text_at(path)?),
        }
    }

    /// Says what is wrong with it, if anything, and does nothing.
    pub fn check(&self) -> Result<(), RuntimeError> {
        self.plan().map(drop)
    }
}

/// `place` is where the words are wrong.
fn named(place: &str, error: RuntimeError) -> RuntimeError {
    match error {
        RuntimeError::Usage(problem) => RuntimeError::Usage(format!("{place}: {problem}")),
        other => other,
    }
}

fn text_at(path: &Path) -> Result<String, RuntimeError> {
    let place = path.display().to_string();
    let file = File::open(path).map_err(|error| RuntimeError::os(format!("reading {place}"), error))?;
    text_of(file, &place)
}

fn text_of(from: impl Read, place: &str) -> Result<String, RuntimeError> {
    let mut text = String::new();
    let read = from.take(RUN_FILE_BYTES_MAX + 1).read_to_string(&mut text);
    read.map_err(|error| RuntimeError::os(format!("reading {place}"), error))?;
    if text.len() as u64 > RUN_FILE_BYTES_MAX {
        return Err(RuntimeError::Usage(format!(
            "longer than {RUN_FILE_BYTES_MAX} bytes: is it a run file?"
        )));
    }
    Ok(text)
}

impl Plan {
    fn of(file: &RunFile) -> Result<Plan, RuntimeError> {
        // What is named by side ports is opened, or made, when it is needed.
        let mut bare = file.clone();
        let ports = |ports: &mut Vec<String>| outlet::check(&std::mem::take(ports));
        let wrong = |error| RuntimeError::Usage(error);
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
                plan.devices.push(words.clone());
            }
        }
        bare.attach_requests()?;
        bare.connections()?;
        let metrics = file.service.metrics.as_deref().map(crate::metrics::address).transpose()?;
        Ok(Plan { shares, attaches: file.attach.clone(), connects: file.connect.clone(), metrics })
    }
}
