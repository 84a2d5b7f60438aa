//! Processors that do not sleep. On an idle virtual machine the wake-up of a processor is most of the delay of a flow over
//! loopback, and an attack that keeps it busy would make the flow faster.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};

/// Keeps idle processors awake until it is dropped.
pub(super) struct Awake {
    stop: Arc<AtomicBool>,
    threads: Vec<JoinHandle<()>>,
}

impl Awake {
    /// Keeps the device host's processor and the other one awake. The attacker at idle priority precedes on the other one.
    pub(super) fn keep(device_host: usize, other: usize) -> Awake {
        let stop = Arc::<AtomicBool>::default();
        let keep = |cpu, rest: fn()| {
            let until = stop.clone();
            thread::spawn(move || {
                crate::setting::pin_to_cpu(cpu);
                sys::thread::be_idle();
                while !until.load(Ordering::Relaxed) {
                    rest();
                }
            })
        };
        // Yielding beside threads that are not idle changes the scheduler's accounting, so only the other processor yields.
        let threads = vec![keep(device_host, std::hint::spin_loop), keep(other, thread::yield_now)];
        Awake { stop, threads }
    }
}

impl Drop for Awake {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        for thread in self.threads.drain(..) {
            // A panic has been printed.
            let _ = thread.join();
        }
    }
}
