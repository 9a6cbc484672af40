//! Which objects each call reads and changes: what the lease table is asked for before anything is done.
//!
//! The plan is made from the store as it is when the request arrives. Once admitted, the objects of the plan stand still,
//! but a name may have come to mean another inode before that: whoever carries the call out compares what it finds with
//! [`Plan::found`], and plans anew if it differs.
//!
//! | call | reads | changes |
//! | --- | --- | --- |
//! | Lookup | directory, inode if the name exists | |
//! | LookupStat | directory, inode if the name exists and its holder need not be asked instead | |
//! | Stat, Fetch | inode, unless its holder is asked instead | |
//! | GetAttr, ReadLink, GetXattr(s), Read, Seek, Layout, Opened | inode | |
//! | ReadDir | directory; inodes of the page that nobody else may change | |
//! | Create, name absent | | directory (and the new inode) |
//! | Create, name present | directory, inode if it is to be opened | |
//! | TmpFile | directory | (the new inode) |
//! | Link | | directory, inode |
//! | Unlink, rmdir | | directory, inode |
//! | Rename | | both directories, moved inode, replaced inode; a directory that moves: the volume's tree |
//! | Unlink, Rename of a name that is absent | directories | |
//! | SetAttr, Write, Allocate, SetXattr, RemoveXattr | | inode |
//! | CopyRange | source | target |
//! | StatFs, Sync, locks | | |
//!
//! A name that is absent is a fact about its directory, so it is read under the directory's lease. `docs/PROTOCOL.md` has
//! the same table with who may wait for whom.

use super::ancestry::find_ancestries;
use soda_lease::table::{Access, TreeVersion, Want};
use soda_protocol::{Call, IfExists, Rename, Replace, WriteAt};
use soda_types::semantics::is_access_list;
use soda_types::{Cause, Fid, FileKind, FsResult, Ino, Name, VolumeId};
use soda_volume::Volume;

/// What a call will touch.
#[derive(Clone, PartialEq, Debug, Default)]
pub(crate) struct Plan {
    pub(crate) accesses: Vec<Access>,
    pub(crate) found: Found,
    /// The access that is for attributes only, which a holder may say instead.
    pub(crate) attributes: Option<(Fid, FileKind)>,
}

/// What the names of a call meant when it was planned.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Found {
    /// At the call's name.
    pub(crate) inode: Option<Fid>,
    /// At a rename's new name.
    pub(crate) target: Option<Fid>,
    pub(crate) inode_is: Planned,
}

/// Whether the call's inode is among the accesses.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) enum Planned {
    #[default]
    Read,
    /// Only the name is: the attributes the client has to ask for.
    Named,
}

/// Stands for the shape of a volume's tree: moves of directories change it, so they exclude each other, or two of them could
/// put two directories into each other. No inode has the number 0.
pub(super) fn tree_of(volume: VolumeId) -> Fid {
    Fid::new(volume, Ino(0))
}

/// Plans a call. `want`: whether leases can travel with the answer; `as_of`: to say where its objects lie.
///
/// # Errors
/// What the call fails with, whatever else happens: inodes do not come back, and do not change their kind.
pub(crate) fn plan(volume: &Volume, call: &Call, want: Want, as_of: Option<TreeVersion>) -> FsResult<Plan> {
    let mut plan = plan_with_leases(volume, call)?;
    find_ancestries(volume, as_of, &mut plan.accesses);
    if want == Want::Nothing {
        for access in &mut plan.accesses {
            access.want = Want::Nothing;
        }
    }
    Ok(plan)
}

