//! A file system that is obviously right, and random histories that are legal in it: for tests, of the log and
//! of a server that is told such histories. What is not legal panics.

#![allow(clippy::unwrap_used, reason = "for tests")]

use crate::{Change, Fate, Lsn, Moved, Place, Record};
use bytes::Bytes;
use soda_protocol::{Allocate, IfExists, NewNode, SetXattr};
use soda_types::acl::{self, Inherited, Kept, NewList};
use soda_types::semantics::is_access_list;
use soda_types::{
    Creds, Fid, FileKind, InUse, Ino, Name, SetAttr, SetTime, Timestamp, VolumeId, XATTR_ACCESS_LIST,
    XATTR_DEFAULT_LIST, mode,
};
use std::collections::{BTreeMap, BTreeSet};

#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Inode {
    pub kind: FileKind,
    pub perm: u16,
    pub gid: u32,
    /// Names of it; those of a directory's own `.` and `..` are not counted.
    pub links: u32,
    pub data: Vec<u8>,
    pub names: BTreeMap<Name, Fid>,
    pub xattrs: BTreeMap<Vec<u8>, Bytes>,
    pub mtime: Timestamp,
    pub ctime: Timestamp,
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Tree {
    inodes: BTreeMap<Fid, Inode>,
}

pub fn fid(ino: u64) -> Fid {
    Fid::new(VolumeId(1), Ino(ino))
}

pub fn name(number: u8) -> Name {
    Name::try_from(format!("n{number}").as_str()).unwrap()
}

pub fn place(directory: Fid, number: u8) -> Place {
    Place { directory, name: name(number) }
}

pub fn new(kind: FileKind) -> NewNode {
    NewNode {
        kind,
        perm: 0o644,
        umask: 0,
        rdev: 0,
        target: Vec::new(),
        creds: Creds::default(),
        existing: IfExists::Fail,
        open: InUse::No,
    }
}

pub fn record(lsn: u64, change: Change) -> Record {
    Record { lsn: Lsn(lsn), at: Timestamp::new(lsn as i64, 0), change }
}

impl Tree {
    /// The root, number 1.
    pub fn empty() -> Tree {
        let at = Timestamp::new(0, 0);
        let root = Inode {
            kind: FileKind::Directory,
            perm: 0o644,
            gid: 0,
            links: 1,
            data: Vec::new(),
            names: BTreeMap::new(),
            xattrs: BTreeMap::new(),
            mtime: at,
            ctime: at,
        };
        Tree { inodes: BTreeMap::from([(fid(1), root)]) }
    }

    fn make(&mut self, fid: Fid, parent: Fid, new: &NewNode, at: Timestamp, links: u32) {
        let parent = &self.inodes[&parent];
        let inherited = match parent.xattrs.get(XATTR_DEFAULT_LIST) {
            Some(list) => Inherited::from_default(list, new.perm, new.kind).unwrap(),
            None => Inherited::plain(new.perm, new.umask),
        };
        let sets_group = parent.perm & mode::SET_GID != 0;
        let hands_on = sets_group && new.kind == FileKind::Directory;
        let inode = Inode {
            kind: new.kind,
            perm: inherited.perm & !inherited.umask | if hands_on { mode::SET_GID } else { 0 },
            gid: if sets_group { parent.gid } else { new.creds.gid },
            links,
            data: Vec::new(),
            names: BTreeMap::new(),
            xattrs: inherited.xattrs().map(|(name, list)| (name.to_vec(), list)).collect(),
            mtime: at,
            ctime: at,
        };
        assert!(self.inodes.insert(fid, inode).is_none(), "{fid} is made twice");
    }

    fn get(&mut self, fid: Fid) -> &mut Inode {
        self.inodes.get_mut(&fid).unwrap_or_else(|| panic!("{fid} does not exist"))
    }

    fn named(&mut self, at: Timestamp, place: &Place, fid: Option<Fid>) -> Option<Fid> {
        let directory = self.get(place.directory);
        assert_eq!(directory.kind, FileKind::Directory);
        (directory.mtime, directory.ctime) = (at, at);
        match fid {
            Some(fid) => directory.names.insert(place.name.clone(), fid),
            None => directory.names.remove(&place.name),
        }
    }

    fn unlinked(&mut self, at: Timestamp, fid: Fid, fate: Fate) {
        let inode = self.get(fid);
        inode.links -= 1;
        inode.ctime = at;
        assert!(inode.names.is_empty(), "{fid} is not empty");
        if fate == Fate::Gone {
            assert_eq!(inode.links, 0);
            self.inodes.remove(&fid);
        }
    }

