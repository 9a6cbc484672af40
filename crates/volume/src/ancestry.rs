//! Where inodes lie in the tree: what a lease on a whole subtree has to know.

use crate::txn::Txn;
use crate::view::View;
use crate::volume::Volume;
use soda_types::{Errno, Fid, FileKind, FsError, FsResult, Ino};

/// Deeper than any tree; a damaged one may have no top.
pub(crate) const DEPTH_MAX: usize = 1 << 20;

/// Where an inode lies.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Ancestry {
    /// Below these directories, from its parent to the root; below none: the root.
    Below(Vec<Fid>),
    /// It has several names, or none, or does not exist.
    Nowhere,
}

impl Volume {
    /// Where an inode lies. While others move directories it may be told a mixture of before and after.
    pub fn ancestry(&self, fid: Fid) -> FsResult<Ancestry> {
        ancestry(self, fid)
    }

    /// The directory that an inode lies in; `None`: it has several names, or none, or does not exist.
    pub fn parent_of(&self, fid: Fid) -> FsResult<Option<Fid>> {
        Ok(hangs(self, self.ino(fid)?)?.map(|parent| Fid::new(fid.volume, parent)))
    }
}

impl Txn<'_> {
    /// Where an inode lies, with what the transaction has changed.
    pub fn ancestry(&self, fid: Fid) -> FsResult<Ancestry> {
        ancestry(self, fid)
    }

    /// The directory that an inode lies in; `None`: it has several names, or none, or does not exist.
    pub fn parent_of(&self, fid: Fid) -> FsResult<Option<Fid>> {
        Ok(hangs(self, self.ino(fid)?)?.map(|parent| Fid::new(fid.volume, parent)))
    }

    /// Notes where the name of an inode is.
    pub(crate) fn hang(&mut self, ino: Ino, parent: Ino) -> FsResult<()> {
        self.inode_mut(ino)?.parent = parent;
        Ok(())
    }
}

fn ancestry(view: &impl View, fid: Fid) -> FsResult<Ancestry> {
    let mut above = Vec::new();
    let mut at = view.ino(fid)?;
    while at != Ino::ROOT {
        match hangs(view, at)? {
            Some(parent) => at = parent,
            None if above.is_empty() => return Ok(Ancestry::Nowhere),
            // Something above has gone in the meantime.
            None => return Err(FsError::new(Errno::Stale, format!("{fid} is being moved or removed"))),
        }
        above.push(Fid::new(fid.volume, at));
        if above.len() > DEPTH_MAX {
            return Err(FsError::new(Errno::Io, format!("{fid} is below itself: run `soda fsck`")));
        }
    }
    Ok(Ancestry::Below(above))
}

fn hangs(view: &impl View, ino: Ino) -> FsResult<Option<Ino>> {
    let Some(inode) = view.inode_record(ino)? else { return Ok(None) };
    let named = inode.kind != FileKind::Directory || inode.nlink > 0;
    Ok((named && inode.parent != Ino::default()).then_some(inode.parent))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{IfOpen, NewKind, NewNode, VolumeConfig};
    use soda_storage::{MemoryData, MemoryMeta};
    use soda_types::{Creds, Name, Replace, Timestamp};
    use std::sync::Arc;

    fn name(text: &str) -> Name {
        Name::try_from(text).unwrap()
    }

    fn make(txn: &mut Txn<'_>, parent: Fid, text: &str, kind: NewKind) -> Fid {
        let node = NewNode { kind, perm: 0o700, umask: 0, creds: Creds::default() };
        txn.create(parent, &name(text), node).unwrap().fid
    }

    #[test]
    fn an_inode_with_one_name_knows_its_place() {
        let volume =
            Volume::open(Arc::<MemoryMeta>::default(), Arc::<MemoryData>::default(), VolumeConfig::default())
                .unwrap();
        let root = volume.root();
        let below = |fids: &[Fid]| Ancestry::Below(fids.to_vec());
        let mut txn = volume.begin(Timestamp::default());
        let one = make(&mut txn, root, "one", NewKind::Directory);
        let other = make(&mut txn, root, "other", NewKind::Directory);
        let file = make(&mut txn, one, "file", NewKind::File);
        assert_eq!(txn.ancestry(file).unwrap(), below(&[one, root]));
        assert_eq!(txn.ancestry(root).unwrap(), below(&[]));

        let mode = Replace::Allowed;
        txn.rename(one, &name("file"), other, &name("moved"), mode, IfOpen::Delete).unwrap();
        assert_eq!(txn.parent_of(file).unwrap(), Some(other));
        txn.rename(root, &name("other"), one, &name("inside"), mode, IfOpen::Delete).unwrap();
        assert_eq!(txn.ancestry(file).unwrap(), below(&[other, one, root]));

        // One name of several says nothing of the others.
        txn.link(file, root, &name("second")).unwrap();
        assert_eq!(txn.ancestry(file).unwrap(), Ancestry::Nowhere);
        txn.rename(root, &name("second"), one, &name("second"), mode, IfOpen::Delete).unwrap();
        assert_eq!(txn.ancestry(file).unwrap(), Ancestry::Nowhere);
        txn.unlink(one, &name("second"), IfOpen::Delete).unwrap();
        assert_eq!(txn.ancestry(file).unwrap(), Ancestry::Nowhere, "which one is left is not looked for");
        txn.rename(other, &name("moved"), other, &name("again"), mode, IfOpen::Delete).unwrap();
        assert_eq!(txn.parent_of(file).unwrap(), Some(other));

        txn.unlink(other, &name("again"), IfOpen::Keep).unwrap();
        txn.rmdir(one, &name("inside"), IfOpen::Keep).unwrap();
        assert_eq!(
            (txn.ancestry(file).unwrap(), txn.ancestry(other).unwrap()),
            (Ancestry::Nowhere, Ancestry::Nowhere)
        );
        let node = NewNode { kind: NewKind::File, perm: 0, umask: 0, creds: Creds::default() };
        let nameless = txn.tmpfile(one, node).unwrap().fid;
        assert_eq!(txn.ancestry(nameless).unwrap(), Ancestry::Nowhere);
        txn.link(nameless, one, &name("linked")).unwrap();
        assert_eq!(txn.ancestry(nameless).unwrap(), below(&[one, root]));
        txn.commit().unwrap();
        assert_eq!(volume.ancestry(nameless).unwrap(), below(&[one, root]));
    }
}
