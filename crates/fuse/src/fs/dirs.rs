//! Open directories and their listings.

use super::Inner;
use super::answers::Named;
use crate::handles::DirHandle;
use crate::kept_listing::PageUse;
use crate::nodes::{Inode, TakenIn};
use crate::wire::abi::fopen;
use crate::wire::{DirBuffer, EntryOut, Fit, OpenOut, Reply, Taken};
use soda_client::{Detail, DirEntry, Entry};
use soda_types::{Errno, Fid, FileKind, FsError, FsResult};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Offsets of a directory: 1 is after `.`, 2 after `..`, the others are the client's plus this.
const DOTS: u64 = 2;
/// About what an entry takes, bytes: how many to ask the client for at a time.
const DIRENT_LEN: u32 = 40;
const DIRENTPLUS_LEN: u32 = 168;

impl Inner {
    pub(super) async fn opendir(self: Arc<Self>, fid: Fid, reply: Reply) {
        match self.client.open_dir(fid).await {
            Ok(open) => {
                // What it goes on in, if the kernel's pages are gone when it has read a part of them.
                let own = self.client.edition(&open).await;
                let handle = self.dirs.add(DirHandle { fid, open });
                let whole = self.client.whole(fid);
                let answering = self.client.answer();
                let known = !answering.remaining(whole.valid).is_zero();
                let edition = known.then_some(own.as_ref().filter(|_| own == whole.value));
                let flags = match self.nodes.listing(fid, |kept| kept.opened(handle, edition, Instant::now()))
                {
                    Some(PageUse::Keep) => fopen::CACHE_DIR | fopen::KEEP_CACHE,
                    Some(PageUse::Fill) => fopen::CACHE_DIR,
                    Some(PageUse::Leave) => fopen::KEEP_CACHE,
                    Some(PageUse::Drop) | None => 0,
                };
                if reply.by(answering.due()).opened(OpenOut { handle, flags }) == Taken::No {
                    self.release_dir(handle);
                }
            }
            Err(error) => self.fail("opendir", &error, reply),
        }
    }

    pub(super) fn release_dir(&self, handle: u64) {
        if let Some(dir) = self.dirs.remove(handle) {
            self.notifier.listings().heard_of(dir.fid, handle);
            self.nodes.kept_listing(dir.fid, |kept| kept.closed(handle));
        }
    }

    /// Names are about to be told to a handle, which may keep them.
    async fn note_told(&self, dir: &DirHandle, handle: u64) {
        if self.nodes.kept_listing(dir.fid, |kept| kept.is_filled_by(handle)) != Some(true) {
            return;
        }
        let edition = self.client.edition(&dir.open).await;
        let valid = self.client.answer().remaining(self.client.whole(dir.fid).valid);
        self.nodes.kept_listing(dir.fid, |kept| kept.told(handle, edition, Instant::now() + valid / 2));
    }

    pub(super) async fn readdir(
        self: Arc<Self>,
        (dir, handle): (Arc<DirHandle>, u64),
        offset: u64,
        len: u32,
        reply: Reply,
    ) {
        let mut buffer = DirBuffer::new(len);
        match self.list((&dir, handle), offset, len / DIRENT_LEN, Detail::Names).await {
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

    async fn list(
        &self,
        (dir, handle): (&DirHandle, u64),
        offset: u64,
        max: u32,
        detail: Detail,
    ) -> FsResult<Listing> {
        // First what may have to be asked for: the answer says what `..` is, too.
        let (from, max) = (offset.saturating_sub(DOTS), max.max(1) as usize);
        let entries = self.client.read_dir_with(&dir.open, from, max, detail).await.map_err(if_removed)?;
        self.note_told(dir, handle).await;
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
        match self.list((&dir, handle), offset, len / DIRENTPLUS_LEN, Detail::News).await {
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
            self.remember((dir.fid, &listed.name), node.fid, &node.attr);
            let attr = self.tell_attr(node.fid, &node.attr, attributes, Inode::Guarded, &reply);
            let out = EntryOut { attr, generation: node.fid.generation, valid: names };
            // There is room: it was asked before the look-up was counted.
            let _ = buffer.push_plus(out, listed.next + DOTS, name);
            told.push(node.fid);
            with_names |= !names.is_zero();
        }
        if with_names {
            self.notifier.listings().give(dir.fid, handle);
        }
        if reply.by(answering.due()).data(&[buffer.as_bytes()]) == Taken::No {
            self.notifier.listings().heard_of(dir.fid, handle);
            told.into_iter().for_each(|fid| self.not_taken(fid));
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
