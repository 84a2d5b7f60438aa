//! `encrypt`: authenticated encryption of each message from the source half to the sink half
//! ("Networked Device Driver Architecture" (2012), 4.8.2), with AES-256-GCM (NIST SP 800-38D) or
//! ChaCha20-Poly1305 (RFC 8439).
//!
//! Each source half derives its own key from the flow's key and a random salt ([`seal`]), so a
//! restart never reuses a nonce. The sink half accepts messages of one source half at a time
//! ([`sink`]).

mod seal;
mod sink;
mod source;
#[cfg(test)]
mod tests;

use contract::{
    Format, ModuleEntry, OptionKind, OptionSpec, Options, Pair, Promises, Secret, Site, Stage, StageError,
    StageResult, Work, agreed,
};

/// The pair.
pub(crate) struct Encrypt;

static OPTIONS: [OptionSpec; 2] = [
    agreed(
        "cipher",
        OptionKind::Choice(&["aes-256-gcm", "chacha20-poly1305"]),
        "aes-256-gcm",
        "encryption algorithm",
    ),
    agreed(
        "window",
        OptionKind::Integer { min: 64, max: 1 << 20 },
        "4096",
        "most messages that one may be late by; later ones count as replays",
    ),
];

fn key(site: &Site) -> StageResult<&Secret> {
    site.key.as_ref().ok_or_else(|| {
        let problem = "encrypt has no key: pair the two hosts (sessions without --insecure have a key), or give \
                       both the same 32 bytes with --key-file";
        StageError::Own(problem.into())
    })
}

impl Pair for Encrypt {
    fn entry(&self) -> ModuleEntry {
        ModuleEntry {
            name: "encrypt",
            summary: "encrypts each message end to end: secret, authentic, no replays",
            doc: include_str!("doc.md"),
            options: &OPTIONS,
        }
    }

    fn promises(&self, _options: &Options) -> Promises {
        Promises { may_drop: true, ..Promises::default() }
    }

    fn work(&self, _options: &Options) -> Work {
        Work::Symmetric
    }

    fn accept(&self, _format: &Format, _options: &Options) -> Result<Format, String> {
        Ok(Format::Bytes)
    }

    fn source(&self, options: &Options, _format: &Format, site: &Site) -> StageResult<Box<dyn Stage>> {
        Ok(Box::new(source::Source::new(options, key(site)?, site.seed)))
    }

    fn sink(&self, options: &Options, _format: &Format, site: &Site) -> StageResult<Box<dyn Stage>> {
        Ok(Box::new(sink::Sink::new(options, key(site)?)))
    }
}
