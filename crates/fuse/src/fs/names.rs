//! Names: look-up, creation, removal.

use super::answers::Named;
use super::{Inner, NOT_OPEN};
use crate::nodes::{Inode, TakenIn};
use crate::wire::Reply;
use soda_client::{IfExists, NewNode, RenameHow, Replace};
use soda_types::{Creds, Errno, Fid, FileKind, FsResult, Name};
use std::sync::Arc;

const RENAME_NOREPLACE: u32 = 1;
const RENAME_EXCHANGE: u32 = 2;
const RENAME_WHITEOUT: u32 = 4;

/// `mode`: type and permissions as mknod(2) has them; the umask is applied by the server, which knows default access lists.
pub(super) fn new_node(kind: FileKind, mode: u32, umask: u32, creds: Creds) -> NewNode {
    NewNode {
        kind,
        perm: (mode & 0o7777) as u16,
        umask: (umask & 0o777) as u16,
        rdev: 0,
        target: Vec::new(),
        creds,
        existing: IfExists::Fail,
        open: NOT_OPEN,
    }
}

/// `creds`: whose a whiteout is.
pub(super) fn rename_how(flags: u32, creds: Creds) -> Option<RenameHow> {
    let whiteout = |existing| Some(RenameHow::Whiteout { existing, creds });
    match flags {
        0 => Some(RenameHow::Plain),
        RENAME_NOREPLACE => Some(RenameHow::NoReplace),
        RENAME_EXCHANGE => Some(RenameHow::Exchange),
        RENAME_WHITEOUT => whiteout(Replace::Allowed),
        flags if flags == RENAME_WHITEOUT | RENAME_NOREPLACE => whiteout(Replace::Refused),
        _ => None,
    }
}

impl Inner {
    /// `tid`: the thread that looks.
    pub(super) async fn lookup(self: Arc<Self>, tid: u32, dir: Fid, name: Name, reply: Reply) {
        self.settle_moved(tid, dir, &name).await;
        match self.client.lookup(dir, &name).await {
            Ok(entry) => {
                if let Some(node) = &entry.node {
                    self.note_moved(tid, dir, &name, node.fid);
                }
                let named = Named { dir, name: &name, taken_in: TakenIn::AtAnyTime };
                self.answer_entry(named, entry, Inode::Guarded, reply).await;
            }
            Err(error) if self.is_removed(dir, &error).await => reply.error(Errno::NoEntry),
            Err(error) => self.fail("lookup", &error, reply),
        }
    }

    pub(super) async fn make(
        self: Arc<Self>,
        operation: &'static str,
        dir: Fid,
        name: Name,
        new: NewNode,
        reply: Reply,
    ) {
        match self.client.create(dir, &name, new).await {
            Ok(entry) => {
                self.attributes_changed(dir);
                let named = Named { dir, name: &name, taken_in: TakenIn::UnderItsLock };
                self.answer_entry(named, entry, Inode::Guarded, reply).await;
            }
            Err(error) => self.fail(operation, &self.changing(dir, error).await, reply),
        }
    }

    pub(super) async fn link(self: Arc<Self>, fid: Fid, dir: Fid, name: Name, reply: Reply) {
        match self.client.link(fid, dir, &name).await {
            Ok(entry) => {
                self.attributes_changed(fid);
                self.attributes_changed(dir);
                let named = Named { dir, name: &name, taken_in: TakenIn::UnderItsLock };
                self.answer_entry(named, entry, Inode::Known, reply).await;
            }
            Err(error) => self.fail("link", &self.changing(dir, error).await, reply),
        }
    }

    pub(super) async fn rename(
        &self,
        creds: Creds,
        from: (Fid, &Name),
        to: (Fid, &Name),
        how: RenameHow,
    ) -> FsResult<()> {
        self.check_sticky(creds, from.0, from.1).await?;
        self.check_sticky(creds, to.0, to.1).await?;
        if let Err(error) = self.client.rename(from.0, from.1, to.0, to.1, how).await {
            return Err(self.changing(to.0, error).await);
        }
        self.renamed_to(to.0, to.1);
        if how == RenameHow::Exchange {
            self.renamed_to(from.0, from.1);
        }
        Ok(())
    }

    /// The end of an unlink, rmdir or rename. The kernel drops the directories' attributes by itself, but only after the
    /// answer: another process of this machine must not see old ones when other machines see the new.
    pub(super) fn names_changed(
        &self,
        operation: &'static str,
        dirs: [Fid; 2],
        result: FsResult<()>,
        reply: Reply,
    ) {
        dirs.into_iter().for_each(|dir| self.attributes_changed(dir));
        self.finish(operation, result, reply);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_new_node_takes_permissions_and_umask_apart() {
        let node = new_node(FileKind::File, 0o104755, 0o22, Creds::default());
        assert_eq!((node.perm, node.umask, node.existing), (0o4755, 0o22, IfExists::Fail));
    }

    #[test]
    fn rename_flags_that_mean_nothing_here_are_refused() {
        let creds = Creds { uid: 5, ..Creds::default() };
        let how = |flags| rename_how(flags, creds);
        let whiteout = |existing| Some(RenameHow::Whiteout { existing, creds });
        assert_eq!(how(0), Some(RenameHow::Plain));
        assert_eq!(how(RENAME_NOREPLACE), Some(RenameHow::NoReplace));
        assert_eq!(how(RENAME_EXCHANGE), Some(RenameHow::Exchange));
        assert_eq!(how(RENAME_WHITEOUT), whiteout(Replace::Allowed));
        assert_eq!(how(RENAME_WHITEOUT | RENAME_NOREPLACE), whiteout(Replace::Refused));
        for flags in [RENAME_NOREPLACE | RENAME_EXCHANGE, RENAME_WHITEOUT | RENAME_EXCHANGE, 7, 8] {
            assert_eq!(how(flags), None);
        }
    }
}
