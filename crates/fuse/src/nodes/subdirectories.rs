//! Names of directories that the kernel was told: taking one back is another matter than taking back any other name, as processes
//! may work in the directory.

use super::Nodes;
use soda_types::Fid;
use std::collections::HashMap;
use std::time::{Duration, Instant};

/// A reply to a look-up may still be on its way through the kernel for this long after it was written. Only the choice
/// between a cheap and an expensive notification depends on it.
const SETTLE: Duration = Duration::from_secs(1);

/// When the kernel makes a name of an answer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum TakenIn {
    /// While whoever asked holds the directory's lock, which taking the name back waits for.
    UnderItsLock,
    /// When whoever asked gets to run, with or without the lock: a look-up that asks again for what is there has none.
    AtAnyTime,
}

/// What a name stands for, as far as taking it back goes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum NameKind {
    /// Not a directory.
    Plain,
    /// A directory: processes may work in it.
    Directory,
    /// A directory whose last look-up may not have reached the kernel's cache yet. Letting it expire may come too early; but if
    /// all names of the mount are made void instead, whoever works in a directory has no path until it has been looked up.
    FreshDirectory,
}

impl Nodes {
    pub(crate) fn tell_subdirectory(&self, dir: Fid, name: &[u8], taken_in: TakenIn) {
        self.with(dir, |node| {
            let looked_up = node.subdirectories.entry(name.into()).or_default();
            if taken_in == TakenIn::AtAnyTime {
                *looked_up = Some(Instant::now());
            }
        });
    }

    /// How a name that the kernel was told can be taken back.
    pub(crate) fn take_subdirectory(&self, dir: Fid, name: &[u8]) -> NameKind {
        let told = self.with(dir, |node| node.subdirectories.remove(name)).flatten();
        match told {
            None => NameKind::Plain,
            Some(Some(at)) if at.elapsed() < SETTLE => NameKind::FreshDirectory,
            Some(_) => NameKind::Directory,
        }
    }

    pub(crate) fn clear_subdirectories(&self, dir: Fid) {
        self.with(dir, |node| node.subdirectories.clear());
    }
}

/// When a name was told says nothing to another process: it may have been just now.
pub(super) mod names_only {
    use super::{HashMap, Instant};
    use serde::{Deserialize, Deserializer, Serializer};

    type Names = HashMap<Box<[u8]>, Option<Instant>>;

    pub(in crate::nodes) fn serialize<S: Serializer>(names: &Names, to: S) -> Result<S::Ok, S::Error> {
        to.collect_seq(names.keys())
    }

    pub(in crate::nodes) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Names, D::Error> {
        let names = Vec::<Box<[u8]>>::deserialize(from)?;
        Ok(names.into_iter().map(|name| (name, Some(Instant::now()))).collect())
    }
}
