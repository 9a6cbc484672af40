//! Digests: what a client did under its write leases, told to the server afterwards. Each change with everything it needs to be
//! made there with the same outcome.

use crate::Data;
use crate::change::{Allocate, NewNode, OpId, SetXattr};
use crate::frame::{FrameError, MAX_PAYLOAD};
use crate::session::SessionWelcome;
use bytes::Bytes;
use serde::{Deserialize, Serialize};
use soda_types::{Creds, Fid, Name, Sequence, SetAttr, Slot, Timestamp};
use std::fmt;

/// Most records in a digest.
pub const RECORDS_MAX: usize = 8192;
/// Most inodes that a digest touches or counts versions of: what the answer says of them fits one frame.
pub const INODES_MAX: usize = 16_384;

/// Versions that clients may count in a run of the server, from the first that it names on: the rest of the run is the server's,
/// so that it cannot be brought to the versions of the next.
pub const COUNTED_VERSIONS: u64 = 1 << 43;

/// Most digests of a session without an answer, where it has as many slots as it should.
const MOST_OPEN: u16 = 8;

/// The last slots of a session, in which digests take turns: those that wait at the server in the others must not keep a flush
/// waiting. One more than digests may be without an answer: the slot of a digest is not used again before the one that comes
/// after it has been answered, so the server can tell whether it was applied.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct DigestSlots {
    pub first: Slot,
    /// At least one.
    pub count: u16,
}

impl DigestSlots {
    /// Of so many slots; `None`: there are too few.
    pub fn of(slots: u16) -> Option<DigestSlots> {
        let count = (slots / 8 + 1).min(MOST_OPEN + 1).min(slots.saturating_sub(1));
        (count > 0).then(|| DigestSlots { first: Slot(slots - count), count })
    }

    /// Digests that may be without an answer.
    pub fn most_open(self) -> usize {
        usize::from(self.count.saturating_sub(1)).max(1)
    }

    /// The identity of a digest; their numbers are the sequences.
    pub fn op(self, sequence: Sequence) -> OpId {
        let turn = sequence.0 % u64::from(self.count.max(1));
        OpId { slot: Slot(self.first.0.saturating_add(turn as u16)), sequence }
    }

    pub fn has(self, slot: Slot) -> bool {
        slot.0.checked_sub(self.first.0).is_some_and(|turn| turn < self.count)
    }

    /// The last digest whose reply the server's store has; `Sequence(0)`: none.
    pub fn stored(self, welcome: &SessionWelcome) -> Sequence {
        let stored = welcome.stored.iter().filter(|(slot, _)| self.has(*slot));
        stored.map(|(_, sequence)| *sequence).max().unwrap_or(Sequence(0))
    }
}

/// Number of a record in its log (log sequence number): from 1, never used twice, in the order of the changes.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize)]
pub struct Lsn(pub u64);

impl fmt::Debug for Lsn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "lsn{}", self.0)
    }
}

impl fmt::Display for Lsn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self, f)
    }
}

/// One change and when it was made, by the calendar of the client: it held the lease, so no other clock has a say.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Record {
    pub lsn: Lsn,
    pub at: Timestamp,
    pub change: Change,
}

/// Data of so many bytes is not copied into the message of a digest.
const BESIDE_IT: usize = 16 << 10;

/// A digest as it travels: data of longer writes is taken out of its records, and goes beside them as the frame's payload.
/// Returns how many bytes of that each write has ([`crate::Call::Digest`]), and the payload.
pub fn split_data(records: &mut [Record]) -> (Vec<u32>, Data) {
    let (mut lens, mut payload) = (Vec::new(), Data::new());
    for data in writes(records) {
        let fits = data.len() >= BESIDE_IT && payload.len() + data.len() <= MAX_PAYLOAD as usize;
        let taken = if fits { std::mem::take(data) } else { Data::new() };
        lens.push(taken.len() as u32);
        payload.append(taken);
    }
    lens.truncate(lens.iter().rposition(|len| *len > 0).map_or(0, |last| last + 1));
    (lens, payload)
}

