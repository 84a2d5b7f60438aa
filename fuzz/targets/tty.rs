//! The adapter of a `tty`: packets of a worker and of the kernel.
#![no_main]

use devices::tty::fuzz;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| fuzz::handle(bytes));
