//! System calls and ioctls that have no safe wrapper elsewhere: the only room with unsafe code.
//!
//! Every unsafe block says why it is sound. What is exported is safe to call with any arguments.

pub mod activation;
pub mod address;
pub mod clock;
pub mod descriptor;
pub mod event;
pub mod input;
mod ioctl;
pub mod load;
pub mod memory;
pub mod net;
pub mod poller;
pub mod process;
pub mod signal;
pub mod thread;
pub mod tty;
pub mod tun;
pub mod uevent;
pub mod v4l2;
