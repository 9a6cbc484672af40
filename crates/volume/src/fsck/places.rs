//! Where in the volume a problem is, for people: inode numbers tell them nothing.

use super::Problem;
use super::census::Census;
use crate::key;
use soda_storage::Table;
use soda_types::{Ino, Name};
use std::collections::{BTreeMap, HashMap, HashSet};

/// Of a file with more names than this not all are told.
pub const PATHS_MAX: usize = 16;

#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(super) struct Places {
    /// The files of streams that have extents without a record.
    owners: BTreeMap<u64, Ino>,
    /// From the root of the volume. What was known first stays: repair moves things.
    paths: BTreeMap<Ino, Vec<String>>,
    /// Of names that have a problem of their own.
    names: BTreeMap<(Ino, Name), Vec<String>>,
}

/// The names of each inode, and their directories.
type Names<'a> = HashMap<Ino, Vec<(Ino, &'a Name)>>;

impl Places {
    pub(super) fn learn(&mut self, census: &Census, problems: &[Problem]) {
        if problems.is_empty() {
            return;
        }
        let owners = census.owners();
        let streams = problems.iter().filter_map(stream_of);
        self.owners.extend(streams.filter_map(|stream| Some((stream, *owners.get(&stream)?))));
        let mut names = Names::new();
        for (parent, name, dirent) in &census.names {
            names.entry(dirent.ino).or_default().push((*parent, name));
        }
        for problem in problems {
            if let Some((parent, name)) = problem.name() {
                let place = (parent, name.clone());
                self.names
                    .entry(place)
                    .or_insert_with(|| path_of(parent, name, &names).into_iter().collect());
            }
            if let Some(ino) = self.inode(problem)
                && !self.paths.contains_key(&ino)
            {
                let paths = paths_of(ino, &names);
                if !paths.is_empty() {
                    self.paths.insert(ino, paths);
                }
            }
        }
    }

    pub(super) fn inode(&self, problem: &Problem) -> Option<Ino> {
        problem.ino().or_else(|| self.owners.get(&stream_of(problem)?).copied())
    }

    pub(super) fn paths(&self, problem: &Problem) -> &[String] {
        let of_name = problem.name().and_then(|(parent, name)| self.names.get(&(parent, name.clone())));
        let of_inode = || self.inode(problem).and_then(|ino| self.paths.get(&ino));
        of_name.or_else(of_inode).map(Vec::as_slice).unwrap_or_default()
    }
}

fn stream_of(problem: &Problem) -> Option<u64> {
    match problem {
        Problem::Unreadable { table: Table::Extent, key, .. } => key::number(key),
        _ => None,
    }
}

/// Empty for what no names lead to from the root.
fn paths_of(ino: Ino, names: &Names<'_>) -> Vec<String> {
    if ino == Ino::ROOT {
        return vec!["/".to_owned()];
    }
    let own = names.get(&ino).map(Vec::as_slice).unwrap_or_default();
    own.iter().filter_map(|(parent, name)| path_of(*parent, name, names)).take(PATHS_MAX).collect()
}

fn path_of(parent: Ino, name: &Name, names: &Names<'_>) -> Option<String> {
    // One line for one problem, whatever is in a name.
    let shown = |name: &Name| name.to_string().replace(char::is_control, "?");
    let mut parts = vec![shown(name)];
    let mut passed = HashSet::new();
    let mut at = parent;
    while at != Ino::ROOT {
        // A directory has one name.
        let (parent, name) = names.get(&at)?.first()?;
        if !passed.insert(at) {
            return None;
        }
        parts.push(shown(name));
        at = *parent;
    }
    parts.reverse();
    Some(format!("/{}", parts.join("/")))
}
