//! Records as people read them.

use super::KeptRecord;
use super::names::{Named, Way};
use soda_oplog::{Change, Fate, Place, Record};
use soda_protocol::Whereabouts;
use soda_types::{Fid, FileKind, Ino, Name, SetAttr};
use std::collections::{BTreeSet, HashMap};
use std::time::Duration;

/// Where inodes lie, as far as the records until now have said; and the server, of those that they do not name.
#[derive(Debug, Default)]
pub(super) struct Paths {
    known: HashMap<Fid, (Fid, Name)>,
    now: HashMap<Fid, Whereabouts>,
    /// Those at which paths have begun, for want of a name.
    unnamed: BTreeSet<Fid>,
    /// Of the record that is being shown.
    named: Named,
}

impl Paths {
    /// `now`: what the server says, by the numbers that the log has.
    pub(super) fn with(now: HashMap<Fid, Whereabouts>) -> Paths {
        Paths { now, ..Paths::default() }
    }

    /// The inodes that these records do not name, and that nothing is known of.
    pub(super) fn unnamed<'a>(records: impl Iterator<Item = &'a Record>) -> BTreeSet<Fid> {
        let mut paths = Paths::default();
        records.for_each(|record| drop(paths.show(record)));
        paths.unnamed
    }

    /// To be called in the order of the log.
    pub(super) fn show(&mut self, record: &Record) -> KeptRecord {
        self.named = Named::Log;
        let (operation, path, detail) = self.words(&record.change);
        self.follow(&record.change);
        let secs = u64::try_from(record.at.secs()).unwrap_or(0);
        let at = Duration::new(secs, record.at.nanos());
        let (operation, named) = (operation.to_owned(), self.named);
        KeptRecord { lsn: record.lsn, at, operation, path, detail, named }
    }

    fn words(&mut self, change: &Change) -> (&'static str, String, String) {
        let none = String::new;
        match change {
            Change::Create { place, new, .. } => {
                let target = String::from_utf8_lossy(&new.target);
                let (operation, detail) = match new.kind {
                    FileKind::Directory => ("mkdir", format!("mode {:o}", new.perm & !new.umask)),
                    FileKind::Symlink => ("symlink", format!("to {target}")),
                    FileKind::File => ("create", format!("mode {:o}", new.perm & !new.umask)),
                    _ => ("mknod", format!("mode {:o}", new.perm & !new.umask)),
                };
                (operation, self.place(place), detail)
            }
            Change::TmpFile { fid, .. } => ("tmpfile", self.path(*fid), none()),
            Change::Link { fid, place } => ("link", self.place(place), format!("to {}", self.path(*fid))),
            Change::Unlink { place, then, .. } => {
                let gone = if *then == Fate::Gone { "its last name" } else { "" };
                ("unlink", self.place(place), gone.to_owned())
            }
            Change::RemoveDirectory { place, .. } => ("rmdir", self.place(place), none()),
            Change::Rename { from, to, replaced, .. } | Change::Whiteout { from, to, replaced, .. } => {
                let over = if replaced.is_some() { ", over what was there" } else { "" };
                let left = if change.creates().is_some() { ", leaving a whiteout" } else { "" };
                ("rename", self.place(from), format!("to {}{over}{left}", self.place(to)))
            }
            Change::Exchange { one, other, .. } => {
                ("exchange", self.place(&one.0), format!("with {}", self.place(&other.0)))
            }
            Change::Release { fid } => {
                ("close", self.path(*fid), "the last one of a file without a name".into())
            }
            Change::SetAttr { fid, set } => {
                let operation = if set.size.is_some() { "truncate" } else { "setattr" };
                (operation, self.path(*fid), attributes(set))
            }
            Change::Write { fid, offset, data, .. } => {
                ("write", self.path(*fid), format!("{} bytes at {offset}", data.len()))
            }
            Change::Allocate { fid, offset, len, how } => {
                ("fallocate", self.path(*fid), format!("{how:?}, {len} bytes at {offset}"))
            }
            Change::SetXattr { fid, name, value, .. } => {
                let name = String::from_utf8_lossy(name);
                ("setxattr", self.path(*fid), format!("{name}, {} bytes", value.len()))
            }
            Change::RemoveXattr { fid, name } => {
                ("removexattr", self.path(*fid), String::from_utf8_lossy(name).into_owned())
            }
        }
    }

    /// As [`Paths::show`], without a word.
    pub(super) fn follow(&mut self, change: &Change) {
        let mut is_at = |fid: &Fid, place: &Place| {
            self.known.insert(*fid, (place.directory, place.name.clone()));
        };
        match change {
            Change::Create { place, fid, .. } | Change::Link { fid, place } => is_at(fid, place),
            // Who is told of later changes of it wants to know which one it was.
            Change::Unlink { place, fid, .. } | Change::RemoveDirectory { place, fid } => is_at(fid, place),
            Change::Rename { to, moved, .. } => is_at(moved, to),
            Change::Whiteout { from, to, moved, left, .. } => {
                is_at(moved, to);
                is_at(&left.0, from);
            }
            Change::Exchange { one, other, .. } => {
                is_at(&one.1, &other.0);
                is_at(&other.1, &one.0);
            }
            _ => {}
        }
    }

    fn place(&mut self, place: &Place) -> String {
        match self.path(place.directory).as_str() {
            "/" => format!("/{}", place.name),
            above => format!("{above}/{}", place.name),
        }
    }

    fn path(&mut self, fid: Fid) -> String {
        let Way { from, names, named } = self.way(fid);
        let names: Vec<String> = names.iter().map(ToString::to_string).collect();
        self.named = self.named.max(named);
        match from {
            None => format!("/{}", names.join("/")),
            Some(from) => {
                self.unnamed.insert(from);
                [vec![format!("<inode {}>", from.ino.0)], names].concat().join("/")
            }
        }
    }

    /// The names that lead to an inode.
    pub(super) fn way(&self, fid: Fid) -> Way<'_> {
        let mut names = Vec::new();
        let mut at = fid;
        // A damaged log can say anything.
        while let Some((above, name)) = self.known.get(&at).filter(|_| names.len() < 1000) {
            names.push(name);
            at = *above;
        }
        names.reverse();
        match self.now.get(&at) {
            _ if at.ino == Ino::ROOT => Way { from: None, names, named: Named::Log },
            Some(Whereabouts::At(above)) => {
                Way { from: None, names: above.iter().chain(names).collect(), named: Named::Server }
            }
            Some(Whereabouts::Gone) => Way { from: Some(at), names, named: Named::Gone },
            Some(Whereabouts::NotFound) => Way { from: Some(at), names, named: Named::NotFound },
            None => Way { from: Some(at), names, named: Named::NotAsked },
        }
    }
}

