//! Where inodes lie, for deep leases: what the lease table is told before an operation, and what it hears of names that moved in
//! it.

use super::disk::Disk;
use super::{Running, Server};
use crate::context::Context;
use crate::layout::{Home, Layout, Tree, is_directory};
use crate::message::{Call, Leases};
use crate::network::Kind;
use crate::register::{Object, TREE, fid_of, object_of};
use crate::sabotage::Sabotage;
use soda_lease::table::{Access, Ancestors, Created, Granted, Moved, TreeChanges, TreeVersion};
use soda_types::{Cause, Coverage, Fid, FileKind, InUse, LeasePart, Monotonic, RecallAck, SessionId};

/// Deeper is no tree.
const DEEPEST: usize = 100;

impl Disk {
    /// The directory that it is in, if it is in one alone.
    fn parent_of(&self, object: Object, layout: Layout) -> Option<Object> {
        match layout.home(object) {
            Home::Root => None,
            Home::In(directory) => Some(directory),
            Home::Named => {
                let mut names = self.names_of(object);
                names.next().filter(|_| names.next().is_none()).map(|at| at.object)
            }
        }
    }

    /// The inode and the directories above it, up to the root; `None` if it has no one place.
    pub(super) fn path(&self, object: Object, layout: Layout) -> Option<Vec<Object>> {
        let mut path = vec![object];
        for _ in 0..DEEPEST {
            let last = *path.last()?;
            if layout.home(last) == Home::Root {
                return Some(path);
            }
            path.push(self.parent_of(last, layout)?);
        }
        None
    }

    pub(super) fn ancestors(&self, object: Object, layout: Layout, as_of: TreeVersion) -> Ancestors {
        if !self.exists(object, layout.objects) {
            return Ancestors::Unknown;
        }
        match self.path(object, layout) {
            Some(path) => Ancestors::Chain(as_of, path.into_iter().skip(1).map(fid_of).collect()),
            None => Ancestors::Several(as_of),
        }
    }

    /// Says of each access where its object lies.
    pub(super) fn place_all(&self, layout: Layout, as_of: TreeVersion, accesses: &mut [Access]) {
        if layout.tree == Tree::Flat {
            return;
        }
        for access in accesses.iter_mut().filter(|access| access.ancestors == Ancestors::Unknown) {
            access.ancestors = self.ancestors(object_of(access.fid), layout, as_of);
        }
    }

    /// A new inode and its place.
    pub(super) fn created(&self, object: Object, layout: Layout) -> Created {
        let parent = self.parent_of(object, layout).filter(|_| layout.tree == Tree::Deep).map(fid_of);
        Created { fid: fid_of(object), kind: kind_of(object), parent }
    }
}

impl Running {
    /// What the operation does to which inodes, and where these lie now.
    pub(super) fn accesses(
        &self,
        call: &Call,
        via: Option<Kind>,
        disk: &Disk,
        layout: Layout,
    ) -> Vec<Access> {
        let mut accesses = match call {
            Call::Read(register) | Call::Look(register) => vec![Access::read(register.fid())],
            Call::Change(registers) => {
                registers.iter().map(|register| Access::change(register.fid(), Cause::Data)).collect()
            }
            Call::Do(deed) => {
                deed.changes().into_iter().map(|object| Access::change(fid_of(object), Cause::Data)).collect()
            }
        };
        // Grants only go with replies on the control connection.
        if via != Some(Kind::Control) {
            accesses = accesses.into_iter().map(Access::without_lease).collect();
        }
        let as_of = self.table.tree_version();
        if let Call::Do(deed) = call
            && deed.reshapes().is_some()
        {
            accesses.push(Access::change(TREE, Cause::Reclaim).without_lease().not_deep(as_of));
        }
        disk.place_all(layout, as_of, &mut accesses);
        accesses
    }

    /// What a reply says of leases that an operation left behind.
    pub(super) fn leases(&self, session: SessionId, granted: Granted) -> Leases {
        let with_lease = |covered: Coverage| Some((self.table.deep_lease(session, covered.root)?, covered));
        Leases {
            grants: granted.leases,
            covered: granted.covered.into_iter().filter_map(with_lease).collect(),
        }
    }

    /// Forgets a session's leases on an inode that does not exist any more.
    pub(super) fn give_up_lease(&mut self, now: Monotonic, session: SessionId, fid: Fid) {
        let deep = self.table.deep_lease(session, fid);
        let all = [(self.table.lease(session, fid), None), (deep, Some(LeasePart::tree(fid)))];
        for (grant, part) in all {
            let Some(epoch) = grant.map(|grant| grant.epoch) else { continue };
            let given_up = RecallAck { fid, epoch, kept: None, in_use: InUse::No, uses: 0, part };
            self.table.handle_release(now, session, &[given_up]);
        }
    }
}

impl Server {
    /// One of the mistakes: a deep lease above an object covers it, holes or not.
    pub(super) fn forget_holes(&self, context: &Context, session: SessionId, fid: Fid, leases: &mut Leases) {
        let layout = context.config.layout();
        let path = self.disk.path(object_of(fid), layout).unwrap_or_default();
        let above: Vec<Fid> = path.into_iter().map(fid_of).collect();
        let deep = |root: &Fid| self.running.as_ref()?.table.deep_lease(session, *root);
        let found = above.iter().enumerate().find_map(|(at, root)| Some((at, deep(root)?)));
        if let Some((at, lease)) = found {
            let above = above[1..].iter().take(at).copied().collect();
            leases.covered.push((lease, Coverage { fid, root: lease.fid, mode: lease.mode, above }));
        }
    }
}

pub(super) fn kind_of(object: Object) -> FileKind {
    if is_directory(object) { FileKind::Directory } else { FileKind::File }
}

/// Inodes that a change may move, with where they were.
#[derive(Debug)]
pub(super) struct Watched(Vec<(Object, Option<Object>)>);

impl Watched {
    /// Call it before the change is made.
    pub(super) fn before(disk: &Disk, layout: Layout, fids: impl IntoIterator<Item = Fid>) -> Watched {
        let fids = fids.into_iter().filter(|_| layout.tree == Tree::Deep).map(object_of);
        Watched(fids.map(|object| (object, disk.parent_of(object, layout))).collect())
    }

    /// What the change has moved. What it deleted is of no interest.
    pub(super) fn note_moves(self, disk: &Disk, layout: Layout, changes: &mut TreeChanges) {
        for (object, before) in self.0 {
            if disk.parent_of(object, layout) == before || !disk.exists(object, layout.objects) {
                continue;
            }
            let fid = fid_of(object);
            match disk.path(object, layout) {
                Some(path) => changes.moved.push(Moved {
                    fid,
                    kind: kind_of(object),
                    above: path.into_iter().skip(1).map(fid_of).collect(),
                }),
                None => changes.relinked.push(fid),
            }
        }
    }

    /// Mistakes in what the lease table hears.
    pub(super) fn sabotage(changes: &mut TreeChanges, sabotage: Sabotage) {
        match sabotage {
            Sabotage::MovesUntold => changes.moved.clear(),
            Sabotage::LinksUntold => changes.relinked.clear(),
            _ => {}
        }
    }
}
