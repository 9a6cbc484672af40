//! How a volume is connected, and how a file is opened.

use soda_client::{Access, CacheConfig, ClientConfig, Retry, WriteBehind, WritePolicy};
use soda_types::{Errno, FsError, FsResult};
use std::path::PathBuf;
use std::time::Duration;

/// Who owns what is made.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct User {
    pub uid: u32,
    pub gid: u32,
}

/// When the server hears of changes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Writes {
    /// Before the call returns: a round trip each. The default.
    Through,
    /// Up to a second later, where this machine has a lease for it: then a change is a matter of microseconds. Others see it
    /// at once all the same. Until it is told, or [`File::sync`](crate::File::sync) has returned, it is in this process's memory,
    /// and with [`Options::cache_dir`] in a log on the local disk, which the next start tells the server.
    Delayed,
}

/// How a volume is connected.
#[derive(Clone, Debug)]
pub struct Options {
    pub(crate) client: ClientConfig,
    pub(crate) user: User,
}

impl Options {
    /// `server` is `host:port`. Without more: changes go through, the cache is in memory (512 MiB of file data), an operation
    /// waits for the server for as long as it takes, and what is made belongs to root.
    pub fn new(server: impl Into<String>, volume: impl Into<String>) -> Options {
        Options { client: ClientConfig::new(server, volume), user: User { uid: 0, gid: 0 } }
    }

    /// What `soda status` and the server's log call this program.
    pub fn name(mut self, name: impl Into<String>) -> Options {
        self.client.name = name.into();
        self
    }

    /// Who owns what is made. For others than root a write takes set-uid and set-gid bits away.
    pub fn user(mut self, user: User) -> Options {
        self.user = user;
        self
    }

    pub fn writes(mut self, writes: Writes) -> Options {
        self.client.write = match writes {
            Writes::Through => WritePolicy::Through,
            Writes::Delayed => WritePolicy::Behind(WriteBehind::default()),
        };
        self
    }

    /// Every change fails with EROFS.
    pub fn read_only(mut self) -> Options {
        self.client.access = Access::ReadOnly;
        self
    }

    /// A directory on a local disk: file data that were read survive a restart in it, and changes that the server has not heard
    /// of. Several programs may share one. 4 GiB at most.
    pub fn cache_dir(mut self, dir: impl Into<PathBuf>) -> Options {
        self.client.cache.dir = Some(dir.into());
        self
    }

    /// Most bytes of file data that are cached in memory.
    pub fn cache_memory(mut self, bytes: u64) -> Options {
        self.client.cache = CacheConfig { memory_bytes: bytes, ..self.client.cache };
        self
    }

    /// An operation that the server does not answer for so long fails with EIO. A change may still be carried out later.
    pub fn timeout(mut self, timeout: Duration) -> Options {
        self.client.retry = Retry::Soft { timeout };
        self
    }
}

/// For what nothing here has a word; the owner is root.
impl From<ClientConfig> for Options {
    fn from(client: ClientConfig) -> Options {
        Options { client, user: User { uid: 0, gid: 0 } }
    }
}

/// How a file is opened, as [`std::fs::OpenOptions`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct OpenOptions {
    pub(crate) read: bool,
    pub(crate) write: bool,
    pub(crate) append: bool,
    pub(crate) truncate: bool,
    pub(crate) create: bool,
    pub(crate) create_new: bool,
    pub(crate) mode: u16,
}

impl Default for OpenOptions {
    fn default() -> OpenOptions {
        OpenOptions::new()
    }
}

impl OpenOptions {
    /// For nothing yet; what is created gets 0644.
    pub const fn new() -> OpenOptions {
        OpenOptions {
            read: false,
            write: false,
            append: false,
            truncate: false,
            create: false,
            create_new: false,
            mode: 0o644,
        }
    }

    pub const fn read(mut self, read: bool) -> OpenOptions {
        self.read = read;
        self
    }

    pub const fn write(mut self, write: bool) -> OpenOptions {
        self.write = write;
        self
    }

    /// [`File::append`](crate::File::append) alone: nothing is written over.
    pub const fn append(mut self, append: bool) -> OpenOptions {
        self.append = append;
        self
    }

    /// Cut to nothing when it is opened.
    pub const fn truncate(mut self, truncate: bool) -> OpenOptions {
        self.truncate = truncate;
        self
    }

    pub const fn create(mut self, create: bool) -> OpenOptions {
        self.create = create;
        self
    }

    /// EEXIST if it is there, whatever it is.
    pub const fn create_new(mut self, create_new: bool) -> OpenOptions {
        self.create_new = create_new;
        self
    }

    /// Permission bits of what is created. There is no umask.
    pub const fn mode(mut self, mode: u16) -> OpenOptions {
        self.mode = mode;
        self
    }

    pub(crate) fn writes(&self) -> bool {
        self.write || self.append
    }

    /// # Errors
    /// EINVAL for what makes no sense, as in [`std::fs::OpenOptions`].
    pub(crate) fn check(&self) -> FsResult<()> {
        let invalid = |what| Err(FsError::new(Errno::Invalid, what));
        match *self {
            OpenOptions { read: false, write: false, append: false, .. } => {
                invalid("neither to read, nor to write, nor to append")
            }
            OpenOptions { truncate: true, append: true, create_new: false, .. } => {
                invalid("to append and to truncate")
            }
            OpenOptions { write: false, append: false, truncate, create, create_new, .. }
                if truncate || create || create_new =>
            {
                invalid("to create or truncate, but not to write")
            }
            _ => Ok(()),
        }
    }
}
