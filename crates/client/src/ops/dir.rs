//! Reading directories: from a complete directory in the cache, or page by page from the server.

use crate::cache::names::{Complete, Directory, Edition, Known, Listed, Whole};
use crate::cache::names_ahead::List;
use crate::cache::{State, is_directory, present};
use crate::call::{Order, unexpected};
use crate::client::Client;
use crate::config::Consistency;
use crate::hooks::NamesLock;
use crate::inner::Inner;
use crate::ops::Entry;
use crate::validity::{Cached, Validity};
use serde::{Deserialize, Serialize};
use soda_lease::holder::{Holding, Ticket};
use soda_protocol::{Answer, Call, DirPage, Node, Rest, XattrSummary};
use soda_types::{Fid, FileKind, FsResult, Monotonic, Name};
use std::cmp::Ordering;
use std::collections::VecDeque;
use std::sync::{Arc, MutexGuard};
use std::time::Duration;
use tokio::sync::Mutex;

/// Entries that are asked for at once.
const PAGE: u32 = 1024;
/// So many pages are read to know a directory that is written into, and not again before that time.
const MOST_LEARNED: usize = 16;
const LEARN_AGAIN: Duration = Duration::from_secs(5);
/// A directory with more entries is not kept completely.
const MOST_COMPLETE: usize = 1 << 18;

/// An open directory. Of a listing from the server what was read last is kept, and all names, so that a position keeps its
/// meaning whatever others remove.
#[derive(Debug)]
pub struct OpenDir {
    dir: Fid,
    listing: Mutex<Listing>,
}

impl OpenDir {
    pub fn fid(&self) -> Fid {
        self.dir
    }
}

/// An open directory on its way to another process: its listing as far as it was read.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct HandedDir {
    dir: Fid,
    names: SortedNames,
    parent: Option<Fid>,
}

impl OpenDir {
    /// For the process that takes the client's session over. To be called when nobody reads it.
    pub async fn hand_over(&self) -> HandedDir {
        let listing = self.listing.lock().await;
        let mut names = listing.names.clone();
        for listed in listing.whole.iter().flat_map(|whole| whole.listed.iter()) {
            // Sorted, so each is behind all others.
            let _ = names.place(listed.name.as_bytes());
        }
        HandedDir { dir: self.dir, names, parent: listing.parent }
    }

    /// What another process had open: positions mean what they meant there.
    pub fn handed(handed: HandedDir) -> OpenDir {
        let HandedDir { dir, names, parent } = handed;
        let last = names.len().checked_sub(1).and_then(|last| names.get(last));
        let after = last.and_then(|name| Name::new(name).ok());
        let listing = Listing { first: names.len(), after, names, parent, ..Listing::default() };
        OpenDir { dir, listing: Mutex::new(listing) }
    }
}

/// One name of a listing.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct DirEntry {
    pub name: Name,
    pub fid: Fid,
    pub kind: FileKind,
    /// Where to go on after it.
    pub next: u64,
    /// The inode, as far as [`Detail`] wants it and its attributes may be used now.
    pub entry: Option<Entry>,
}

/// What a listing says of each name beside what kind of inode it is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Detail {
    /// Nothing.
    Names,
    /// The attributes, if they may be used now.
    Attributes,
    /// The same, but only where the kernel was not told them already and may still use them.
    News,
}

#[derive(Debug, Default)]
struct Listing {
    /// The directory as the cache knew it, in the place of all the rest.
    whole: Option<Whole>,
    /// What was there when it was read, with positions from `first` on. Those of what is gone since are missing.
    window: VecDeque<(usize, Listed)>,
    first: usize,
    /// Where the next page begins.
    after: Option<Name>,
    /// The names of all positions.
    names: SortedNames,
    parent: Option<Fid>,
    end: End,
    /// How far the cache has the pages so far: if it has all of them at the end, the directory is complete.
    began: Option<Began>,
}

/// Names in their order, one after the other in memory: a million of 12 bytes take 16 MB.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
struct SortedNames {
    bytes: Vec<u8>,
    ends: Vec<u32>,
}

