//! What programs do to the tree when writes are delayed: one meaning, for a client that does it under its leases, for the
//! server that does it for a client, and as a record of the log.

pub use crate::layout::is_directory;

use crate::layout::{Home, Layout, Tree};
use crate::register::{Content, Object, OpUid, Register, Stamp, Value, fid_of};
use soda_oplog::{Change, Fate, Moved, Place};
use soda_protocol::{IfExists, NewNode};
use soda_types::{Creds, Fid, FileKind, InUse, Name};

/// An operation with everything it depends on: if that is not so (any more), it fails and changes nothing.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Deed {
    Write(Register),
    /// The name means nothing before.
    Create {
        at: Register,
        object: Object,
    },
    /// The name means nothing before, and the file has so many.
    Link {
        at: Register,
        object: Object,
        names: u8,
    },
    /// The name means this before; a directory is empty. A file has so many names left.
    Remove {
        at: Register,
        object: Object,
        left: u8,
    },
    /// `to` means `replaced` before: a file, which has so many names left.
    Rename {
        from: Register,
        to: Register,
        moved: Object,
        replaced: Option<(Object, u8)>,
    },
}

/// Why a deed is not done.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Obstacle {
    /// What it depends on is not known here.
    Unknown,
    /// As ENOENT, EEXIST, ENOTEMPTY, EINVAL.
    Fails,
}

/// Bytes of a file that one register stands for.
pub const CELL_BYTES: u64 = 8;

/// Deeper is no tree.
const DEEPEST: usize = 100;

impl Deed {
    /// The registers that its answer tells of.
    pub fn registers(&self) -> Vec<Register> {
        match *self {
            Deed::Write(at) | Deed::Create { at, .. } | Deed::Remove { at, left: 0, .. } => vec![at],
            Deed::Link { at, object, .. } | Deed::Remove { at, object, .. } => {
                vec![at, Register::attributes(object)]
            }
            Deed::Rename { from, to, replaced, .. } => {
                let shape = self.reshapes().map(|(moved, _)| moved);
                let named = replaced.filter(|(_, left)| *left > 0).map(|(object, _)| object);
                let attributes = shape.into_iter().chain(named).map(Register::attributes);
                [from, to].into_iter().chain(attributes).collect()
            }
        }
    }

