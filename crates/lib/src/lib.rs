//! The files of a Soda volume for programs, by path, without a mount: the calls of [`std::fs`], asynchronous.
//!
//! ```no_run
//! use libsoda::{OpenOptions, Options, Volume};
//!
//! # async fn example() -> Result<(), Box<dyn std::error::Error>> {
//! let volume = Volume::connect(Options::new("files.example.org:7632", "main")).await?;
//! volume.create_dir_all("notes/2026").await?;
//! volume.write("notes/2026/today", "it rains").await?;
//! assert_eq!(volume.read("/notes/2026/today").await?, "it rains"); // from the cache, under a lease
//!
//! let log = volume.open("notes/log", OpenOptions::new().append(true).create(true)).await?;
//! log.append("one line\n").await?; // behind what other machines append meanwhile
//! log.sync().await?; // on the server's disk now
//! log.close().await?;
//! volume.shutdown().await?;
//! # Ok(()) }
//! ```
//!
//! A volume that is connected is a machine of its own: it sees what mounts and other programs see, with the same guarantees
//! (docs/SEMANTICS.md), and has a cache, leases and a session. docs/LIBRARY.md says what a program has to know of these.
//!
//! - Paths begin at the volume's root, with or without `/`. Symbolic links are followed within the volume.
//! - **Nobody checks access rights**: a program with the library may do everything. [`Options::user`] is who owns what it makes.
//! - Every future may be dropped at any point. A change that was sent by then may still be carried out.
//! - All of it needs a multi-thread runtime of tokio.
//!
//! What is not here (locks of ranges, sparse files, hooks for another cache) has [`soda_client`], below: [`Volume::client`].

mod dir;
mod error;
mod file;
mod options;
mod path;
mod volume;

pub use dir::{DirEntry, ReadDir};
pub use error::{Error, Result, Unfinished};
pub use file::File;
pub use options::{OpenOptions, Options, User, Writes};
pub use soda_client::{ConnectError, RenameHow};
pub use soda_types::{Attr as Metadata, Errno, FileKind, FsStats, LockMode, SetAttr, SetTime, Timestamp};
pub use volume::Volume;
