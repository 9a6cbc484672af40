//! Names: look-up, creation, and the reading of directories.

use super::{Inner, Inode, NOT_OPEN, Named};
use crate::handles::DirHandle;
use crate::nodes::TakenIn;
use crate::wire::{AttrOut, DirBuffer, EntryOut, Fit, OpenOut, Reply, Taken};
use soda_client::{Detail, DirEntry, Entry, IfExists, NewNode, RenameHow};
use soda_types::{Creds, Errno, Fid, FileKind, FsError, FsResult, Name};
use std::sync::Arc;
use std::time::Duration;

const RENAME_NOREPLACE: u32 = 1;
const RENAME_EXCHANGE: u32 = 2;

/// Offsets of a directory: 1 is after `.`, 2 after `..`, the others are the client's plus this.
const DOTS: u64 = 2;
/// About what an entry takes, bytes: how many to ask the client for at a time.
const DIRENT_LEN: u32 = 40;
const DIRENTPLUS_LEN: u32 = 168;

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

pub(super) fn rename_how(flags: u32) -> Option<RenameHow> {
    match flags {
        0 => Some(RenameHow::Plain),
        RENAME_NOREPLACE => Some(RenameHow::NoReplace),
        RENAME_EXCHANGE => Some(RenameHow::Exchange),
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

    // ------------------------------------------------------------ directories

    pub(super) async fn opendir(self: Arc<Self>, fid: Fid, reply: Reply) {
        match self.client.open_dir(fid).await {
            Ok(open) => {
                let handle = self.dirs.add(DirHandle { fid, open });
                if reply.opened(OpenOut { handle, flags: 0 }) == Taken::No {
                    self.dirs.remove(handle);
                }
            }
            Err(error) => self.fail("opendir", &error, reply),
        }
    }

    pub(super) async fn readdir(self: Arc<Self>, dir: Arc<DirHandle>, offset: u64, len: u32, reply: Reply) {
        let mut buffer = DirBuffer::new(len);
        match self.list(&dir, offset, len / DIRENT_LEN, Detail::Names).await {
            Ok(listing) => {
                let dots = listing.dots.iter().map(|dot| (dot.fid, dot.next, FileKind::Directory, dot.name));
                let names = listing.entries.iter().map(|e| (e.fid, e.next + DOTS, e.kind, e.name.as_bytes()));
                for (fid, next, kind, name) in dots.chain(names) {
                    if buffer.push(self.nodes.node_of(fid).0, next, kind, name) == Fit::Full {
                        break;
                    }
                }
                reply.data(&[buffer.as_bytes()]);
            }
            Err(error) => self.fail("readdir", &error, reply),
        }
    }

    async fn list(&self, dir: &DirHandle, offset: u64, max: u32, detail: Detail) -> FsResult<Listing> {
        // First what may have to be asked for: the answer says what `..` is, too.
        let (from, max) = (offset.saturating_sub(DOTS), max.max(1) as usize);
        let entries = self.client.read_dir_with(&dir.open, from, max, detail).await.map_err(if_removed)?;
        let mut dots = Vec::new();
        if offset < 1 {
            dots.push(Dot { name: b".", fid: dir.fid, next: 1 });
        }
        if offset < DOTS {
            dots.push(Dot { name: b"..", fid: self.client.parent(&dir.open).await?, next: DOTS });
        }
        Ok(Listing { dots, entries })
    }

    pub(super) async fn readdirplus(
        self: Arc<Self>,
        (dir, handle): (Arc<DirHandle>, u64),
        offset: u64,
        len: u32,
        reply: Reply,
    ) {
        match self.list(&dir, offset, len / DIRENTPLUS_LEN, Detail::News).await {
            Ok(mut listing) => {
                // The client does not know what our own changes have made the kernel forget.
                for listed in listing.entries.iter_mut().filter(|listed| listed.entry.is_none()) {
                    if !self.nodes.is_attr_told(listed.fid) {
                        let entry = self.client.cached(dir.fid, &listed.name);
                        listed.entry = entry.filter(|entry| means(entry, listed.fid));
                    }
                }
                self.answer_entries_plus((&dir, handle), listing, DirBuffer::new(len), reply).await;
            }
            Err(error) => self.fail("readdirplus", &error, reply),
        }
    }

    async fn answer_entries_plus(
        &self,
        (dir, handle): (&DirHandle, u64),
        listing: Listing,
        mut buffer: DirBuffer,
        reply: Reply,
    ) {
        let entries = &listing.entries;
        for node in entries.iter().filter_map(|listed| listed.entry.as_ref()?.node) {
            self.freshen(node.fid, &node.attr).await;
        }
        for dot in &listing.dots {
            let node = self.nodes.node_of(dot.fid).0;
            if buffer.push_plus_unknown(node, dot.next, FileKind::Directory, dot.name) == Fit::Full {
                reply.data(&[buffer.as_bytes()]);
                return;
            }
        }
        let answering = self.client.answer();
        let mut told = Vec::with_capacity(entries.len());
        let mut with_names = false;
        for listed in entries {
            let name = listed.name.as_bytes();
            if !buffer.has_room_for_plus(name) {
                break;
            }
            let Some((entry, node)) = listed.entry.as_ref().and_then(|entry| Some((entry, entry.node?)))
            else {
                let node = self.nodes.node_of(listed.fid).0;
                let _ = buffer.push_plus_unknown(node, listed.next + DOTS, listed.kind, name);
                continue;
            };
            let attributes = answering.remaining(entry.attr);
            if attributes.is_zero() {
                // Of an older look: the kernel would take them for new, and cut its pages to the old size.
                let node = self.nodes.node_of(listed.fid).0;
                let _ = buffer.push_plus_unknown(node, listed.next + DOTS, listed.kind, name);
                continue;
            }
            let names = match self.agreement.has_inc_epoch() {
                true => answering.remaining(entry.names),
                // It takes a listing in name by name, and on the way it may wait for look-ups of others: its time-outs would
                // begin later than any bound, and it cannot be told without the directory's lock.
                false => Duration::ZERO,
            };
            let named = Named { dir: dir.fid, name: &listed.name, taken_in: TakenIn::UnderItsLock };
            let names = self.directory_names(named, node.attr.kind, names);
            self.remember((dir.fid, &listed.name), node.fid, &node.attr, attributes);
            let attr = AttrOut { node: self.nodes.node_of(node.fid).0, attr: &node.attr, valid: attributes };
            let out = EntryOut { attr, generation: node.fid.generation, valid: names };
            // There is room: it was asked before the look-up was counted.
            let _ = buffer.push_plus(out, listed.next + DOTS, name);
            told.push(node.fid);
            with_names |= !names.is_zero();
        }
        if with_names {
            self.notifier.listings().give(dir.fid, handle);
        }
        if reply.data(&[buffer.as_bytes()]) == Taken::No {
            self.notifier.listings().heard_of(dir.fid, handle);
            told.into_iter().for_each(|fid| self.forget(self.nodes.node_of(fid), 1));
        }
    }
}

/// Removed since it was opened: Linux says ENOENT then, which libraries take for the end. ESTALE they pass on.
fn if_removed(error: FsError) -> FsError {
    match error.errno {
        Errno::Stale => FsError::new(Errno::NoEntry, "the directory was removed while it was open"),
        _ => error,
    }
}

fn means(entry: &Entry, fid: Fid) -> bool {
    entry.node.is_some_and(|node| node.fid == fid)
}

/// A stretch of a directory.
struct Listing {
    dots: Vec<Dot>,
    entries: Vec<DirEntry>,
}

/// `.` or `..`, with the offset after it.
struct Dot {
    name: &'static [u8],
    fid: Fid,
    next: u64,
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
        assert_eq!(rename_how(0), Some(RenameHow::Plain));
        assert_eq!(rename_how(RENAME_NOREPLACE), Some(RenameHow::NoReplace));
        assert_eq!(rename_how(RENAME_EXCHANGE), Some(RenameHow::Exchange));
        assert_eq!(rename_how(RENAME_NOREPLACE | RENAME_EXCHANGE), None);
        assert_eq!(rename_how(4), None);
    }
}