impl SortedNames {
    fn len(&self) -> usize {
        self.ends.len()
    }

    fn get(&self, at: usize) -> Option<&[u8]> {
        let end = *self.ends.get(at)? as usize;
        let start = at.checked_sub(1).map_or(0, |before| self.ends[before] as usize);
        // Of another program, which may say anything.
        self.bytes.get(start..end)
    }

    /// The position of a name: that of the same one, or a new one behind all. `None` for one that came in between since.
    fn place(&mut self, name: &[u8]) -> Option<usize> {
        if self.len().checked_sub(1).and_then(|last| self.get(last)).is_none_or(|last| last < name) {
            self.bytes.extend_from_slice(name);
            self.ends.push(u32::try_from(self.bytes.len()).ok()?);
            return Some(self.len() - 1);
        }
        let (mut low, mut high) = (0, self.len());
        while low < high {
            let middle = low + (high - low) / 2;
            match self.get(middle)?.cmp(name) {
                Ordering::Less => low = middle + 1,
                Ordering::Equal => return Some(middle),
                Ordering::Greater => high = middle,
            }
        }
        None
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
enum End {
    #[default]
    NotYet,
    Reached,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Began {
    /// When the first page was asked for.
    sent: Monotonic,
    /// What all pages were entered under; `None`: the cache does not have them all.
    entered: Option<Entered>,
}

/// What has to stay as it is for the names of several pages to be in the cache at the same time.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Entered {
    holding: Holding,
    /// A holding goes on when its lease is lowered, and yet the names may be dropped on that occasion.
    times_cleared: u64,
}

/// A page as it goes into a listing.
struct Page {
    entries: Vec<Listed>,
    parent: Fid,
    end: End,
    began: Began,
}

impl Client {
    /// # Errors
    /// None so far: whether it is a directory shows when it is read.
    pub async fn open_dir(&self, dir: Fid) -> FsResult<Arc<OpenDir>> {
        let listing = self.inner.complete_listing(dir, |names| names.listed().cloned());
        Ok(Arc::new(OpenDir { dir, listing: Mutex::new(listing.unwrap_or_default()) }))
    }

    /// Which edition the names of a directory are of now: the same positions mean the same names in all listings of one edition.
    /// `None`: whoever reads from 0 makes the first. [`Validity::NONE`] where not all names are known, or too many.
    pub fn whole(&self, dir: Fid) -> Cached<Option<Edition>> {
        let unknown = Cached { value: None, valid: Validity::NONE };
        if self.inner.config.consistency != Consistency::Lease {
            return unknown;
        }
        let (mut state, now) = self.inner.locked();
        let Some(valid) = state.served(now, dir) else { return unknown };
        match state.existing(dir).and_then(|inode| inode.dir.as_ref()) {
            Some(names) if names.keeps_listing() => {
                Cached { value: names.listed().map(|whole| whole.edition.clone()), valid }
            }
            _ => unknown,
        }
    }

    /// The edition that `open` goes on in, if it does not ask the server.
    pub async fn edition(&self, open: &OpenDir) -> Option<Edition> {
        Some(open.listing.lock().await.whole.as_ref()?.edition.clone())
    }

    /// The directory that `..` means.
    ///
    /// # Errors
    /// ENOTDIR, ESTALE.
    pub async fn parent(&self, open: &OpenDir) -> FsResult<Fid> {
        if let Some(parent) = open.listing.lock().await.parent {
            return Ok(parent);
        }
        self.read_dir(open, 0, 1).await?;
        Ok(open.listing.lock().await.parent.unwrap_or(open.dir))
    }

    /// Entries from a position on: 0, which takes a new look, or [`DirEntry::next`] of one. None at the end. `.` and `..`
    /// are not among them.
    ///
    /// # Errors
    /// ENOTDIR, ESTALE if the directory is gone.
    pub async fn read_dir(&self, open: &OpenDir, from: u64, max: usize) -> FsResult<Vec<DirEntry>> {
        self.read_dir_with(open, from, max, Detail::Attributes).await
    }

    /// As [`Client::read_dir`], with as much about each entry as is wanted.
    ///
    /// # Errors
    /// As [`Client::read_dir`].
    pub async fn read_dir_with(
        &self,
        open: &OpenDir,
        from: u64,
        max: usize,
        detail: Detail,
    ) -> FsResult<Vec<DirEntry>> {
        self.inner.stats.op_readdir.one();
        let mut listing = open.listing.lock().await;
        let from = usize::try_from(from).unwrap_or(usize::MAX);
        if from == 0 {
            *listing = self.inner.complete_listing(open.dir, Directory::list).unwrap_or_default();
            let (mut state, _) = self.inner.locked();
            state.note_listed(open.dir);
            let known = listing.whole.iter().flat_map(|whole| whole.listed.iter());
            state.note_found(known.map(|listed| (listed.fid, listed.kind)));
        }
        if let Some(whole) = &listing.whole {
            let wanted = whole.listed.iter().enumerate().skip(from).take(max);
            return Ok(self.inner.dir_entries(open.dir, wanted, detail));
        }
        listing.go_to(from);
        while listing.end == End::NotYet && listing.from(from).count() < max {
            let known = self.inner.settled(&[open.dir]).await?;
            let after = listing.after.clone();
            let page =
                self.inner.ask_page(known, open.dir, after, listing.began, For::AReader).result().await?;
            listing.take_in(page);
            listing.forget_before(from);
        }
        Ok(self.inner.dir_entries(open.dir, listing.from(from).take(max), detail))
    }
}

impl Listing {
    /// Entries from a position on, as far as they are here.
    fn from(&self, from: usize) -> impl Iterator<Item = (usize, &Listed)> {
        let known = self.window.partition_point(|(at, _)| *at < from);
        self.window.range(known..).map(|(at, listed)| (*at, listed))
    }

    fn take_in(&mut self, page: Page) {
        self.parent = Some(page.parent);
        self.end = page.end;
        self.began = Some(page.began);
        if let Some(last) = page.entries.last() {
            self.after = Some(last.name.clone());
        }
        for listed in page.entries {
            if let Some(at) = self.names.place(listed.name.as_bytes()) {
                self.window.push_back((at, listed));
            }
        }
    }

    /// seekdir to a position that was read and is forgotten: it is asked for again from there on.
    fn go_to(&mut self, from: usize) {
        let end = self.window.back().map_or(self.first, |(at, _)| at + 1);
        if (self.first..=end).contains(&from) || from > self.names.len() {
            return;
        }
        let before = from.checked_sub(1).and_then(|at| self.names.get(at));
        self.after = before.and_then(|name| Name::new(name).ok());
        self.first = from;
        self.window.clear();
        self.end = End::NotYet;
    }

    /// A page before the reader is kept: the kernel may ask again for what did not fit.
    fn forget_before(&mut self, from: usize) {
        let keep = from.saturating_sub(PAGE as usize);
        while self.window.pop_front_if(|(at, _)| *at < keep).is_some() {}
        self.first = self.first.max(keep.min(self.names.len()));
    }
}

impl Inner {
    /// Asks what decides whether changes can be made here, of a directory that this client alone changes: which names are not
    /// there, and whether there are access lists.
    pub(crate) fn learn_names(self: &Arc<Inner>, dir: Fid) {
        {
            let (mut state, now) = self.locked();
            let alone = state.may_change_here(now, dir).is_ok();
            let inode = state.inode(dir);
            let lists_known = inode.summary().is_some();
            let names = inode.directory();
            let known = lists_known && names.complete == Complete::Yes;
            if !alone || known || names.learning_until > now {
                return;
            }
            names.learning_until = now + LEARN_AGAIN;
        }
        let inner = Arc::clone(self);
        self.runtime.spawn(async move {
            if inner.ask_attr(dir).result().await.is_ok() {
                inner.read_names(dir).await;
            }
        });
    }

    /// A name of the directory is about to be asked for. If more of them will be, all are, behind it.
    pub(super) fn list_ahead(self: &Arc<Inner>, dir: Fid) {
        {
            let (mut state, now) = self.locked();
            if state.note_name_asked(now, dir, now + LEARN_AGAIN) == List::NotNow {
                return;
            }
        }
        self.stats.directories_ahead.one();
        let inner = Arc::clone(self);
        self.runtime.spawn(async move { inner.read_names(dir).await });
    }

    /// Enters all names, if there are not too many of them.
    async fn read_names(self: &Arc<Inner>, dir: Fid) {
        let (mut after, mut began) = (None, None);
        for _ in 0..MOST_LEARNED {
            let Ok(known) = self.settled(&[dir]).await else { return };
            let Ok(page) = self.ask_page(known, dir, after, began, For::Names).result().await else { return };
            if page.began.entered.is_none() {
                // Others change it meanwhile: the rest would ask them for their leases again, for nothing.
                return;
            }
            began = Some(page.began);
            after = page.entries.last().map(|last| last.name.clone());
            if page.end == End::Reached {
                // If it was changed while it was read, the next one who needs it asks again.
                let (mut state, now) = self.locked();
                state.inode(dir).directory().learning_until = now;
                return;
            }
        }
    }

    fn complete_listing(
        &self,
        dir: Fid,
        whole: impl FnOnce(&mut Directory) -> Option<Whole>,
    ) -> Option<Listing> {
        if self.config.consistency != Consistency::Lease {
            return None;
        }
        let (mut state, now) = self.locked();
        state.served(now, dir)?;
        let names = state.existing(dir)?.dir.as_mut()?;
        let parent = names.parent()?;
        Some(Listing { whole: Some(whole(names)?), parent: Some(parent), ..Listing::default() })
    }

    /// `settled`: with nothing of the directory that the server does not know.
    fn ask_page(
        self: &Arc<Inner>,
        settled: (MutexGuard<'_, State>, Monotonic),
        dir: Fid,
        after: Option<Name>,
        began: Option<Began>,
        whom: For,
    ) -> crate::call::Waiting<Page> {
        let (mut state, now) = settled;
        let first = after.is_none();
        let next = if first && whom == For::AReader { state.next_dirs(now) } else { Vec::new() };
        let ticket = state.holder.begin_request(now);
        drop(state);
        let call = Call::ReadDir { dir, after, limit: PAGE, next };
        self.send(Order::question(call, ticket), move |arrived, result| {
            let ticket = arrived.ticket;
            let (answer, _) = result?;
            let Answer::Entries(page, next) = answer else { return unexpected(&answer) };
            let (state, now) = (&mut *arrived.state, arrived.now);
            let pages = if first { Pages::First } else { Pages::After(began) };
            let began = state.enter_page(now, ticket, dir, &page, pages);
            if whom == For::AReader {
                state.note_found(page.entries.iter().map(|(_, node)| (node.fid, node.attr.kind)));
            }
            arrived.inner.stats.directories_ahead.add(next.len() as u64);
            for (dir, page) in &next {
                state.enter_page(now, ticket, *dir, page, Pages::First);
            }
            let end = if page.rest == Rest::End { End::Reached } else { End::NotYet };
            let entry = |(name, node): (Name, Node)| Listed { name, fid: node.fid, kind: node.attr.kind };
            Ok(Page {
                entries: page.entries.into_iter().map(entry).collect(),
                parent: page.parent,
                end,
                began,
            })
        })
    }

    /// With what the caches know of each now. The kernel keeps what it is told here.
    fn dir_entries<'a>(
        &self,
        dir: Fid,
        listed: impl Iterator<Item = (usize, &'a Listed)>,
        detail: Detail,
    ) -> Vec<DirEntry> {
        let (mut state, now) = self.locked();
        let news = state.news(now, dir);
        let entry_of = |state: &mut State, listed: &Listed| {
            let wanted = match detail {
                Detail::Names => false,
                Detail::Attributes => true,
                Detail::News => news.is_news(state, &listed.name, listed.fid),
            };
            if !wanted {
                return None;
            }
            let known = Known::Present { fid: listed.fid, kind: listed.kind };
            let names = match state.names_lock() {
                NamesLock::None => state.name_validity(now, dir, &listed.name, known),
                // Taking a listing in may wait for look-ups of others: what it says could be kept later than any bound.
                NamesLock::Directory => Validity::NONE,
            };
            // Only what may be used now: what the listing said may be old, and the kernel would take it for news.
            let attr = state.attr(now, listed.fid)?;
            let xattrs = state.existing(listed.fid).and_then(|inode| inode.summary());
            let xattrs = xattrs.unwrap_or(XattrSummary::Some);
            let node = Node { fid: listed.fid, attr: attr.value, xattrs };
            Some(Entry { node: Some(node), names, attr: attr.valid })
        };
        listed
            .map(|(at, listed)| DirEntry {
                name: listed.name.clone(),
                fid: listed.fid,
                kind: listed.kind,
                next: at as u64 + 1,
                entry: entry_of(&mut state, listed),
            })
            .collect()
    }
}

/// What the kernel knows well enough of a directory not to be told again.
#[derive(Clone, Copy, Debug)]
struct News {
    dir: Fid,
    /// What it was told until then, or later, is good for a while.
    enough: Monotonic,
}

/// Whom a page is asked for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum For {
    /// Who lists the directory, and what is in it next, perhaps.
    AReader,
    /// Who looks names up.
    Names,
}

/// Which page of a directory one is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Pages {
    First,
    /// `None`: what comes before was read by another process ([`OpenDir::handed`]).
    After(Option<Began>),
}

impl State {
    /// What a page says goes into the caches. Returns how far they have the pages up to it.
    fn enter_page(
        &mut self,
        now: Monotonic,
        ticket: Ticket,
        dir: Fid,
        page: &DirPage,
        pages: Pages,
    ) -> Began {
        self.learn_attr(now, ticket, dir, &page.dir);
        let enterable = self.enter(ticket, dir);
        for (name, node) in &page.entries {
            self.learn_name(now, ticket, dir, name, present(node));
            self.learn_node(now, ticket, node);
            if !is_directory(node) {
                self.met(node.fid, dir);
            }
        }
        let entered = if enterable { self.entered(dir) } else { None };
        let began = match pages {
            Pages::First => Began { sent: ticket.sent_at(), entered },
            Pages::After(Some(began)) => {
                Began { entered: began.entered.filter(|all| entered == Some(*all)), ..began }
            }
            Pages::After(None) => Began { sent: ticket.sent_at(), entered: None },
        };
        if page.rest == Rest::End && self.caches_under_leases() && began.entered.is_some() {
            // Own changes in between do not matter: what they made of a name is in the table, and newer than the page.
            let names = self.inode(dir).directory();
            if names.cleared() < began.sent && names.len() <= MOST_COMPLETE {
                names.complete = Complete::Yes;
                names.set_parent(page.parent);
            }
        }
        began
    }