fn plan_with_leases(volume: &Volume, call: &Call) -> FsResult<Plan> {
    let accesses = match call {
        Call::Lookup { parent, name } => {
            return Ok(Plan { attributes: None, ..plan_lookup(volume, *parent, name)? });
        }
        Call::LookupStat { parent, name } => return plan_lookup(volume, *parent, name),
        Call::Stat { fid } => {
            let attributes = attributes_of(*fid, volume.getattr(*fid)?.kind);
            return Ok(Plan { accesses: vec![Access::read(*fid)], attributes, ..Plan::default() });
        }
        Call::Fetch { fid, .. } => {
            let attributes = attributes_of(*fid, volume.getattr(*fid)?.kind);
            return Ok(Plan { accesses: vec![Access::read_data(*fid)], attributes, ..Plan::default() });
        }
        Call::Create { parent, name, new } => return plan_create(volume, *parent, name, new.existing),
        Call::Unlink { parent, name, .. } => return plan_unlink(volume, *parent, name),
        Call::Rename { parent, name, new_parent, new_name, how } => {
            return plan_rename(volume, (*parent, name), (*new_parent, new_name), *how);
        }
        Call::GetAttr { fid }
        | Call::ReadLink { fid }
        | Call::GetXattrs { fid }
        | Call::GetXattr { fid, .. } => vec![Access::read(*fid)],
        Call::Read { fid, .. } | Call::Seek { fid, .. } | Call::Layout { fid, .. } => {
            vec![Access::read_data(*fid)]
        }
        Call::ReadDir { dir, .. } => vec![Access::read(*dir)],
        Call::Opened { fid } => vec![Access::read(*fid).without_lease()],
        Call::TmpFile { parent, .. } => vec![Access::read(*parent).without_lease()],
        Call::Link { fid, parent, name } => {
            vec![Access::change(*parent, names([name])), Access::change(*fid, Cause::Attributes)]
        }
        Call::SetAttr { fid, set, .. } => {
            let is_access = set.perm.is_some() || set.uid.is_some() || set.gid.is_some();
            let cause = match set.size {
                _ if is_access => Cause::Access,
                Some(_) => Cause::Data,
                None => Cause::Attributes,
            };
            vec![Access::change(*fid, cause)]
        }
        Call::SetXattr { fid, name, .. } | Call::RemoveXattr { fid, name, .. } => {
            let is_access = is_access_list(name);
            vec![Access::change(*fid, if is_access { Cause::Access } else { Cause::Attributes })]
        }
        Call::Write { fid, at: WriteAt::Pages(_), .. } => {
            vec![Access::change(*fid, Cause::Data).of_write_back()]
        }
        Call::Write { fid, .. } | Call::Allocate { fid, .. } => vec![Access::change(*fid, Cause::Data)],
        Call::CopyRange { from, to, .. } => vec![Access::read(*from), Access::change(*to, Cause::Data)],
        _ => Vec::new(),
    };
    Ok(Plan { accesses, ..Plan::default() })
}

/// The inodes that a call names by their numbers: they may be gone.
pub(super) fn named_by(call: &Call) -> Vec<Fid> {
    match call {
        Call::Lookup { parent, .. }
        | Call::LookupStat { parent, .. }
        | Call::Create { parent, .. }
        | Call::Unlink { parent, .. }
        | Call::TmpFile { parent, .. } => vec![*parent],
        Call::Rename { parent, new_parent, .. } => vec![*parent, *new_parent],
        Call::Link { fid, parent, .. } => vec![*fid, *parent],
        Call::CopyRange { from, to, .. } => vec![*from, *to],
        Call::ReadDir { dir, .. } => vec![*dir],
        Call::Stat { fid }
        | Call::Fetch { fid, .. }
        | Call::GetAttr { fid }
        | Call::ReadLink { fid }
        | Call::GetXattrs { fid }
        | Call::GetXattr { fid, .. }
        | Call::Read { fid, .. }
        | Call::Seek { fid, .. }
        | Call::Layout { fid, .. }
        | Call::Opened { fid }
        | Call::SetAttr { fid, .. }
        | Call::SetXattr { fid, .. }
        | Call::RemoveXattr { fid, .. }
        | Call::Write { fid, .. }
        | Call::Allocate { fid, .. } => vec![*fid],
        _ => Vec::new(),
    }
}

/// What is in a directory is its names: who wants its attributes wants these next, and for them the lease.
fn attributes_of(inode: Fid, kind: FileKind) -> Option<(Fid, FileKind)> {
    (kind != FileKind::Directory).then_some((inode, kind))
}

/// The inode may be gone by now, which is no error: the name means something else then.
fn plan_lookup(volume: &Volume, parent: Fid, name: &Name) -> FsResult<Plan> {
    let meant = volume.resolve(parent, name)?;
    let inode = meant.map(|(fid, _)| fid);
    let mut accesses = vec![Access::read(parent)];
    accesses.extend(inode.map(Access::read));
    let attributes = meant.and_then(|(fid, kind)| attributes_of(fid, kind));
    Ok(Plan { accesses, found: Found { inode, ..Found::default() }, attributes })
}

fn plan_create(volume: &Volume, parent: Fid, name: &Name, existing: IfExists) -> FsResult<Plan> {
    let inode = volume.resolve(parent, name)?.map(|(fid, _)| fid);
    let accesses = match (inode, existing) {
        (None, _) => vec![Access::change(parent, names([name]))],
        (Some(_), IfExists::Fail) => vec![Access::read(parent)],
        (Some(inode), IfExists::Open) => vec![Access::read(parent), Access::read(inode)],
    };
    Ok(Plan { accesses, found: Found { inode, ..Found::default() }, ..Plan::default() })
}