    pub fn apply(&mut self, record: &Record) {
        let at = record.at;
        match &record.change {
            Change::Create { place, fid, new } => {
                self.make(*fid, place.directory, new, at, 1);
                assert_eq!(self.named(at, place, Some(*fid)), None, "{place:?} is taken");
            }
            Change::TmpFile { directory, fid, new } => self.make(*fid, *directory, new, at, 0),
            Change::Link { fid, place } => {
                let inode = self.get(*fid);
                inode.links += 1;
                inode.ctime = at;
                assert_eq!(self.named(at, place, Some(*fid)), None);
            }
            Change::Unlink { place, fid, then } => {
                assert_eq!(self.named(at, place, None), Some(*fid));
                self.unlinked(at, *fid, *then);
            }
            Change::RemoveDirectory { place, fid } => {
                assert_eq!(self.named(at, place, None), Some(*fid));
                self.unlinked(at, *fid, Fate::Gone);
            }
            Change::Release { fid } => {
                assert_eq!(self.inodes.remove(fid).map(|inode| inode.links), Some(0));
            }
            Change::Rename { from, to, moved, replaced, .. } => {
                assert_eq!(self.named(at, from, None), Some(*moved));
                assert_eq!(self.named(at, to, Some(*moved)), replaced.map(|(fid, _)| fid));
                self.get(*moved).ctime = at;
                if let Some((fid, fate)) = replaced {
                    self.unlinked(at, *fid, *fate);
                }
            }
            Change::Whiteout { from, to, moved, replaced, left: (fid, creds), what } => {
                let (from, to, moved, replaced) = (from.clone(), to.clone(), *moved, *replaced);
                let change = Change::Rename { from: from.clone(), to, moved, what: *what, replaced };
                self.apply(&Record { change, ..record.clone() });
                self.make(*fid, from.directory, &NewNode::whiteout(*creds), at, 1);
                assert_eq!(self.named(at, &from, Some(*fid)), None);
            }
            Change::Exchange { one, other, .. } => {
                assert_eq!(self.named(at, &one.0, Some(other.1)), Some(one.1));
                assert_eq!(self.named(at, &other.0, Some(one.1)), Some(other.1));
                self.get(one.1).ctime = at;
                self.get(other.1).ctime = at;
            }
            Change::SetAttr { fid, set } => {
                let inode = self.get(*fid);
                inode.ctime = at;
                inode.perm = set.perm.unwrap_or(inode.perm);
                inode.gid = set.gid.unwrap_or(inode.gid);
                if let Some(perm) = set.perm
                    && let Some(list) = inode.xattrs.get_mut(XATTR_ACCESS_LIST)
                {
                    *list = acl::after_chmod(list, perm).unwrap();
                }
                if set.kill_suid_sgid {
                    inode.perm &= !mode::SET_UID;
                }
                if let Some(size) = set.size {
                    inode.data.resize(size as usize, 0);
                    inode.mtime = at;
                }
                if let Some(SetTime::At(mtime)) = set.mtime {
                    inode.mtime = mtime;
                }
            }
            Change::Write { fid, offset, data, kill_suid_sgid } => {
                let inode = self.get(*fid);
                let (start, end) = (*offset as usize, *offset as usize + data.len());
                let size = inode.data.len().max(end);
                inode.data.resize(size, 0);
                inode.data[start..end].copy_from_slice(&data.to_bytes());
                (inode.mtime, inode.ctime) = (at, at);
                if *kill_suid_sgid {
                    inode.perm &= !mode::SET_UID;
                }
            }
            Change::SetXattr { fid, name, value, kill_sgid, .. } => {
                let inode = self.get(*fid);
                inode.xattrs.insert(name.clone(), value.clone());
                inode.ctime = at;
                if is_access_list(name) {
                    let new = NewList { name, list: value, kill_sgid: *kill_sgid };
                    let set = acl::set_list(inode.kind, inode.perm, &new).unwrap();
                    inode.perm = set.perm;
                    if set.kept == Kept::No {
                        inode.xattrs.remove(name);
                    }
                }
            }
            Change::RemoveXattr { fid, name } => {
                let inode = self.get(*fid);
                assert!(inode.xattrs.remove(name).is_some());
                inode.ctime = at;
            }
            Change::Allocate { fid, offset, len, how } => {
                let inode = self.get(*fid);
                let (start, end) = (*offset as usize, (*offset + *len) as usize);
                if matches!(how, Allocate::Extend | Allocate::ZeroRange) {
                    let size = inode.data.len().max(end);
                    inode.data.resize(size, 0);
                }
                if !matches!(how, Allocate::Extend | Allocate::KeepSize) {
                    let size = inode.data.len();
                    inode.data[start.min(size)..end.min(size)].fill(0);
                }
                (inode.mtime, inode.ctime) = (at, at);
            }
        }
    }