    fn entered(&mut self, dir: Fid) -> Option<Entered> {
        let inode = self.inode(dir);
        let holding = inode.holding?;
        Some(Entered { holding, times_cleared: inode.directory().times_cleared() })
    }

    fn news(&mut self, now: Monotonic, dir: Fid) -> News {
        let until = self.served(now, dir).and_then(Validity::until);
        // Half of what it could be told now: so it is told anew once in half a term.
        let enough = until.map_or(Monotonic::NEVER, |until| now + until.since(now) / 2);
        News { dir, enough }
    }
}

impl News {
    fn is_news(self, state: &mut State, name: &Name, fid: Fid) -> bool {
        let knows_inode = state
            .existing(fid)
            .is_some_and(|inode| inode.kernel.refs > 0 && inode.kernel.attr_until >= self.enough);
        let dir = state.existing(self.dir).and_then(|inode| inode.dir.as_ref());
        let knows_name = dir.is_some_and(|dir| dir.told_until(name) >= self.enough);
        !(knows_inode && knows_name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Handed over by another program.
    #[test]
    fn names_whose_ends_cannot_be_are_none() {
        let names = SortedNames { bytes: b"abc".to_vec(), ends: vec![2, 1, 9] };
        assert_eq!([0, 1, 2].map(|at| names.get(at)), [Some(&b"ab"[..]), None, None]);
    }
}