/// The reverse of [`split_data`]. The records share the memory of the payload.
///
/// # Errors
/// [`FrameError::Body`]: the two do not belong together.
pub fn join_data(records: &mut [Record], lens: &[u32], mut payload: Bytes) -> Result<(), FrameError> {
    let wrong = || FrameError::Body("a digest's data does not fit its writes".to_owned());
    let mut writes = writes(records);
    for len in lens.iter().map(|len| *len as usize) {
        let data = writes.next().ok_or_else(wrong)?;
        if len == 0 {
            continue;
        }
        if !data.is_empty() || len > payload.len() {
            return Err(wrong());
        }
        *data = payload.split_to(len).into();
    }
    if payload.is_empty() { Ok(()) } else { Err(wrong()) }
}

/// What the writes among them write.
fn writes(records: &mut [Record]) -> impl Iterator<Item = &mut Data> {
    records.iter_mut().filter_map(|record| match &mut record.change {
        Change::Write { data, .. } => Some(data),
        _ => None,
    })
}

/// A name in a directory.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
pub struct Place {
    pub directory: Fid,
    pub name: Name,
}

/// A change that was made under write leases. It names inodes where a system call names paths: their numbers are reserved
/// with the lease, so what is created has its own before the server knows of it.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub enum Change {
    /// creat, mkdir, mknod, symlink.
    Create {
        place: Place,
        fid: Fid,
        new: NewNode,
    },
    /// O_TMPFILE: an inode with no name. `directory` decides what it inherits.
    TmpFile {
        directory: Fid,
        fid: Fid,
        new: NewNode,
    },
    Link {
        fid: Fid,
        place: Place,
    },
    Unlink {
        place: Place,
        fid: Fid,
        then: Fate,
    },
    /// rmdir(2).
    RemoveDirectory {
        place: Place,
        fid: Fid,
    },
    Rename {
        from: Place,
        to: Place,
        moved: Fid,
        what: Moved,
        /// The inode that `to` meant before, and what becomes of it.
        replaced: Option<(Fid, Fate)>,
    },
    /// RENAME_EXCHANGE: each fid is what its place means before.
    Exchange {
        one: (Place, Fid),
        other: (Place, Fid),
        what: Moved,
    },
    /// The last process closed an inode that has no name any more: it is gone.
    Release {
        fid: Fid,
    },
    SetAttr {
        fid: Fid,
        set: SetAttr,
    },
    /// Appends have found their place: nobody else can write while the lease is held.
    Write {
        fid: Fid,
        offset: u64,
        data: Data,
        kill_suid_sgid: bool,
    },
    Allocate {
        fid: Fid,
        offset: u64,
        len: u64,
        how: Allocate,
    },
    SetXattr {
        fid: Fid,
        name: Vec<u8>,
        value: Bytes,
        how: SetXattr,
        kill_sgid: bool,
    },
    RemoveXattr {
        fid: Fid,
        name: Vec<u8>,
    },
    /// RENAME_WHITEOUT: as a rename, and `left` stays at `from`, a whiteout of these owners ([`NewNode::whiteout`]).
    Whiteout {
        from: Place,
        to: Place,
        moved: Fid,
        what: Moved,
        replaced: Option<(Fid, Fate)>,
        left: (Fid, Creds),
    },
}

/// What becomes of an inode that loses a name.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Fate {
    /// It has others, or a process still has it open.
    Stays,
    /// It was the last, and nobody here has it open.
    Gone,
}

/// What a rename moves.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Moved {
    /// No directory, or one that stays below the same parent.
    Leaf,
    /// A directory that gets another parent (for an exchange: at least one): the shape of the tree changes.
    Subtree,
}

/// What changes depend on each other by.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub enum Object {
    /// Attributes, contents, existence.
    Inode(Fid),
    /// What a name means.
    Name(Place),
    /// Which directory is below which: moves of directories are checked against each other (a directory cannot come to
    /// lie in itself).
    Tree,
}

