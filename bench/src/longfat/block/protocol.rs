//! Protocols of disk servers: a row of [`PROTOCOLS`] is all that a protocol needs.

use crate::setting::Failure;
use std::path::Path;

/// A protocol, in words of command lines. `{host}`, `{port}`, `{size}`, `{sessions}` and `{disk}` stand for values.
pub(super) struct Protocol {
    pub(super) name: &'static str,
    pub(super) port: u16,
    /// The program that serves a disk until it is killed, and its package.
    pub(super) server: &'static [&'static str],
    pub(super) package: &'static str,
    /// Commands that finish the setup of the running server.
    pub(super) setup: &'static [&'static [&'static str]],
    /// Outboard's device.
    pub(super) device: &'static str,
    /// An unmodified program that reads the whole disk over `{sessions}` connections, and its package.
    pub(super) copy: Option<(&'static [&'static str], &'static str)>,
    /// The address for fio's engine `nbd`, if the server speaks that protocol.
    pub(super) fio: Option<&'static str>,
}

/// All protocols.
pub(super) const PROTOCOLS: &[Protocol] = &[NBD, ISCSI];

const NBD: Protocol = Protocol {
    name: "nbd",
    port: 10809,
    server: &[
        "nbdkit",
        "--foreground",
        "--threads",
        "16",
        "--ipaddr",
        "{host}",
        "--port",
        "{port}",
        "{disk}",
        "size={size}",
    ],
    package: "nbdkit",
    setup: &[],
    device: "nbd://{host}:{port}/,sessions={sessions}",
    copy: Some((
        // Without its number of threads, it has no more connections than this machine has processors.
        &[
            "nbdcopy",
            "--connections={sessions}",
            "--threads={sessions}",
            "--requests=64",
            "nbd://{host}:{port}/",
            "null:",
        ],
        "libnbd-bin",
    )),
    fio: Some("nbd://{host}:{port}/"),
};

/// The disk is tgt's backing store `null`, the virtual disk of the thesis: nothing stores it, and it has a size of its own.
const ISCSI: Protocol = Protocol {
    name: "iscsi",
    port: 3260,
    server: &["tgtd", "--foreground", "--control-port", "0", "--iscsi", "portal={host}:{port}"],
    package: "tgt",
    setup: &[
        &[
            TGTADM,
            "--lld=iscsi",
            "--op=new",
            "--mode=target",
            "--tid=1",
            "--targetname=iqn.2026-11.bench:disk",
        ],
        &[
            TGTADM,
            "--lld=iscsi",
            "--op=new",
            "--mode=logicalunit",
            "--tid=1",
            "--lun=1",
            "--bstype=null",
            "--backing-store=null",
        ],
        &[TGTADM, "--lld=iscsi", "--op=bind", "--mode=target", "--tid=1", "--initiator-address=ALL"],
    ],
    device: "iscsi://{host}:{port}/iqn.2026-11.bench:disk/1,sessions={sessions}",
    copy: None,
    fio: None,
};

const TGTADM: &str = "tgtadm";

/// The content of a disk.
#[derive(Debug, Clone, Copy)]
pub(super) enum Disk {
    /// Read-only data that nothing stores.
    Pattern,
    /// Reads are zeros, and writes are discarded: the virtual disk of the thesis (2.6.1).
    Null,
    /// Memory.
    Memory,
}

/// The values in a protocol's words.
#[derive(Clone, Copy)]
pub(super) struct Values<'a> {
    pub(super) host: &'a str,
    pub(super) disk: Disk,
    pub(super) size_bytes: u64,
    pub(super) sessions: &'a str,
}

impl Protocol {
    /// Returns the protocol of a name.
    pub(super) fn named(name: &str) -> Result<&'static Protocol, Failure> {
        let known = || PROTOCOLS.iter().map(|protocol| protocol.name).collect::<Vec<_>>().join(", ");
        let found = PROTOCOLS.iter().find(|protocol| protocol.name == name);
        found.ok_or_else(|| format!("--protocol {name}: there are {}", known()).into())
    }

    /// Replaces the values in a text.
    pub(super) fn fill(&self, text: &str, values: Values<'_>) -> String {
        let disk = match values.disk {
            Disk::Pattern => "pattern",
            Disk::Null => "null",
            Disk::Memory => "memory",
        };
        text.replace("{host}", values.host)
            .replace("{port}", &self.port.to_string())
            .replace("{size}", &values.size_bytes.to_string())
            .replace("{sessions}", values.sessions)
            .replace("{disk}", disk)
    }

    /// Replaces the values in words.
    pub(super) fn words(&self, words: &[&str], values: Values<'_>) -> Vec<String> {
        words.iter().map(|word| self.fill(word, values)).collect()
    }
}

/// Returns fio's address of a local socket of Outboard.
pub(super) fn local(socket: &Path) -> String {
    format!("nbd+unix:///?socket={}", socket.display())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_words_have_no_open_places() {
        for protocol in PROTOCOLS {
            let values = Values { host: "h", disk: Disk::Null, size_bytes: 4096, sessions: "8" };
            let copy = protocol.copy.map_or(&[][..], |(words, _)| words);
            let all = [protocol.server, copy].concat();
            let rest = [Some(protocol.device), protocol.fio].into_iter().flatten().map(String::from);
            for word in
                protocol.words(&all, values).into_iter().chain(rest.map(|text| protocol.fill(&text, values)))
            {
                assert!(!word.contains(['{', '}']), "{}: {word}", protocol.name);
            }
        }
        assert!(Protocol::named("tape").err().unwrap().to_string().contains("nbd"));
    }
}
