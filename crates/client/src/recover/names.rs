//! Names of what was there before a log was written: the log does not have them, the server does, as they are now.

use super::progress::Reached;
use serde::{Deserialize, Serialize};
use soda_protocol::Whereabouts;
use soda_types::{Fid, Name};
use std::collections::HashMap;

/// What the server says of inodes that a log does not name, by the numbers that the server has for them.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct Names(HashMap<Fid, Whereabouts>);

impl FromIterator<(Fid, Whereabouts)> for Names {
    fn from_iter<T: IntoIterator<Item = (Fid, Whereabouts)>>(said: T) -> Names {
        Names(said.into_iter().collect())
    }
}

impl Names {
    /// Whether the server has named any.
    pub fn has_any(&self) -> bool {
        self.0.values().any(|place| matches!(place, Whereabouts::At(_)))
    }

    /// By the numbers that the log has for them: what it made has got others.
    pub(super) fn by_log(&self, reached: &HashMap<Fid, Reached>) -> HashMap<Fid, Whereabouts> {
        let mut by_log = self.0.clone();
        let renamed =
            reached.iter().filter_map(|(fid, reached)| Some((*fid, self.0.get(&reached.now)?.clone())));
        by_log.extend(renamed);
        by_log
    }
}

/// Where the names in a record's path are from.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Named {
    /// The log.
    #[default]
    Log,
    /// The server: as they are now.
    Server,
    /// It begins at an inode that the server does not have any more.
    Gone,
    /// It begins at an inode that the server has, and of which it found no name in time.
    NotFound,
    /// It begins at an inode that the server was not asked about.
    NotAsked,
}

/// The way to an inode.
pub(super) struct Way<'a> {
    /// Where it begins; `None`: at the root of the volume.
    pub(super) from: Option<Fid>,
    pub(super) names: Vec<&'a Name>,
    pub(super) named: Named,
}
