//! The client of a Soda server ("LibFS"): what a mount and `libsoda` are made of. Programs take `libsoda`, which goes by path;
//! here everything goes by inode, and as much as the kernel's side of a mount needs.
//!
//! ```no_run
//! use soda_client::{Client, ClientConfig, KillPriv, NoKernel, OpenMode};
//! use soda_protocol::{IfExists, NewNode, WriteAt};
//! use soda_types::{Creds, FileKind, InUse, Name};
//!
//! # async fn example() -> Result<(), Box<dyn std::error::Error>> {
//! let client = Client::connect(ClientConfig::new("127.0.0.1:7632", "main"), Box::new(NoKernel)).await?;
//! let new = NewNode {
//!     kind: FileKind::File, perm: 0o644, umask: 0o022, rdev: 0, target: Vec::new(), creds: Creds::default(),
//!     existing: IfExists::Open, open: InUse::No,
//! };
//! let name = Name::try_from("greeting")?;
//! let (_, file) = client.create_open(client.root(), &name, new, OpenMode::ReadWrite).await?;
//! client.write_all(&file, WriteAt::Offset(0), "hello".into(), KillPriv::Keep).await?;
//! client.fsync_file(&file).await?;
//! assert_eq!(client.read(&file, 0, 100).await?.to_bytes(), "hello"); // from the cache, under a lease
//! println!("{} requests, {} leases held", client.stats().requests(), client.leases().len());
//! client.shutdown().await;
//! # Ok(()) }
//! ```
//!
//! `examples/two_machines.rs` is a program with two clients, which see one copy.
//!
//! # How it hangs together
//! - [`ops`] are the operations. Each looks into the caches under one short lock; if that is enough its future is ready at
//!   the first poll, in about a microsecond. Otherwise the polling thread itself writes the request into the socket.
//! - Replies are applied to the caches by the task that reads the connection, in the order of arrival, whether or not the
//!   caller still waits. So an operation's future may be dropped at any point; who has to know first what becomes of a change
//!   that is under way polls it on by [`caller::poll_for_dying`].
//! - The caches (`cache`) hold what a lease covers: attributes, names present and absent, data, xattrs. Lease logic is in
//!   `soda_lease::holder`, nowhere else.
//! - Recalls (`recall`): the kernel's caches first ([`KernelHooks`]), then ours, then the answer.
//! - The session (`session`): renewal, reconnecting, reclaim after a restart of the server, and what is lost with it.
//!
//! # What is not here
//! Nothing reads a clock except [`Clock`]; nothing holds the lock of the caches across a wait; nothing here knows of FUSE.

mod behind;
mod cache;
mod call;
pub mod caller;
mod client;
mod clock;
mod config;
mod connection;
pub mod crash;
mod error;
pub mod handover;
mod hooks;
mod inner;
mod interface;
mod introspect;
mod kernel;
mod life;
mod log;
pub mod ops;
pub mod pool;
mod private;
mod recall;
pub mod recover;
mod replay;
mod session;
mod stats;
pub mod threads;
mod validity;
mod why;

pub use cache::names::Edition;
pub use client::Client;
pub use clock::{BootClock, Clock};
pub use config::{
    Access, CacheConfig, ClientConfig, ConfigError, Consistency, Fsync, Locks, Retry, WriteBehind,
    WritePolicy,
};
pub use connection::{Stream, TcpTransport, Transport};
pub use error::ConnectError;
pub use hooks::{KernelHooks, NAMES_RUN_OUT, Names, NamesLock, NoKernel};
pub use interface::{Entry, RenameHow, Written};
pub use introspect::{
    BacklogView, ChangesView, ClientStanding, HeldLease, LocksView, OWN_LOCKS_MAX, OwnLease, SessionView,
    Told,
};
pub use life::Untold;
pub use ops::{Detail, DirEntry, HandedDir, HandedFile, OpenDir, OpenFile, OpenMode, ReadData};
/// The wire's words that operations take and give, for users that see nothing else of the protocol.
pub use soda_protocol::{Allocate, IfExists, LockWait, NewNode, Node, Replace, SetXattr, Whence, WriteAt};
pub use soda_types::KillPriv;
pub use stats::StatsSnapshot;
pub use validity::{Answering, Cached, Due, Validity};
pub use why::Why;

use std::sync::{Mutex, MutexGuard};

/// A thread that panicked has been reported; its half of the work does not make the rest unusable.
fn lock<T: ?Sized>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}
