//! What programs do to the tree when writes are delayed: one meaning, for a client that does it under its leases, for the
//! server that does it for a client, and as a record of the log.

use crate::message::{Content, Object, OpUid, Register, Stamp, Value, fid_of};
use bytes::Bytes;
use soda_oplog::{Change, Fate, Moved, Place};
use soda_protocol::{IfExists, NewNode};
use soda_types::{Creds, FileKind, InUse, Name};

/// An operation with everything it depends on: if that is not so (any more), it fails and changes nothing.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Deed {
    Write(Register),
    /// The name means nothing before.
    Create {
        at: Register,
        object: Object,
    },
    /// The name means this before; a directory is empty.
    Remove {
        at: Register,
        object: Object,
    },
    /// Files only. `to` means `replaced` before.
    Rename {
        from: Register,
        to: Register,
        moved: Object,
        replaced: Option<Object>,
    },
}

/// Why a deed is not done.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Obstacle {
    /// What it depends on is not known here.
    Unknown,
    /// As ENOENT, EEXIST, ENOTEMPTY.
    Fails,
}

/// Bytes of a file that one register stands for.
pub const CELL_BYTES: u64 = 8;

pub fn is_directory(object: Object) -> bool {
    object.is_multiple_of(2)
}

impl Deed {
    /// The registers that its answer tells of.
    pub fn registers(&self) -> Vec<Register> {
        match *self {
            Deed::Write(at) | Deed::Create { at, .. } | Deed::Remove { at, .. } => vec![at],
            Deed::Rename { from, to, .. } => vec![from, to],
        }
    }

    /// The inodes that it changes and that exist before.
    pub fn changes(&self) -> Vec<Object> {
        let mut objects = match *self {
            Deed::Write(at) | Deed::Create { at, .. } => vec![at.object],
            Deed::Remove { at, object } => vec![at.object, object],
            Deed::Rename { from, to, moved, replaced } => {
                [from.object, to.object, moved].into_iter().chain(replaced).collect()
            }
        };
        objects.sort_unstable();
        objects.dedup();
        objects
    }

    pub fn makes(&self) -> Option<Object> {
        match *self {
            Deed::Create { object, .. } => Some(object),
            _ => None,
        }
    }

    pub fn ends(&self) -> Option<Object> {
        match *self {
            Deed::Remove { object, .. } => Some(object),
            Deed::Rename { replaced, .. } => replaced,
            Deed::Write(_) | Deed::Create { .. } => None,
        }
    }

    /// The values that it leaves, for its own registers first. `cells`: registers of each inode. `value`: what there is now,
    /// `None` if that is not known.
    ///
    /// # Errors
    /// See [`Obstacle`].
    pub fn effects(
        &self,
        uid: OpUid,
        cells: u8,
        value: impl Fn(Register) -> Option<Value>,
    ) -> Result<Vec<(Register, Value)>, Obstacle> {
        let registers = self.registers();
        let before: Vec<Value> =
            registers.iter().map(|at| value(*at)).collect::<Option<_>>().ok_or(Obstacle::Unknown)?;
        let as_expected = |expected: Content, found: &Value| {
            if found.content == expected { Ok(()) } else { Err(Obstacle::Fails) }
        };
        let count = before.iter().map(|value| value.stamp.count).max().unwrap_or_default().saturating_add(1);
        let stamp = Stamp { count, by: uid };
        let to = |content: Content| Value { stamp, content };
        let all_of = move |object: Object| (0..cells).map(move |cell| Register { object, cell });
        let mut effects = match *self {
            Deed::Write(at) => {
                if before[0].content == Content::Gone {
                    return Err(Obstacle::Fails);
                }
                vec![(at, to(Content::Data(uid)))]
            }
            Deed::Create { at, object } => {
                as_expected(Content::Blank, &before[0])?;
                let made = all_of(object).map(|register| (register, to(Content::Blank)));
                [(at, to(Content::Names(object)))].into_iter().chain(made).collect()
            }
            Deed::Remove { at, object } => {
                as_expected(Content::Names(object), &before[0])?;
                if is_directory(object) {
                    for register in all_of(object) {
                        as_expected(Content::Blank, &value(register).ok_or(Obstacle::Unknown)?)?;
                    }
                }
                vec![(at, to(Content::Blank))]
            }
            Deed::Rename { from, to: target, moved, replaced } => {
                as_expected(Content::Names(moved), &before[0])?;
                as_expected(replaced.map_or(Content::Blank, Content::Names), &before[1])?;
                vec![(from, to(Content::Blank)), (target, to(Content::Names(moved)))]
            }
        };
        // Nothing is newer than the end.
        let end = Value { stamp: Stamp { count: u32::MAX, by: uid }, content: Content::Gone };
        effects.extend(self.ends().into_iter().flat_map(all_of).map(|register| (register, end)));
        Ok(effects)
    }

    /// As it goes into the log.
    pub fn change(&self, uid: OpUid) -> Change {
        match *self {
            Deed::Write(at) => Change::Write {
                fid: at.fid(),
                offset: u64::from(at.cell) * CELL_BYTES,
                data: Bytes::copy_from_slice(&uid.0.to_le_bytes()),
                kill_suid_sgid: false,
            },
            Deed::Create { at, object } => {
                Change::Create { place: place(at), fid: fid_of(object), new: new(object) }
            }
            Deed::Remove { at, object } if is_directory(object) => {
                Change::RemoveDirectory { place: place(at), fid: fid_of(object) }
            }
            Deed::Remove { at, object } => {
                Change::Unlink { place: place(at), fid: fid_of(object), then: Fate::Gone }
            }
            Deed::Rename { from, to, moved, replaced } => Change::Rename {
                from: place(from),
                to: place(to),
                moved: fid_of(moved),
                what: Moved::Leaf,
                replaced: replaced.map(|object| (fid_of(object), Fate::Gone)),
            },
        }
    }
}

/// Names are single bytes: the cell, above what a name may not contain.
const FIRST_NAME: u8 = b'a';

fn place(at: Register) -> Place {
    let name = Name::try_from(char::from(FIRST_NAME + at.cell).to_string().as_str());
    Place { directory: at.fid(), name: name.expect("a letter is a name") }
}

/// The register that a place is.
pub fn register_at(place: &Place) -> Register {
    let letter = place.name.as_bytes().first().copied().unwrap_or(FIRST_NAME);
    Register { object: crate::message::object_of(place.directory), cell: letter - FIRST_NAME }
}

fn new(object: Object) -> NewNode {
    NewNode {
        kind: if is_directory(object) { FileKind::Directory } else { FileKind::File },
        perm: 0o644,
        umask: 0,
        rdev: 0,
        target: Vec::new(),
        creds: Creds::default(),
        existing: IfExists::Fail,
        open: InUse::No,
    }
}