/// How a change touches an object. Two changes of one object may be made in any order only if both share it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Touch {
    /// For a directory in which names change: its times, size and link count end up the same whatever the order.
    Shared,
    Exclusive,
}

/// [`Change::space`] of a change with so many bytes of data, or of names and values: what is kept beside the metadata is
/// in its journal, in a sorted file, and in another one for the time of a merge; data that is longer is rounded up to blocks.
pub fn space_for(bytes: usize) -> u64 {
    const RECORDS: u64 = 1024;
    const SMALL: u64 = 64 << 10;
    let bytes = bytes as u64;
    RECORDS + bytes + 2 * bytes.min(SMALL)
}

/// What a change takes beside [`Change::space`] by which lists come to be stored that it does not name, of so many bytes: those
/// that are inherited, and those that follow the permission bits.
pub fn space_for_lists(bytes: usize) -> u64 {
    space_for(bytes) - space_for(0)
}

/// [`Change::space`] of an allocation of so many bytes: who is told that they are his finds no full disk when it is told.
fn space_to_allocate(len: u64) -> u64 {
    space_for(0).saturating_add(len)
}

/// The same of a small change that goes through to the server: the server and its client take it off what is reserved.
pub fn space_through(bytes: usize) -> u64 {
    const RECORDS: u64 = 4096;
    RECORDS + bytes as u64
}

impl Change {
    /// The inode that it creates.
    pub fn creates(&self) -> Option<Fid> {
        match self {
            Change::Create { fid, .. } | Change::TmpFile { fid, .. } => Some(*fid),
            Change::Whiteout { left: (fid, _), .. } => Some(*fid),
            _ => None,
        }
    }

    /// What the change touches. Each object once.
    pub fn touches(&self) -> Vec<(Object, Touch)> {
        use Touch::{Exclusive, Shared};
        let name = |place: &Place| (Object::Name(place.clone()), Exclusive);
        let inode = |fid: &Fid| (Object::Inode(*fid), Exclusive);
        let directory = |fid: &Fid| (Object::Inode(*fid), Shared);
        let mut touches = match self {
            Change::Create { place, fid, .. }
            | Change::Link { fid, place }
            | Change::Unlink { place, fid, .. }
            | Change::RemoveDirectory { place, fid } => {
                vec![name(place), directory(&place.directory), inode(fid)]
            }
            Change::TmpFile { directory: parent, fid, .. } => vec![directory(parent), inode(fid)],
            Change::Rename { from, to, moved, replaced, .. }
            | Change::Whiteout { from, to, moved, replaced, .. } => {
                let mut touches = vec![name(from), name(to), inode(moved), directory(&from.directory)];
                touches.extend(replaced.iter().map(|(fid, _)| inode(fid)));
                touches.extend(self.creates().iter().map(inode));
                touches.extend((to.directory != from.directory).then(|| directory(&to.directory)));
                touches
            }
            Change::Exchange { one, other, .. } => {
                let (one, other) = ((&one.0, &one.1), (&other.0, &other.1));
                let mut touches = vec![
                    name(one.0),
                    name(other.0),
                    inode(one.1),
                    inode(other.1),
                    directory(&one.0.directory),
                ];
                touches.extend((other.0.directory != one.0.directory).then(|| directory(&other.0.directory)));
                touches
            }
            Change::Release { fid }
            | Change::SetAttr { fid, .. }
            | Change::Write { fid, .. }
            | Change::Allocate { fid, .. }
            | Change::SetXattr { fid, .. }
            | Change::RemoveXattr { fid, .. } => vec![inode(fid)],
        };
        if !self.moved_directories().is_empty() {
            touches.push((Object::Tree, Exclusive));
        }
        touches
    }

    /// What [`Change::weight`] counts beside data, names and values.
    pub const RECORD_WEIGHT: u64 = 200;