    /// Times depend on the order of independent changes of one directory, and on clocks.
    pub fn without_times(mut self) -> Tree {
        for inode in self.inodes.values_mut() {
            (inode.mtime, inode.ctime) = (Timestamp::new(0, 0), Timestamp::new(0, 0));
        }
        self
    }

    /// All inodes, in the order of their numbers.
    pub fn inodes(&self) -> impl Iterator<Item = (Fid, &Inode)> {
        self.inodes.iter().map(|(fid, inode)| (*fid, inode))
    }

    fn directories(&self) -> Vec<Fid> {
        self.of_kind(|kind| kind == FileKind::Directory)
    }

    fn of_kind(&self, is: impl Fn(FileKind) -> bool) -> Vec<Fid> {
        self.inodes.iter().filter(|(_, inode)| is(inode.kind)).map(|(fid, _)| *fid).collect()
    }

    fn is_below(&self, fid: Fid, above: Fid) -> bool {
        fid == above || self.inodes[&above].names.values().any(|child| self.is_below(fid, *child))
    }
}

/// A valid access list: its owner, in most of them a user and a mask, its group and others.
fn list(dice: u8) -> Bytes {
    let (perm, nobody) = (u16::from(dice % 8), u32::MAX);
    let mut bytes = 2u32.to_le_bytes().to_vec();
    let mut entry = |tag: u16, perm: u16, id: u32| {
        bytes.extend_from_slice(&tag.to_le_bytes());
        bytes.extend_from_slice(&perm.to_le_bytes());
        bytes.extend_from_slice(&id.to_le_bytes());
    };
    entry(0x01, 6, nobody);
    if dice >= 64 {
        entry(0x02, perm, 1000);
    }
    entry(0x04, perm, nobody);
    if dice >= 64 {
        entry(0x10, u16::from(dice / 8 % 8), nobody);
    }
    entry(0x20, u16::from(dice % 2) * 4, nobody);
    bytes.into()
}

/// Makes a legal history out of random numbers.
struct Author {
    tree: Tree,
    open: BTreeSet<Fid>,
    history: Vec<Record>,
    next: u64,
}

impl Author {
    const ROOT: Fid = Fid { volume: VolumeId(1), ino: Ino::ROOT, generation: 0 };

    fn pick<T: Copy>(from: &[T], dice: u8) -> Option<T> {
        (!from.is_empty()).then(|| from[usize::from(dice) % from.len()])
    }

    fn fate(&self, fid: Fid) -> Fate {
        let last = self.tree.inodes[&fid].links == 1;
        if last && !self.open.contains(&fid) { Fate::Gone } else { Fate::Stays }
    }

    fn add(&mut self, change: Change) {
        let record = record(self.history.len() as u64 + 1, change);
        self.tree.apply(&record);
        self.history.push(record);
    }

