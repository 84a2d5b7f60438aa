//! Copies of the programs whose AES uses no extension of the processor.
//!
//! `encrypt` uses ring, which asks the processor for its extensions once, with the function `OPENSSL_cpuid_setup`. In a copy this
//! function returns at once. ring's answer is then that of a processor with SSE2 alone, and it takes its own portable code. All other
//! code of the copy is that of the program, at the same addresses.

use crate::programs::beside;
use crate::setting::Failure;
use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};

/// The end of the name of ring's function; the beginning has ring's version.
const PROBE: &[u8] = b"_OPENSSL_cpuid_setup";
/// The instruction `ret`.
const RETURN: u8 = 0xc3;
/// `e_ident` of an ELF file with 64 bits, little-endian, and `e_machine` of x86-64.
const MAGIC: &[u8] = b"\x7fELF\x02\x01";
const X86_64: u64 = 62;
const LOAD: u64 = 1;
const SYMBOL_TABLE: u64 = 2;

/// The program and `outboard-bench`.
pub(super) struct Programs {
    pub(super) outboard: PathBuf,
    pub(super) bench: PathBuf,
}

impl Programs {
    /// The programs as they are: AES uses the extensions of this processor.
    pub(super) fn hardware() -> Result<Programs, Failure> {
        Ok(Programs { outboard: beside("outboard")?, bench: std::env::current_exe()? })
    }

    /// Copies of them into a directory: AES is software.
    pub(super) fn software(hardware: &Programs, directory: &Path) -> Result<Programs, Failure> {
        let copy = |program: &Path| -> Result<PathBuf, Failure> {
            let to = directory.join(program.file_name().unwrap_or(OsStr::new("program")));
            let failed = |error: &dyn std::fmt::Display| format!("a copy of {}: {error}", program.display());
            let mut bytes = fs::read(program).map_err(|error| failed(&error))?;
            without_probe(&mut bytes).map_err(|problem| failed(&problem))?;
            // The copy keeps the permissions.
            fs::copy(program, &to).and_then(|_| fs::write(&to, bytes)).map_err(|error| failed(&error))?;
            Ok(to)
        };
        Ok(Programs { outboard: copy(&hardware.outboard)?, bench: copy(&hardware.bench)? })
    }
}

/// Reads an ELF file: a number of so many bytes at a place.
struct Elf<'a>(&'a [u8]);

impl Elf<'_> {
    fn number(&self, place: u64, bytes: usize) -> Result<u64, String> {
        let place = usize::try_from(place).map_err(|_| "it is cut short")?;
        let found = self.0.get(place..).and_then(|rest| rest.get(..bytes)).ok_or("it is cut short")?;
        Ok(found.iter().rev().fold(0, |number, byte| number << 8 | u64::from(*byte)))
    }

    /// Returns the places of the entries of a table, by the fields of the header for its place, entry size and count.
    fn table(&self, place: u64, size: u64, count: u64) -> Result<impl Iterator<Item = u64> + use<>, String> {
        let (begin, size, count) = (self.number(place, 8)?, self.number(size, 2)?, self.number(count, 2)?);
        Ok((0..count).map(move |at| begin + at * size))
    }

    /// Returns the addresses of ring's functions.
    fn probes(&self) -> Result<Vec<u64>, String> {
        let sections: Vec<u64> = self.table(0x28, 0x3a, 0x3c)?.collect();
        let mut found = Vec::new();
        for section in &sections {
            if self.number(section + 4, 4)? != SYMBOL_TABLE {
                continue;
            }
            let (place, bytes) = (self.number(section + 0x18, 8)?, self.number(section + 0x20, 8)?);
            let names =
                sections.get(self.number(section + 0x28, 4)? as usize).ok_or("it names no section")?;
            let names = self.number(names + 0x18, 8)?;
            for symbol in (place..place + bytes).step_by(24) {
                let name = (names + self.number(symbol, 4)?) as usize;
                let rest = self.0.get(name..).unwrap_or_default();
                let name = rest.split(|byte| *byte == 0).next().unwrap_or_default();
                if name.ends_with(PROBE) {
                    found.push(self.number(symbol + 8, 8)?);
                }
            }
        }
        Ok(found)
    }

    /// Returns the place of an address in the file.
    fn place(&self, address: u64) -> Result<usize, String> {
        for segment in self.table(0x20, 0x36, 0x38)? {
            let (begin, bytes) = (self.number(segment + 0x10, 8)?, self.number(segment + 0x20, 8)?);
            if self.number(segment, 4)? == LOAD && (begin..begin + bytes).contains(&address) {
                return Ok((self.number(segment + 8, 8)? + address - begin) as usize);
            }
        }
        Err(format!("nothing is loaded at {address:#x}"))
    }
}

/// Makes ring's function return at once.
fn without_probe(program: &mut [u8]) -> Result<(), String> {
    let elf = Elf(program);
    if !program.starts_with(MAGIC) || elf.number(0x12, 2)? != X86_64 {
        return Err("it is no program for x86-64, and only there the extensions can be turned off".into());
    }
    let places =
        elf.probes()?.into_iter().map(|address| elf.place(address)).collect::<Result<Vec<_>, _>>()?;
    if places.is_empty() {
        return Err("it has no symbol OPENSSL_cpuid_setup of ring: build it without `strip`".into());
    }
    places.into_iter().for_each(|place| program[place] = RETURN);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_that_is_no_program_or_cut_short_is_refused() {
        for (bytes, problem) in [(&b"#!/bin/sh"[..], "no program"), (b"\x7fELF\x02\x01\x01", "cut short")] {
            let error = without_probe(&mut bytes.to_vec()).unwrap_err();
            assert!(error.contains(problem), "{error}");
        }
        let mut half = fs::read(std::env::current_exe().unwrap()).unwrap();
        half.truncate(half.len() / 2);
        without_probe(&mut half).unwrap_err();
    }

    #[test]
    #[cfg(target_arch = "x86_64")]
    fn the_function_of_ring_is_found_and_one_byte_changes() {
        let mut bytes = fs::read(std::env::current_exe().unwrap()).unwrap();
        let before = bytes.clone();
        without_probe(&mut bytes).unwrap();
        assert_eq!(bytes.iter().zip(&before).filter(|(a, b)| a != b).count(), 1);
    }
}