    /// Bytes of memory that the change is worth, about.
    pub fn weight(&self) -> u64 {
        let extra = match self {
            Change::Write { data, .. } => data.len(),
            Change::SetXattr { name, value, .. } => name.len() + value.len(),
            Change::Create { place, new, .. } => place.name.as_bytes().len() + new.target.len(),
            _ => 0,
        };
        Change::RECORD_WEIGHT + extra as u64
    }

    /// Bytes that the server's disk may need for it at most, about: what a client has to have reserved before it makes the
    /// change by itself. What gives space back needs none that was reserved.
    pub fn space(&self) -> u64 {
        match self {
            Change::Unlink { .. } | Change::RemoveDirectory { .. } | Change::Release { .. } => 0,
            Change::SetAttr { set, .. } if set.size.is_some() => 0,
            Change::Write { data, .. } => space_for(data.len()),
            Change::Allocate { len, how: Allocate::Extend | Allocate::KeepSize, .. } => {
                space_to_allocate(*len)
            }
            Change::SetXattr { name, value, .. } => space_for(name.len() + value.len()),
            Change::Create { place, new, .. } => space_for(place.name.as_bytes().len() + new.target.len()),
            Change::Link { place, .. } | Change::Rename { to: place, .. } => {
                space_for(place.name.as_bytes().len())
            }
            Change::Whiteout { from, to, .. } => {
                [from, to].map(|place| space_for(place.name.as_bytes().len())).iter().sum()
            }
            _ => space_for(0),
        }
    }

    /// What gets another parent, if directories may be among it.
    pub fn moved_directories(&self) -> Vec<Fid> {
        match self {
            Change::Rename { moved, what: Moved::Subtree, .. }
            | Change::Whiteout { moved, what: Moved::Subtree, .. } => vec![*moved],
            Change::Exchange { one, other, what: Moved::Subtree } => vec![one.1, other.1],
            _ => Vec::new(),
        }
    }

    /// Whether space may be given back by it.
    pub fn frees_space(&self) -> bool {
        match self {
            Change::Unlink { then, .. }
            | Change::Rename { replaced: Some((_, then)), .. }
            | Change::Whiteout { replaced: Some((_, then)), .. } => *then == Fate::Gone,
            Change::SetAttr { set, .. } => set.size.is_some(),
            Change::Release { .. } | Change::Allocate { how: Allocate::PunchHole, .. } => true,
            _ => false,
        }
    }

