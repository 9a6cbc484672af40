//! What only this machine has seen: inodes that it changed, by the directory they are in.
//!
//! A machine that looks into the directory is going to look at them next. Recalled one by one, each costs a round trip to
//! this machine; as they are known by directory, their leases are lowered together (`recall/neighbours.rs`).

use super::State;
use soda_types::Fid;

/// Most inodes noted for one directory. Those beyond are recalled one by one.
const MOST_UNSEEN: usize = 1 << 16;

/// Whether an inode is in its directory's list.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) enum Unseen {
    #[default]
    NotNoted,
    Noted,
}

impl State {
    /// The inode, which is no directory, has a name in `dir`.
    pub(crate) fn met(&mut self, fid: Fid, dir: Fid) {
        if let Some(inode) = self.existing(fid) {
            inode.parent = Some(dir);
        }
    }

    /// This machine has changed the inode.
    pub(super) fn note_unseen(&mut self, fid: Fid) {
        let Some(inode) = self.existing(fid).filter(|inode| inode.unseen == Unseen::NotNoted) else { return };
        let Some(parent) = inode.parent else { return };
        let Some(dir) = self.existing(parent).and_then(|inode| inode.dir.as_mut()) else { return };
        if dir.unseen.len() < MOST_UNSEEN {
            dir.unseen.push(fid);
            if let Some(inode) = self.existing(fid) {
                inode.unseen = Unseen::Noted;
            }
        }
    }

    /// Another machine is about to read the inode: which ones it will probably read next. Each is told once.
    pub(crate) fn take_unseen(&mut self, fid: Fid) -> Vec<Fid> {
        let Some(inode) = self.existing(fid) else { return Vec::new() };
        let dir = if inode.dir.is_some() { Some(fid) } else { inode.parent };
        let Some(dir) = dir.and_then(|dir| self.existing(dir)?.dir.as_mut()) else { return Vec::new() };
        let mut taken = std::mem::take(&mut dir.unseen);
        for fid in &taken {
            if let Some(inode) = self.existing(*fid) {
                inode.unseen = Unseen::NotNoted;
            }
        }
        taken.retain(|other| *other != fid);
        taken
    }
}
