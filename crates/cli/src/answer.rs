//! What a mount's daemon says when it is asked.

use crate::log::LogView;
use serde::{Deserialize, Serialize};
use soda_client::{ClientStanding, SessionView};
use soda_fuse::{MountEntry, Transport};
use soda_types::{Errno, FsError};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// What the names of figures of the backlog begin with, among the counters.
pub(crate) const BACKLOG: &str = "backlog_";

/// The answer to a question that a daemon does not know, as it is of an older version.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct NotUnderstood {
    pub error: String,
}

/// How a sync that a daemon was asked for ended.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum SyncAnswer {
    Synced,
    /// The server has no room for what it is told. The daemon keeps it, and tries again.
    NoRoom,
    /// Changes were lost, now or before, and nobody has heard of it.
    Lost,
    Failed(String),
}

impl From<FsError> for SyncAnswer {
    fn from(error: FsError) -> SyncAnswer {
        match error.errno {
            Errno::NoSpace | Errno::Quota => SyncAnswer::NoRoom,
            _ => SyncAnswer::Failed(error.to_string()),
        }
    }
}

/// What a daemon says of its mount.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub(crate) struct MountStatus {
    pub dir: PathBuf,
    /// `HOST:PORT/VOLUME`
    pub source: String,
    /// Major and minor number of its device; a daemon of an older version does not say.
    #[serde(default)]
    pub device: Option<(u32, u32)>,
    pub options: String,
    /// To be kept by the next daemon; one of an older version does not say.
    #[serde(default)]
    pub log: Option<LogView>,
    /// What the kernel's requests come over; a daemon of an older version does not say.
    #[serde(default)]
    pub transport: Option<Transport>,
    pub pid: u32,
    pub session: SessionView,
    /// Counters since the start, by name.
    pub counters: BTreeMap<String, u64>,
}

impl MountStatus {
    pub(crate) fn is_connected(&self) -> bool {
        self.session.standing == ClientStanding::Connected
    }

    /// Whether this daemon answers what is asked there: its own mount, and bind mounts of it, wherever they are.
    pub(crate) fn serves(&self, entry: &MountEntry) -> bool {
        self.device.map_or(entry.dir == self.dir, |device| entry.device == device)
    }

    /// Whether that is the mount that the daemon made, not one that was made of it.
    pub(crate) fn made(&self, entry: &MountEntry) -> bool {
        self.serves(entry) && entry.dir == self.dir && entry.root == Path::new("/")
    }

    /// The value of one of its options; `None` if it has none, or was not given.
    pub(crate) fn option(&self, name: &str) -> Option<&str> {
        self.options.split(',').find_map(|option| option.strip_prefix(name)?.strip_prefix('='))
    }

    pub(crate) fn writes_behind(&self) -> bool {
        self.option("write") == Some("behind")
    }

    /// 0 if nothing counts under this name.
    pub(crate) fn count(&self, name: &str) -> u64 {
        self.counters.get(name).copied().unwrap_or(0)
    }

    /// Sent to the server on somebody's behalf; renewals, which time sends, are left out.
    pub(crate) fn messages(&self) -> u64 {
        let messages =
            self.counters.iter().filter(|(name, _)| name.starts_with("msg_") && *name != "msg_renew");
        messages.map(|(_, count)| count).sum()
    }
}