fn plan_unlink(volume: &Volume, parent: Fid, name: &Name) -> FsResult<Plan> {
    let inode = volume.resolve(parent, name)?.map(|(fid, _)| fid);
    let accesses = match inode {
        None => vec![Access::read(parent)],
        Some(inode) => {
            vec![Access::change(parent, names([name])), Access::change(inode, Cause::Attributes)]
        }
    };
    Ok(Plan { accesses, found: Found { inode, ..Found::default() }, ..Plan::default() })
}

fn plan_rename(volume: &Volume, from: (Fid, &Name), to: (Fid, &Name), how: Rename) -> FsResult<Plan> {
    let source = volume.resolve(from.0, from.1)?;
    let target = volume.resolve(to.0, to.1)?;
    let (inode, onto) = (source.map(|(fid, _)| fid), target.map(|(fid, _)| fid));
    let found = Found { inode, target: onto, ..Found::default() };
    let fails = match how.existing() {
        Some(Replace::Allowed) => source.is_none(),
        Some(Replace::Refused) => source.is_none() || target.is_some(),
        None => source.is_none() || target.is_none(),
    };
    if fails {
        return Ok(Plan {
            accesses: vec![Access::read(from.0), Access::read(to.0)],
            found,
            ..Plan::default()
        });
    }
    let mut accesses = if from.0 == to.0 {
        vec![Access::change(from.0, names([from.1, to.1]))]
    } else {
        vec![Access::change(from.0, names([from.1])), Access::change(to.0, names([to.1]))]
    };
    accesses.extend(source.map(|(fid, _)| Access::change(fid, Cause::Attributes)));
    accesses.extend(target.map(|(fid, _)| Access::change(fid, Cause::Attributes)));
    let moves_directory =
        |inode: Option<(Fid, FileKind)>| inode.is_some_and(|(_, kind)| kind == FileKind::Directory);
    let exchanged = if how == Rename::Exchange { target } else { None };
    if from.0 != to.0 && (moves_directory(source) || moves_directory(exchanged)) {
        accesses.push(Access::change(tree_of(from.0.volume), Cause::Reclaim).without_lease());
    }
    Ok(Plan { accesses, found, ..Plan::default() })
}

fn names<const N: usize>(names: [&Name; N]) -> Cause {
    Cause::Names(names.into_iter().cloned().collect())
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use soda_storage::{MemoryData, MemoryMeta};
    use soda_types::{Creds, Timestamp};
    use soda_volume::{IfOpen, NewKind, NewNode};
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, Ordering};

    /// Its inode goes between two looks at the store.
    #[test]
    fn a_name_that_comes_and_goes_can_always_be_looked_up() {
        let (meta, data) = (Arc::<MemoryMeta>::default(), Arc::<MemoryData>::default());
        let volume = Volume::open(meta, data, Default::default()).unwrap();
        let (root, name, done) = (volume.root(), Name::new(b"name").unwrap(), AtomicBool::new(false));
        let call = Call::LookupStat { parent: root, name: name.clone() };
        let looks_up = || {
            let mut seen = [0_u32; 2];
            while !done.load(Ordering::Relaxed) {
                let plan = plan(&volume, &call, Want::Lease, None).unwrap();
                assert_eq!(plan.attributes.map(|(fid, _)| fid), plan.found.inode);
                seen[usize::from(plan.found.inode.is_some())] += 1;
            }
            seen
        };
        let comes_and_goes = || {
            let creds = Creds { uid: 0, gid: 0, pid: 1 };
            for _ in 0..20_000 {
                let mut txn = volume.begin(Timestamp::default());
                let node = NewNode { kind: NewKind::File, perm: 0o600, umask: 0, creds };
                txn.create(root, &name, node).unwrap();
                txn.commit().unwrap();
                let mut txn = volume.begin(Timestamp::default());
                txn.unlink(root, &name, IfOpen::Delete).unwrap();
                txn.commit().unwrap();
            }
            done.store(true, Ordering::Relaxed);
        };
        let seen = std::thread::scope(|scope| {
            let looking = scope.spawn(looks_up);
            comes_and_goes();
            looking.join().unwrap()
        });
        assert!(seen.iter().all(|times| *times > 0), "{seen:?}");
    }
}