fn attributes(set: &SetAttr) -> String {
    let mut said = Vec::new();
    said.extend(set.size.map(|size| format!("size {size}")));
    said.extend(set.perm.map(|perm| format!("mode {perm:o}")));
    said.extend(set.uid.map(|uid| format!("owner {uid}")));
    said.extend(set.gid.map(|gid| format!("group {gid}")));
    said.extend(set.atime.map(|_| "atime".to_owned()));
    said.extend(set.mtime.map(|_| "mtime".to_owned()));
    said.join(", ")
}

/// Bytes of data that a change brings.
pub(super) fn bytes_of(change: &Change) -> u64 {
    match change {
        Change::Write { data, .. } => data.len() as u64,
        Change::SetXattr { value, .. } => value.len() as u64,
        _ => 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use soda_oplog::Moved;
    use soda_oplog::world::{fid, new, place, record};

    #[test]
    fn paths_are_known_as_far_as_the_log_goes() {
        let create = |directory, number, ino, kind| Change::Create {
            place: place(fid(directory), number),
            fid: fid(ino),
            new: new(kind),
        };
        let write = |ino| Change::Write {
            fid: fid(ino),
            offset: 7,
            data: b"data".as_slice().into(),
            kill_suid_sgid: false,
        };
        let moved = Change::Whiteout {
            from: place(fid(1), 0),
            to: place(fid(9), 3),
            moved: fid(2),
            what: Moved::Subtree,
            replaced: None,
            left: (fid(7), soda_types::Creds::default()),
        };
        let changes = [
            create(1, 0, 2, FileKind::Directory),
            create(2, 1, 3, FileKind::File),
            write(3),
            moved,
            write(3),
            write(7),
        ];
        let mut paths = Paths::default();
        let records: Vec<Record> = (1..).zip(changes).map(|(lsn, change)| record(lsn, change)).collect();
        let shown: Vec<KeptRecord> = records.iter().map(|record| paths.show(record)).collect();
        let name_of = |number| place(fid(1), number).name;
        let name = |number| name_of(number).to_string();
        let said: Vec<(&str, &str)> =
            shown.iter().map(|record| (record.operation.as_str(), record.path.as_str())).collect();
        let (top, file, at) = (format!("/{}", name(0)), format!("/{}/{}", name(0), name(1)), name(3));
        let after = format!("<inode 9>/{at}/{}", name(1));
        assert_eq!(
            said,
            [
                ("mkdir", &*top),
                ("create", &*file),
                ("write", &*file),
                ("rename", &*top),
                ("write", &*after),
                ("write", &*top)
            ]
        );
        assert_eq!(shown[2].detail, "4 bytes at 7");
        assert_eq!(shown[3].detail, format!("to <inode 9>/{at}, leaving a whiteout"));
        let named: Vec<Named> = shown.iter().map(|record| record.named).collect();
        use Named::{Gone, Log, NotAsked, Server};
        assert_eq!(named, [Log, Log, Log, NotAsked, NotAsked, Log]);

        assert_eq!(Paths::unnamed(records.iter()), BTreeSet::from([fid(9)]));
        let home = Whereabouts::At(vec![name_of(4), name_of(5)]);
        let said = |place| {
            let mut paths = Paths::with(HashMap::from([(fid(9), place)]));
            let shown: Vec<KeptRecord> = records.iter().map(|record| paths.show(record)).collect();
            (shown[4].path.clone(), shown[3].named, shown[4].named)
        };
        let of_now = format!("/{}/{}/{at}/{}", name(4), name(5), name(1));
        assert_eq!(said(home), (of_now, Server, Server));
        assert_eq!(said(Whereabouts::Gone), (after, Gone, Gone));
    }
}
