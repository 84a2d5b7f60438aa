//! The terminal in user space of a `tty`: packets of a worker and of the kernel.
#![no_main]

use devices::tty::fuzz_cuse;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| fuzz_cuse::handle(bytes));