    fn step(&mut self, [what, a, b, c, d]: [u8; 5]) -> Option<()> {
        let directory = Author::pick(&self.tree.directories(), a)?;
        let at = place(directory, b % 4);
        let there = self.tree.inodes[&directory].names.get(&at.name).copied();
        let file = Author::pick(&self.tree.of_kind(|kind| kind == FileKind::File), c);
        match what % 16 {
            0..=2 => {
                let kind = if d % 3 == 0 { FileKind::Directory } else { FileKind::File };
                let fid = fid(self.next);
                self.next += 1;
                match there {
                    None => self.add(Change::Create { place: at, fid, new: new(kind) }),
                    Some(_) => {
                        self.open.insert(fid);
                        self.add(Change::TmpFile { directory, fid, new: new(FileKind::File) });
                    }
                }
            }
            3 => match there {
                None if file.is_some() => self.add(Change::Link { fid: file?, place: at }),
                _ => drop(self.open.insert(file?)),
            },
            4 | 5 => {
                let fid = there?;
                let inode = &self.tree.inodes[&fid];
                match inode.kind {
                    FileKind::Directory if inode.names.is_empty() => {
                        self.add(Change::RemoveDirectory { place: at, fid });
                    }
                    FileKind::Directory => {}
                    _ => {
                        let then = self.fate(fid);
                        self.add(Change::Unlink { place: at, fid, then });
                    }
                }
            }
            6 | 7 => {
                let moved = there?;
                let target = place(Author::pick(&self.tree.directories(), c)?, d % 4);
                let there = self.tree.inodes[&target.directory].names.get(&target.name).copied();
                let is_directory = |fid: Fid| self.tree.inodes[&fid].kind == FileKind::Directory;
                if target == at || self.tree.is_below(target.directory, moved) || there == Some(moved) {
                    return None;
                }
                let subtree = is_directory(moved) && target.directory != at.directory;
                let what_moves = if subtree { Moved::Subtree } else { Moved::Leaf };
                if what % 16 == 7
                    && let Some(other) = there
                    && !self.tree.is_below(at.directory, other)
                {
                    let subtree = subtree || is_directory(other) && target.directory != at.directory;
                    let what = if subtree { Moved::Subtree } else { Moved::Leaf };
                    let (one, other) = ((at, moved), (target, other));
                    self.add(Change::Exchange { one, other, what });
                    return Some(());
                }
                let replaced = match there {
                    None => None,
                    Some(fid) if is_directory(fid) != is_directory(moved) => return None,
                    Some(fid) if is_directory(fid) && !self.tree.inodes[&fid].names.is_empty() => {
                        return None;
                    }
                    Some(fid) => Some((fid, if is_directory(fid) { Fate::Gone } else { self.fate(fid) })),
                };
                let (from, to, what) = (at, target, what_moves);
                if a % 4 == 0 {
                    let left = (fid(self.next), Creds::default());
                    self.next += 1;
                    self.add(Change::Whiteout { from, to, moved, what, replaced, left });
                } else {
                    self.add(Change::Rename { from, to, moved, what, replaced });
                }
            }
            8 => {
                let fid = Author::pick(&self.open.iter().copied().collect::<Vec<_>>(), a)?;
                self.open.remove(&fid);
                if self.tree.inodes.get(&fid)?.links == 0 {
                    self.add(Change::Release { fid });
                }
            }
            9 => {
                let fid = if a % 2 == 0 { directory } else { file? };
                let mut set = SetAttr::default();
                // Histories are told to a server whose root serves more than one.
                let hands_on = fid == directory && fid != Author::ROOT;
                match d % 4 {
                    0 if hands_on && c % 2 == 0 => set.perm = Some(mode::SET_GID | u16::from(b)),
                    0 => set.perm = Some(mode::SET_UID | u16::from(b)),
                    2 if hands_on => set.gid = Some(u32::from(b % 3)),
                    1 if fid != directory => set.size = Some(u64::from(b % 8)),
                    _ => set.mtime = Some(SetTime::At(Timestamp::new(-i64::from(b), 0))),
                }
                self.add(Change::SetAttr { fid, set });
            }
            10 if d % 4 != 3 => {
                let (fid, name, value) = match d % 4 {
                    0 => (file?, format!("user.{}", b % 2).into_bytes(), Bytes::copy_from_slice(&[c])),
                    1 if directory != Author::ROOT => (directory, XATTR_DEFAULT_LIST.to_vec(), list(c)),
                    2 if directory != Author::ROOT => (directory, XATTR_ACCESS_LIST.to_vec(), list(c)),
                    _ => (file?, XATTR_ACCESS_LIST.to_vec(), list(c)),
                };
                if self.tree.inodes[&fid].xattrs.contains_key(&name) && a % 2 == 0 {
                    self.add(Change::RemoveXattr { fid, name });
                } else {
                    let (how, kill_sgid) = (SetXattr::Either, b % 3 == 0);
                    self.add(Change::SetXattr { fid, name, value, how, kill_sgid });
                }
            }
            11 if d % 3 == 0 => {
                use Allocate::{Extend, KeepSize, PunchHole, ZeroRange, ZeroRangeKeepSize};
                let how = [Extend, KeepSize, PunchHole, ZeroRange, ZeroRangeKeepSize][usize::from(a % 5)];
                let (offset, len) = (u64::from(b % 6), u64::from(b % 4) + 1);
                self.add(Change::Allocate { fid: file?, offset, len, how });
            }
            _ => {
                let data = vec![d; usize::from(d % 6) + 1].into();
                let (fid, offset) = (file?, u64::from(b % 6));
                self.add(Change::Write { fid, offset, data, kill_suid_sgid: a % 2 == 0 });
            }
        }
        Some(())
    }
}

/// A history that begins with an empty root and numbers what it creates from `first`; with the tree that it leads to.
pub fn history_from(first: u64, dice: &[[u8; 5]]) -> (Vec<Record>, Tree) {
    let mut author = Author { tree: Tree::empty(), open: BTreeSet::new(), history: Vec::new(), next: first };
    for dice in dice {
        let _ = author.step(*dice);
    }
    (author.history, author.tree)
}

/// A tree that was there before, what happened to it, and what it is after that.
pub fn history(dice: &[[u8; 5]]) -> (Tree, Vec<Record>, Tree) {
    let mut author = Author { tree: Tree::empty(), open: BTreeSet::new(), history: Vec::new(), next: 2 };
    let (before, after) = dice.split_at(dice.len() / 3);
    for dice in before {
        let _ = author.step(*dice);
    }
    let start = author.tree.clone();
    let from = author.history.len();
    for dice in after {
        let _ = author.step(*dice);
    }
    (start, author.history.split_off(from), author.tree)
}
