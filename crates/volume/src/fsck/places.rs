//! Where in the volume a problem is, for people: inode numbers tell them nothing.

use super::Problem;
use super::census::Census;
use crate::key;
use soda_storage::Table;
use soda_types::{Ino, Name};
use std::collections::{BTreeMap, HashMap, HashSet};

#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(super) struct Places {
    /// The files of streams that have extents without a record.
    owners: BTreeMap<u64, Ino>,
    /// From the root of the volume. What was known first stays: repair moves things.
    paths: BTreeMap<Ino, String>,
}

impl Places {
    pub(super) fn learn(&mut self, census: &Census, problems: &[Problem]) {
        if problems.is_empty() {
            return;
        }
        let owners = census.owners();
        let streams = problems.iter().filter_map(stream_of);
        self.owners.extend(streams.filter_map(|stream| Some((stream, *owners.get(&stream)?))));
        let names: HashMap<Ino, (Ino, &Name)> =
            census.names.iter().map(|(parent, name, dirent)| (dirent.ino, (*parent, name))).collect();
        for problem in problems {
            if let Some(ino) = self.inode(problem)
                && !self.paths.contains_key(&ino)
                && let Some(path) = path_of(ino, &names)
            {
                self.paths.insert(ino, path);
            }
        }
    }

    pub(super) fn inode(&self, problem: &Problem) -> Option<Ino> {
        problem.ino().or_else(|| self.owners.get(&stream_of(problem)?).copied())
    }

    pub(super) fn path(&self, ino: Ino) -> Option<&str> {
        self.paths.get(&ino).map(String::as_str)
    }
}

fn stream_of(problem: &Problem) -> Option<u64> {
    match problem {
        Problem::Unreadable { table: Table::Extent, key, .. } => key::number(key),
        _ => None,
    }
}

/// None for what no names lead to from the root.
fn path_of(ino: Ino, names: &HashMap<Ino, (Ino, &Name)>) -> Option<String> {
    let mut parts = Vec::new();
    let mut passed = HashSet::new();
    let mut at = ino;
    while at != Ino::ROOT {
        let (parent, name) = names.get(&at)?;
        if !passed.insert(at) {
            return None;
        }
        // One line for one problem, whatever is in a name.
        parts.push(name.to_string().replace(char::is_control, "?"));
        at = *parent;
    }
    parts.reverse();
    Some(format!("/{}", parts.join("/")))
}
