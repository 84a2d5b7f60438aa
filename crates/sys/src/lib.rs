//! System calls and ioctls without a safe wrapper elsewhere. This is the only crate with unsafe code.
//!
//! Every unsafe block tells why it is sound. Every exported function is safe with any arguments.

pub mod activation;
pub mod address;
pub mod clock;
pub mod datagram;
pub mod descriptor;
pub mod disk;
pub mod environment;
pub mod event;
pub mod exit;
pub mod framebuffer;
pub mod hang_up;
pub mod hidraw;
pub mod input;
pub mod ioctl;
pub mod listening;
pub mod memory;
pub mod net;
pub mod poller;
pub mod port_user;
pub mod process;
pub mod random;
pub mod receipt;
pub mod route;
pub mod seccomp;
pub mod sequencer;
pub mod signal;
pub mod sound_server;
pub mod stop;
pub mod thread;
pub mod timer;
pub mod tty;
pub mod tun;
pub mod uevent;
pub mod v4l2;
#[cfg(feature = "media")]
pub mod vp8;
pub mod watch;
