//! Processors that do not sleep: what one of a virtual machine takes to wake is most of what a flow over loopback takes where
//! nothing else happens, so that who keeps it busy makes the flow faster.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};

/// Keeps processors awake, for who has nothing else for them to do, until it is dropped.
pub(super) struct Awake {
    stop: Arc<AtomicBool>,
    threads: Vec<JoinHandle<()>>,
}

impl Awake {
    /// `sharers` has nobody else who is idle; at `others` attackers are, and come first.
    pub(super) fn keep(sharers: usize, others: usize) -> Awake {
        let stop = Arc::<AtomicBool>::default();
        let keep = |cpu, rest: fn()| {
            let until = stop.clone();
            thread::spawn(move || {
                sys::thread::pin_to_cpu(cpu);
                sys::thread::be_idle();
                while !until.load(Ordering::Relaxed) {
                    rest();
                }
            })
        };
        // Who yields where others are not idle has the kernel owe them processor time, and a busy one of them before the rest.
        let threads = vec![keep(sharers, std::hint::spin_loop), keep(others, thread::yield_now)];
        Awake { stop, threads }
    }
}

impl Drop for Awake {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        for thread in self.threads.drain(..) {
            // One that panicked has said so.
            let _ = thread.join();
        }
    }
}