    /// Whether the server needs room for file data, or for what is like it.
    pub fn brings_data(&self) -> bool {
        match self {
            Change::Allocate { how, .. } => *how != Allocate::PunchHole,
            Change::Write { .. } | Change::SetXattr { .. } => true,
            _ => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use soda_types::{Ino, VolumeId};

    fn place(directory: u64, name: &str) -> Place {
        Place { directory: fid(directory), name: Name::try_from(name).unwrap() }
    }

    fn fid(ino: u64) -> Fid {
        Fid::new(VolumeId(1), Ino(ino))
    }

    fn rename(from: Place, to: Place, what: Moved) -> Change {
        Change::Rename { from, to, moved: fid(9), what, replaced: None }
    }

    fn write(len: usize) -> Record {
        let data = vec![len as u8; len].into();
        let change = Change::Write { fid: fid(1), offset: 0, data, kill_suid_sgid: false };
        Record { lsn: Lsn(1), at: Timestamp::new(1, 0), change }
    }

    #[test]
    fn long_data_goes_beside_the_records_and_comes_back() {
        const MIB: usize = 1 << 20;
        let other = Record { change: Change::Release { fid: fid(2) }, ..write(0) };
        let all = [
            write(5),
            write(BESIDE_IT),
            other,
            write(MIB),
            write(MIB),
            write(BESIDE_IT - 1),
            write(BESIDE_IT),
        ];
        let mut records = all.to_vec();
        let (lens, payload) = split_data(&mut records);
        assert_eq!(
            lens,
            [0, BESIDE_IT, MIB, 0, 0, BESIDE_IT].map(|len| len as u32),
            "no more than a frame has room for"
        );
        assert_eq!(payload.len(), MIB + 2 * BESIDE_IT);
        join_data(&mut records, &lens, payload.to_bytes()).unwrap();
        assert_eq!(records, all);
        let (lens, payload) = split_data(&mut records[..1]);
        assert!(lens.is_empty() && payload.is_empty(), "{lens:?}");
    }

    #[test]
    fn data_that_is_not_of_these_records_is_refused() {
        let empty = || [write(0), write(0)];
        let joined =
            |mut records: [Record; 2], lens: &[u32]| join_data(&mut records, lens, vec![1; 10].into());
        assert_eq!(joined(empty(), &[4, 6]), Ok(()));
        for lens in [&[4, 5][..], &[4, 7], &[4], &[], &[4, 0, 6], &[4, 6, 0], &[u32::MAX, 11]] {
            assert!(joined(empty(), lens).is_err(), "{lens:?}");
        }
        assert!(joined([write(0), write(1)], &[4, 6]).is_err(), "it has data already");
    }

    #[test]
    fn digests_take_turns_in_the_last_slots() {
        let slots = DigestSlots::of(64).unwrap();
        assert_eq!((slots.first, slots.count, slots.most_open()), (Slot(55), 9, 8));
        let mut used: Vec<Slot> = (100..109).map(|number| slots.op(Sequence(number)).slot).collect();
        assert_eq!(slots.op(Sequence(109)).slot, used[0]);
        used.sort_unstable();
        assert_eq!(used, (55..64).map(Slot).collect::<Vec<_>>());
        assert!(used.iter().all(|slot| slots.has(*slot)) && !slots.has(Slot(54)) && !slots.has(Slot(64)));
        assert_eq!((DigestSlots::of(1), DigestSlots::of(2).unwrap().most_open()), (None, 1));
    }

    #[test]
    fn each_object_is_touched_once() {
        let changes = [
            rename(place(1, "a"), place(1, "b"), Moved::Leaf),
            rename(place(1, "a"), place(2, "b"), Moved::Subtree),
            Change::Exchange {
                one: (place(1, "a"), fid(5)),
                other: (place(1, "b"), fid(6)),
                what: Moved::Leaf,
            },
        ];
        for change in changes {
            let touches = change.touches();
            for (at, (object, _)) in touches.iter().enumerate() {
                assert!(
                    !touches[at + 1..].iter().any(|(other, _)| other == object),
                    "{object:?} in {change:?}"
                );
            }
        }
    }

    #[test]
    fn a_whiteout_is_created_and_moves_like_a_rename() {
        let whiteout = |what| Change::Whiteout {
            from: place(1, "a"),
            to: place(2, "b"),
            moved: fid(9),
            what,
            replaced: Some((fid(8), Fate::Gone)),
            left: (fid(7), Creds::default()),
        };
        let change = whiteout(Moved::Subtree);
        assert_eq!((change.creates(), change.moved_directories()), (Some(fid(7)), vec![fid(9)]));
        assert!(
            change.frees_space()
                && change.space() > rename(place(1, "a"), place(2, "b"), Moved::Leaf).space()
        );
        for touched in [Object::Inode(fid(7)), Object::Inode(fid(8)), Object::Inode(fid(9)), Object::Tree] {
            assert!(change.touches().contains(&(touched.clone(), Touch::Exclusive)), "{touched:?}");
        }
        assert!(!whiteout(Moved::Leaf).touches().contains(&(Object::Tree, Touch::Exclusive)));
    }

    #[test]
    fn only_moves_of_directories_touch_the_tree() {
        let tree = |change: Change| change.touches().iter().any(|(object, _)| *object == Object::Tree);
        assert!(!tree(rename(place(1, "a"), place(2, "a"), Moved::Leaf)));
        assert!(tree(rename(place(1, "a"), place(2, "a"), Moved::Subtree)));
    }
}