    /// The inodes that it changes and that exist before.
    pub fn changes(&self) -> Vec<Object> {
        let mut objects = match *self {
            Deed::Write(at) | Deed::Create { at, .. } => vec![at.object],
            Deed::Link { at, object, .. } | Deed::Remove { at, object, .. } => vec![at.object, object],
            Deed::Rename { from, to, moved, replaced } => {
                let replaced = replaced.map(|(object, _)| object);
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
            Deed::Remove { object, left: 0, .. } => Some(object),
            Deed::Rename { replaced: Some((object, 0)), .. } => Some(object),
            _ => None,
        }
    }

    pub fn is_of_names(&self) -> bool {
        !matches!(self, Deed::Write(_))
    }

    /// Inodes that may lie elsewhere, or have more names or fewer, afterwards.
    pub fn moves(&self) -> Vec<Object> {
        match *self {
            Deed::Write(_) | Deed::Create { .. } => Vec::new(),
            Deed::Link { object, .. } | Deed::Remove { object, .. } => vec![object],
            Deed::Rename { moved, replaced, .. } => {
                [moved].into_iter().chain(replaced.map(|(object, _)| object)).collect()
            }
        }
    }

    /// The directory that gets another parent, and which.
    pub fn reshapes(&self) -> Option<(Object, Object)> {
        match *self {
            Deed::Rename { from, to, moved, .. } if is_directory(moved) && from.object != to.object => {
                Some((moved, to.object))
            }
            _ => None,
        }
    }

    /// What decides, beside what it changes, that it can be done: where the directories lie that a moved one comes below.
    ///
    /// # Errors
    /// See [`Obstacle`].
    pub fn depends_on(
        &self,
        layout: Layout,
        value: impl Fn(Register) -> Option<Value>,
    ) -> Result<Vec<(Register, Value)>, Obstacle> {
        let mut found = Vec::new();
        let Some((moved, mut above)) = self.reshapes() else { return Ok(found) };
        for _ in 0..DEEPEST {
            if above == moved {
                return Err(Obstacle::Fails);
            }
            match layout.home(above) {
                Home::Root => return Ok(found),
                Home::In(directory) => above = directory,
                Home::Named => {
                    let register = Register::attributes(above);
                    let known = value(register).ok_or(Obstacle::Unknown)?;
                    let Content::Under(directory) = known.content else { return Err(Obstacle::Fails) };
                    found.push((register, known));
                    above = directory;
                }
            }
        }
        Err(Obstacle::Fails)
    }

    /// The values that it leaves, for its own registers first. `value`: what there is now, `None` if that is not known.
    ///
    /// # Errors
    /// See [`Obstacle`].
    pub fn effects(
        &self,
        uid: OpUid,
        layout: Layout,
        value: impl Fn(Register) -> Option<Value>,
    ) -> Result<Vec<(Register, Value)>, Obstacle> {
        let found = |register: Register| value(register).ok_or(Obstacle::Unknown);
        let registers = self.registers();
        let before: Vec<Value> = registers.iter().map(|at| found(*at)).collect::<Result<_, _>>()?;
        let as_expected = |expected: Content, found: &Value| {
            if found.content == expected { Ok(()) } else { Err(Obstacle::Fails) }
        };
        let count = before.iter().map(|value| value.stamp.count).max().unwrap_or_default().saturating_add(1);
        let stamp = Stamp { count, by: uid };
        let to = |content: Content| Value { stamp, content };
        let with_attributes = layout.tree == Tree::Deep;
        let loses_a_name = |object: Object, left: u8| {
            let attributes = Register::attributes(object);
            if is_directory(object) || !with_attributes {
                return Ok(None);
            }
            as_expected(Content::Links(left + 1), &found(attributes)?)?;
            Ok((left > 0).then_some((attributes, to(Content::Links(left)))))
        };
        let mut effects = match *self {
            Deed::Write(at) => {
                if before[0].content == Content::Gone {
                    return Err(Obstacle::Fails);
                }
                vec![(at, to(Content::Data(uid)))]
            }
            Deed::Create { at, object } => {
                as_expected(Content::Blank, &before[0])?;
                let made = layout.cells_of(object).map(|register| (register, to(Content::Blank)));
                let attributes = (Register::attributes(object), to(self.attributes_made()));
                let made = made.chain(with_attributes.then_some(attributes));
                [(at, to(Content::Names(object)))].into_iter().chain(made).collect()
            }
            Deed::Link { at, object, names } => {
                as_expected(Content::Blank, &before[0])?;
                as_expected(Content::Links(names), &before[1])?;
                let attributes = Register::attributes(object);
                vec![(at, to(Content::Names(object))), (attributes, to(Content::Links(names + 1)))]
            }
            Deed::Remove { at, object, left } => {
                as_expected(Content::Names(object), &before[0])?;
                if is_directory(object) {
                    for register in layout.cells_of(object) {
                        as_expected(Content::Blank, &found(register)?)?;
                    }
                }
                let named = loses_a_name(object, left)?;
                [(at, to(Content::Blank))].into_iter().chain(named).collect()
            }
            Deed::Rename { from, to: target, moved, replaced } => {
                as_expected(Content::Names(moved), &before[0])?;
                let there = replaced.map_or(Content::Blank, |(object, _)| Content::Names(object));
                as_expected(there, &before[1])?;
                self.depends_on(layout, &value)?;
                let shape = self
                    .reshapes()
                    .map(|(moved, parent)| (Register::attributes(moved), to(Content::Under(parent))));
                let named = match replaced {
                    Some((object, left)) => loses_a_name(object, left)?,
                    None => None,
                };
                [(from, to(Content::Blank)), (target, to(Content::Names(moved)))]
                    .into_iter()
                    .chain(shape)
                    .chain(named)
                    .collect()
            }
        };
        // Nothing is newer than the end.
        let end = Value { stamp: Stamp { count: u32::MAX, by: uid }, content: Content::Gone };
        let gone = self.ends().into_iter().flat_map(|object| layout.registers_of(object));
        effects.extend(gone.map(|register| (register, end)));
        Ok(effects)
    }

    /// Attributes of what it makes.
    pub fn attributes_made(&self) -> Content {
        match *self {
            Deed::Create { at, object } if is_directory(object) => Content::Under(at.object),
            _ => Content::Links(1),
        }
    }

    /// As it goes into the log.
    pub fn change(&self, uid: OpUid) -> Change {
        let fate = |left: u8| if left == 0 { Fate::Gone } else { Fate::Stays };
        match *self {
            Deed::Write(at) => Change::Write {
                fid: at.fid(),
                offset: u64::from(at.cell) * CELL_BYTES,
                data: uid.0.to_le_bytes().to_vec().into(),
                kill_suid_sgid: false,
            },
            Deed::Create { at, object } => {
                Change::Create { place: place(at), fid: fid_of(object), new: new(object) }
            }
            Deed::Link { at, object, .. } => Change::Link { fid: fid_of(object), place: place(at) },
            Deed::Remove { at, object, .. } if is_directory(object) => {
                Change::RemoveDirectory { place: place(at), fid: fid_of(object) }
            }
            Deed::Remove { at, object, left } => {
                Change::Unlink { place: place(at), fid: fid_of(object), then: fate(left) }
            }
            Deed::Rename { from, to, moved, replaced } => Change::Rename {
                from: place(from),
                to: place(to),
                moved: fid_of(moved),
                what: if self.reshapes().is_some() { Moved::Subtree } else { Moved::Leaf },
                replaced: replaced.map(|(object, left)| (fid_of(object), fate(left))),
            },
        }
    }
}

/// What a change moves in the tree, as the lease holder is told before: the inode with the directory that it comes into, or
/// none where it gets a name beside or loses one.
pub fn moved_by(change: &Change) -> Vec<(Fid, Option<Fid>)> {
    match change {
        Change::Link { fid, .. } | Change::Unlink { fid, .. } | Change::RemoveDirectory { fid, .. } => {
            vec![(*fid, None)]
        }
        Change::Rename { from, to, moved, replaced, .. } => {
            let moved = (from.directory != to.directory).then_some((*moved, Some(to.directory)));
            moved.into_iter().chain(replaced.map(|(fid, _)| (fid, None))).collect()
        }
        _ => Vec::new(),
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
    Register { object: crate::register::object_of(place.directory), cell: letter - FIRST_NAME }
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
