//! What a run file comes to, checked without starting, opening or making anything.

use crate::config::{AttachWords, ConnectWords, RunFile, ShareWords};
use crate::error::RuntimeError;
use crate::junction::outlet;
use crate::share::ShareRequest;
use session::Limits;
use std::net::SocketAddr;
use std::path::PathBuf;

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
    /// Reads and checks. An error says where in the file it is wrong.
    pub(super) fn plan(&self) -> Result<Plan, RuntimeError> {
        match self {
            Source::Text(text) => read(text, "-"),
            Source::Share(words) => {
                Plan::of(&RunFile { share: vec![(**words).clone()], ..RunFile::default() })
            }
            Source::File(path) => {
                let reading = |error| RuntimeError::os(format!("reading {}", path.display()), error);
                read(&std::fs::read_to_string(path).map_err(reading)?, &path.display().to_string())
            }
        }
    }

    /// Says what is wrong with it, if anything, and does nothing.
    pub fn check(&self) -> Result<(), RuntimeError> {
        self.plan().map(drop)
    }
}

/// Reads and checks what stands at `place`, which errors name.
fn read(text: &str, place: &str) -> Result<Plan, RuntimeError> {
    RunFile::parse(text).and_then(|file| Plan::of(&file)).map_err(|error| match error {
        RuntimeError::Usage(problem) => RuntimeError::Usage(format!("{place}: {problem}")),
        other => other,
    })
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
