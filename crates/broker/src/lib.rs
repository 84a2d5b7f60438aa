//! Sessions with peers: a broker listens, connects, opens devices, creates nodes and speaks the control channel.
//!
//! The device host's broker is [`share`], with one [`share_session`] for each peer; the application host's is
//! [`attach`]. Both build on [`peer_session`], which has the table of a session's states. Both run flows in worker
//! processes and never touch their records.
//!
//! # Checks of a peer's permission
//!
//! 1. A new connection must be within the limits: `share/admission.rs` counts connections, handshakes and sessions, by
//!    address before the peer is authenticated and by key afterwards.
//! 2. The TLS handshake proves a key. [`DeviceHost::receive`] refuses a peer that uses the wrong security mode, and
//!    [`DeviceHost::welcome`] refuses a key that is not paired and looks up the peer's [`Permit`](trust::Permit). The
//!    application host checks the key of the device host in [`ApplicationHost::connect`]; on each reconnection it must be the
//!    same key (`Search::connect` in `attach/redial.rs`).
//! 3. Only the same key resumes a session: [`DeviceHost::welcome`] compares the token and the key.
//! 4. Each device is checked against the permit: [`Session::catalogue`] lists the permitted devices only, and
//!    [`Session::handle`] and [`Session::open`] treat the others like devices that do not exist.
//! 5. A data connection belongs to the session whose control channel made its introduction: [`Session::accept`]. With
//!    `--insecure`, the session's token is enough.
//! 6. The permit is checked again when the list of peers changes. [`DeviceHost::refresh_known`] reloads the list each
//!    second and at each `Hello`. It ends the sessions of removed peers, and [`Session::permit`] takes the devices
//!    that are no longer permitted. [`ApplicationHost::refresh_known`] ends an `attach` whose device host was removed.
//!
//! # From the loss of a link to its return
//!
//! 1. *Failure.* A read or write of the control channel fails, in [`Session::serve`] or [`ApplicationHost::run`], and
//!    [`PeerSession::handle_link_failure`] closes the connection. The device host drops the data connections too
//!    ([`Session::lose_links`]); the application host does so in step 6.
//! 2. *Search.* [`ApplicationHost::redial`] starts a thread that connects (`Search::run` in `attach/redial.rs`), and another
//!    one until a connection succeeds. It also searches while the old connection exists and is silent. A device host that
//!    stays silent is looked up by its name ([`hosts::look_up`]).
//! 3. *Silence.* If nothing arrives for `--limit silence`, [`ControlLink::is_silent`] returns true on each host, and
//!    [`PeerSession::handle_silence`] informs the workers. Sinks of state and timely flows, and of reliable ones with a
//!    state, put their partner into the neutral state.
//! 4. *Hello.* The application host sends the session's token, the number of messages that it has received, and the
//!    number of this attempt ([`hosts::dial::greet`]).
//! 5. *Welcome.* [`DeviceHost::welcome`] finds the session, and [`Session::is_newer`] refuses a connection that is older
//!    than the present one. [`Session::resume`] answers with the number of messages received by the device host, and
//!    sends the messages that the application host lacks.
//! 6. *Continuation.* [`ApplicationHost::continue_on`] sends the messages that the device host lacks, and starts a data
//!    connection for each open device. If the session is over, it starts a new one and opens all devices again
//!    ([`PeerSession::start_over`]).
//! 7. *Data connections.* [`ApplicationHost::dial`] connects and introduces them. [`Session::accept`] checks the
//!    introduction, and [`Session::link`] or [`Session::link_datagrams`] passes the socket to the worker and confirms
//!    with `Linked`.
//! 8. *Return.* [`PeerSession::handle_link_back`] ends the silence: on the device host in step 5, on the application host after
//!    step 6. On the new data connection, the source of a reliable flow retransmits the unacknowledged records from its
//!    replay store. So does the source of a state flow, if the link was not silent; after a silence it begins a new epoch
//!    with a snapshot.
//!
//! A data connection can also fail alone. The worker reports `LinkFailed`, the device host asks for another connection
//! with `Unlinked`, and the application host continues with step 7.
//!
//! [`ControlLink::is_silent`]: control_link::ControlLink::is_silent
//! [`PeerSession::handle_link_back`]: peer_session::PeerSession::handle_link_back
//! [`PeerSession::handle_link_failure`]: peer_session::PeerSession::handle_link_failure
//! [`PeerSession::handle_silence`]: peer_session::PeerSession::handle_silence
//! [`PeerSession::start_over`]: peer_session::PeerSession::start_over
//! [`Session::accept`]: share_session::Session::accept
//! [`Session::catalogue`]: share_session::Session::catalogue
//! [`Session::handle`]: share_session::Session::handle
//! [`Session::is_newer`]: share_session::Session::is_newer
//! [`Session::link`]: share_session::Session::link
//! [`Session::link_datagrams`]: share_session::Session::link_datagrams
//! [`Session::lose_links`]: share_session::Session::lose_links
//! [`Session::open`]: share_session::Session::open
//! [`Session::permit`]: share_session::Session::permit
//! [`Session::resume`]: share_session::Session::resume
//! [`Session::serve`]: share_session::Session::serve

// The documentation links private functions too, for readers of the source.
#![allow(rustdoc::private_intra_doc_links)]

pub mod agree;
pub mod attach;
pub mod browse;
pub mod change;
pub mod control_link;
pub mod events;
pub mod handover;
pub mod join_socket;
pub mod offers;
pub mod peer_session;
pub mod programs;
mod rest;
pub mod share;
pub mod share_request;
pub mod share_session;
pub mod share_words;
pub mod tracing;

pub use attach::{ApplicationHost, AttachRequest, AttachTarget};
pub use browse::{Offered, browse};
pub use events::{EmitEvent, Event};
pub use hosts::place::{Confirm, DEFAULT_LISTEN, DEFAULT_PORT, parse_target, with_port};
pub use join_socket::{Join, Joined};
pub use share::DeviceHost;
pub use share_request::{DeviceChoice, MakePartner, ShareDevice, ShareRequest};
pub use share_words::ShareWords;
