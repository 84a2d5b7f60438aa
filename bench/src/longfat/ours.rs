//! One flow of Outboard between two programs: both are threads of this process at the ends of Unix sockets.

use crate::reliability::hosts::{ADDRESS_A, DEVICE, Host, Hosts, PORT, Service};
use crate::setting::Failure;
use serde_json::Value;
use std::io::{Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

/// Bytes of one write or read of the programs.
const PIECE_BYTES: usize = 256 << 10;

/// The transport of a flow in words of the command line.
pub(super) struct Words<'a> {
    /// `default` for the program's choice.
    pub(super) transport: &'a str,
    /// Options of the application host, and of the device host, which sends.
    pub(super) attach: Option<&'a str>,
    pub(super) share: Option<&'a str>,
}

/// A running flow from host a to host b. Dropping it ends the processes.
pub(super) struct Flow {
    share: Service,
    _attach: Service,
    received_bytes: Arc<AtomicU64>,
    sockets: [PathBuf; 2],
}

impl Flow {
    /// Starts a flow.
    pub(super) fn start(hosts: &Hosts, words: &Words<'_>) -> Result<Flow, Failure> {
        let received_bytes = Arc::new(AtomicU64::new(0));
        let counted = received_bytes.clone();
        let source = hosts.file("source");
        let sink = hosts.file("sink");
        serve(&source, |mut stream| while stream.write_all(&[7; PIECE_BYTES]).is_ok() {})?;
        serve(&sink, move |mut stream| {
            let mut piece = vec![0; PIECE_BYTES];
            while let Ok(bytes @ 1..) = stream.read(&mut piece) {
                counted.fetch_add(bytes as u64, Ordering::Relaxed);
            }
        })?;
        let transport = words.transport;
        let scheme = if transport == "default" { String::new() } else { format!("{transport}://") };
        let mut share = hosts.command(Host::Device)?;
        share.args(["share", &format!("unix:{}", source.display()), "--name", DEVICE, "--stats"]);
        if let Some(options) = words.share {
            share.args(["--listen", &format!("{scheme}[::]:{PORT}"), "--transport", options]);
        }
        let mut share = Service::start(share)?;
        share.wait("listening")?;
        let mut attach = hosts.command(Host::Application)?;
        attach.args(["attach", &format!("{scheme}{ADDRESS_A}/{DEVICE}")]);
        attach.args(["--as", &format!("unix:{}", sink.display())]);
        attach.args(words.attach.iter().flat_map(|options| ["--transport", options]));
        let mut attach = Service::start(attach)?;
        attach.wait("attached")?;
        Ok(Flow { share, _attach: attach, received_bytes, sockets: [source, sink] })
    }

    /// Returns the goodput of the second half of this time.
    pub(super) fn goodput_mbit(&self, lasts: Duration) -> f64 {
        thread::sleep(lasts / 2);
        self.mbit_in(lasts / 2)
    }

    /// Returns the latest statistics of the device host; null before the first ones.
    pub(super) fn device_stats(&self) -> Value {
        let stats = self.share.events_of("stats").pop();
        stats.map_or(Value::Null, |mut event| event["stats"].take())
    }

    /// Returns the goodput from now on.
    pub(super) fn mbit_in(&self, lasts: Duration) -> f64 {
        let begun = (Instant::now(), self.received_bytes.load(Ordering::Relaxed));
        thread::sleep(lasts);
        let bytes = self.received_bytes.load(Ordering::Relaxed) - begun.1;
        bytes as f64 * 8.0 / 1e6 / begun.0.elapsed().as_secs_f64()
    }
}

impl Drop for Flow {
    fn drop(&mut self) {
        for socket in &self.sockets {
            let _ = std::fs::remove_file(socket);
        }
    }
}

/// Gives the first connection to `act`.
fn serve(path: &Path, act: impl FnOnce(UnixStream) + Send + 'static) -> Result<(), Failure> {
    let listener = UnixListener::bind(path)?;
    thread::spawn(move || {
        if let Ok((stream, _)) = listener.accept() {
            act(stream);
        }
    });
    Ok(())
}
