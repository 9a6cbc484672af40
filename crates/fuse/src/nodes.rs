//! The inodes that the kernel knows, and what it was told of them.

mod handed;
mod pages;
mod places;
mod subdirectories;

use crate::believed::{Attributes, Telling, Ticks, Way};
use crate::kept_listing::KeptListing;
use crate::unpoisoned::Unpoisoned;
use crate::wire::{Asked, AttrOut, NodeId};
use serde::{Deserialize, Serialize};
use soda_types::{Attr, Fid, FileKind, Ino, Version};
use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard};
use std::time::{Duration, Instant};

pub(crate) use handed::HandedNode;
use pages::Staying;
pub(crate) use places::Place;
use places::Placed;
pub(crate) use subdirectories::{NameKind, TakenIn};

const SHARDS: usize = 32;

#[derive(Debug)]
pub(crate) struct Nodes {
    root: Fid,
    since: Instant,
    /// So often the kernel was told something that makes it throw answers away.
    bars: AtomicU64,
    shards: Vec<Mutex<HashMap<NodeId, Node>>>,
    /// [`Nodes::pages_stay`]. Not handed over: another process drops all pages that may be of several versions.
    staying: Staying,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
struct Node {
    fid: Fid,
    /// Look-ups that the kernel has not forgotten.
    lookups: u64,
    /// Attributes were handed out with a time-out since they were last invalidated.
    attr: Told,
    /// Another process does not know what the kernel has taken in by then.
    #[serde(skip)]
    attributes: Attributes,
    /// Of [`Nodes::bar`], the last time.
    #[serde(skip)]
    barred: u64,
    pages: Pages,
    /// The newest version of the data that the kernel was given anything of: attributes or pages.
    newest: Option<Version>,
    /// The kernel takes the file to have at least so many bytes.
    shown: u64,
    /// Of a directory: the attributes that were handed out last.
    directory: Option<Box<Attr>>,
    /// Of a directory: the pages that the kernel has of its listing.
    listing: Option<Box<KeptListing>>,
    /// Of a directory: where it was handed out last.
    place: Option<Box<Placed>>,
    /// That the directory is gone, to somebody who wanted to change it.
    removed: Told,
    /// Names of directories below this one that were handed out with a time-out, and when that was last the answer to a look-up.
    #[serde(with = "subdirectories::names_only")]
    subdirectories: HashMap<Box<[u8]>, Option<Instant>>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) enum Told {
    No,
    Yes,
}

/// Whether the kernel may take in the attributes of an answer after it was told to forget those of the inode. It does not
/// read an answer when that is written, but when who asked gets to run: long after the next recall, on a busy machine.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Inode {
    /// No. What LOOKUP, GETATTR and READDIRPLUS say it throws away if it was told to forget the inode since it asked. And of
    /// a new inode that it has not taken in it does not know: it says so (ENOENT), and is told again until it does.
    Guarded,
    /// Yes: LINK and a CREATE of what is there already (`create_new_entry` and `fuse_create_open` give `fuse_iget` an
    /// `attr_version` of 0), and before some Linux 6.x SETATTR (`fuse_do_setattr`). If it believed them, it would believe
    /// what is stale.
    Known,
}

impl Inode {
    pub(crate) fn attributes(self, valid: Duration) -> Duration {
        match self {
            Inode::Guarded => valid,
            Inode::Known => Duration::ZERO,
        }
    }
}

/// What the kernel's page cache of an inode may hold.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
enum Pages {
    None,
    /// Pages of this version of the data, whole or in part.
    Of(Version),
    /// Pages of more than one version.
    Mixed,
}

/// Whether data may go into the kernel's pages.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Fill {
    Fits,
    /// The kernel knows the size of a newer version, and would take what is missing in these pages for zeros.
    Overtaken,
}

/// Whether pages have to be dropped before the kernel may use what is in its cache.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum PageState {
    Current,
    Outdated,
}

impl Nodes {
    pub(crate) fn new(root: Fid) -> Nodes {
        Nodes {
            root,
            since: Instant::now(),
            bars: AtomicU64::new(0),
            shards: (0..SHARDS).map(|_| Mutex::default()).collect(),
            staying: Staying::default(),
        }
    }

    fn shard(&self, node: NodeId) -> MutexGuard<'_, HashMap<NodeId, Node>> {
        let shard = &self.shards[(node.0 as usize) % SHARDS];
        shard.lock().unpoisoned()
    }

    /// The kernel's number of an inode.
    pub(crate) fn node_of(&self, fid: Fid) -> NodeId {
        if fid == self.root { NodeId::ROOT } else { NodeId(fid.ino.0) }
    }

    pub(crate) fn fid_of(&self, node: NodeId) -> Fid {
        if node == NodeId::ROOT {
            return self.root;
        }
        let known = self.shard(node).get(&node).map(|entry| entry.fid);
        // The kernel only asks about what it was told; a number it made up names nothing at the server either.
        known.unwrap_or(Fid { ino: Ino(node.0), ..self.root })
    }

    /// Counts a look-up that is about to be handed to the kernel.
    pub(crate) fn remember(&self, fid: Fid) {
        let node = self.node_of(fid);
        let mut shard = self.shard(node);
        let new = || if node == NodeId::ROOT { Node::root(fid) } else { Node::new(fid) };
        let entry = shard.entry(node).or_insert_with(new);
        entry.lookups += 1;
    }

    pub(crate) fn forget(&self, node: NodeId, lookups: u64) {
        let mut shard = self.shard(node);
        if let Some(entry) = shard.get_mut(&node) {
            entry.lookups = entry.lookups.saturating_sub(lookups);
            if entry.lookups == 0 && node != NodeId::ROOT {
                shard.remove(&node);
            }
        }
    }

    pub(crate) fn is_known(&self, node: NodeId) -> bool {
        node == NodeId::ROOT || self.shard(node).contains_key(&node)
    }

    /// Number of inodes that the kernel holds.
    pub(crate) fn len(&self) -> usize {
        self.shards.iter().map(|s| s.lock().unpoisoned().len()).sum()
    }

    fn with<R>(&self, fid: Fid, change: impl FnOnce(&mut Node) -> R) -> Option<R> {
        let node = self.node_of(fid);
        let mut shard = self.shard(node);
        if node == NodeId::ROOT {
            return Some(change(shard.entry(node).or_insert_with(|| Node::root(fid))));
        }
        shard.get_mut(&node).map(change)
    }

    /// Attributes are about to be handed out, under a lease that lasts for as long as `out` says. For how long the kernel may
    /// believe them.
    pub(crate) fn tell_attr(&self, fid: Fid, out: AttrOut<'_>, asked: Asked, inode: Inode) -> Duration {
        let (print, now) = (out.print(), self.now());
        let believed = self.with(fid, |node| {
            let way = match inode {
                Inode::Guarded if node.barred > asked.bars => Way::Barred,
                _ => Way::Free,
            };
            let stay = node.pages == Pages::Mixed && self.staying.contains(fid);
            let valid = if stay { Duration::ZERO } else { out.valid };
            let telling = Telling { print, valid, to: asked.tid, way, now };
            let believed = node.attributes.tell(telling);
            if !believed.is_zero() {
                node.attr = Told::Yes;
            }
            believed
        });
        // Not known: forgotten meanwhile.
        believed.unwrap_or_default()
    }

    /// The kernel did not take the attributes that it was told last.
    pub(crate) fn attr_not_taken(&self, fid: Fid) {
        self.with(fid, |node| node.attributes.not_taken());
    }

    /// Another machine may change the attributes from now on.
    pub(crate) fn attributes_recalled(&self, fid: Fid) {
        let now = self.now();
        self.with(fid, |node| node.attributes.recalled(now));
    }

    /// The kernel has been told something of the inode, upon which it throws away the answers that it had asked for, but for
    /// those that are [`Inode::Known`].
    pub(crate) fn bar(&self, fid: Fid) {
        let bars = self.bars.fetch_add(1, Ordering::Relaxed) + 1;
        self.with(fid, |node| {
            node.barred = bars;
            node.attributes.barred();
        });
    }

    /// To be kept with a request: what is barred from now on makes its answer void.
    pub(crate) fn asked(&self, tid: u32) -> Asked {
        Asked { tid, bars: self.bars.load(Ordering::Relaxed) }
    }

    fn now(&self) -> Ticks {
        Ticks::of(self.since.elapsed())
    }

    pub(crate) fn is_attr_told(&self, fid: Fid) -> bool {
        self.with(fid, |node| node.attr == Told::Yes).unwrap_or(false)
    }

    /// Whether the kernel may hold attributes; from here on it does not.
    pub(crate) fn take_attr_told(&self, fid: Fid) -> bool {
        self.with(fid, |node| std::mem::replace(&mut node.attr, Told::No) == Told::Yes).unwrap_or(false)
    }

    /// Keeps what is handed out of a directory, for [`Nodes::last_of_directory`].
    pub(crate) fn keep_directory(&self, fid: Fid, attr: &Attr) {
        if attr.kind == FileKind::Directory {
            self.with(fid, |node| match &mut node.directory {
                Some(kept) => **kept = *attr,
                None => node.directory = Some(Box::new(*attr)),
            });
        }
    }

    /// The attributes that the kernel was told last, if it is a directory that the kernel knows.
    pub(crate) fn last_of_directory(&self, fid: Fid) -> Option<Attr> {
        self.with(fid, |node| node.directory.as_deref().copied()).flatten()
    }

    /// What the kernel keeps of a directory's listing. `None`: it has forgotten the directory.
    pub(crate) fn listing<R>(&self, dir: Fid, change: impl FnOnce(&mut KeptListing) -> R) -> Option<R> {
        self.with(dir, |node| change(node.listing.get_or_insert_default()))
    }

    /// As [`Nodes::listing`], where there is one.
    pub(crate) fn kept_listing<R>(&self, dir: Fid, change: impl FnOnce(&mut KeptListing) -> R) -> Option<R> {
        self.with(dir, |node| node.listing.as_deref_mut().map(change)).flatten()
    }

    /// Whether somebody who wanted to change the directory was told that it is gone; from here on it is so.
    pub(crate) fn tell_removed(&self, fid: Fid) -> Told {
        self.with(fid, |node| std::mem::replace(&mut node.removed, Told::Yes)).unwrap_or(Told::No)
    }

    /// Whether the kernel surely knows that the file has so many bytes, or more.
    pub(crate) fn is_size_shown(&self, fid: Fid, size: u64) -> bool {
        self.with(fid, |node| node.shown >= size).unwrap_or(false)
    }

    /// The kernel has been made to know the size of `version`. [`Fill::Overtaken`]: by now it knows of newer data.
    pub(crate) fn size_shown(&self, fid: Fid, version: Version, size: u64) -> Fill {
        let shown = self.with(fid, |node| {
            if node.newest.is_some_and(|newest| newest > version) {
                return Fill::Overtaken;
            }
            node.shown = size;
            Fill::Fits
        });
        shown.unwrap_or(Fill::Fits)
    }

    /// The kernel is given an answer from which it may conclude that the file has only so many bytes.
    pub(crate) fn size_may_be(&self, fid: Fid, size: u64) {
        self.with(fid, |node| node.shown = node.shown.min(size));
    }

    /// Every inode that may have attributes or pages in the kernel.
    pub(crate) fn all(&self) -> Vec<Fid> {
        self.all_of(|_| true)
    }

    /// Those that may have pages.
    pub(crate) fn all_with_pages(&self) -> Vec<Fid> {
        self.all_of(|node| node.pages != Pages::None || node.listing.is_some())
    }

    fn all_of(&self, wanted: impl Fn(&Node) -> bool) -> Vec<Fid> {
        let of_shard = |shard: &Mutex<HashMap<NodeId, Node>>| {
            let shard = shard.lock().unpoisoned();
            shard.values().filter(|node| wanted(node)).map(|node| node.fid).collect::<Vec<_>>()
        };
        self.shards.iter().flat_map(of_shard).collect()
    }
}

impl Node {
    fn new(fid: Fid) -> Node {
        Node {
            fid,
            lookups: 0,
            attr: Told::No,
            attributes: Attributes::None,
            barred: 0,
            pages: Pages::None,
            newest: None,
            shown: 0,
            directory: None,
            listing: None,
            place: None,
            removed: Told::No,
            subdirectories: HashMap::new(),
        }
    }

    /// The kernel has it before it is told anything of it.
    fn root(fid: Fid) -> Node {
        Node { attributes: Attributes::Unknown, ..Node::new(fid) }
    }

    fn fill(&mut self, version: Version) {
        self.newest = self.newest.max(Some(version));
        self.pages = match self.pages {
            Pages::None => Pages::Of(version),
            Pages::Of(old) if old == version => Pages::Of(version),
            _ => Pages::Mixed,
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use soda_types::VolumeId;

    fn fid(ino: u64) -> Fid {
        Fid::new(VolumeId(1), Ino(ino))
    }

    #[test]
    fn lookups_are_counted_exactly() {
        let nodes = Nodes::new(fid(1));
        nodes.remember(fid(5));
        nodes.remember(fid(5));
        nodes.forget(NodeId(5), 1);
        assert!(nodes.is_known(NodeId(5)));
        nodes.forget(NodeId(5), 1);
        assert!(!nodes.is_known(NodeId(5)));
        assert!(nodes.is_known(NodeId::ROOT));
    }

    #[test]
    fn only_a_directory_that_was_looked_up_just_now_is_fresh() {
        let nodes = Nodes::new(fid(1));
        nodes.tell_subdirectory(fid(1), b"made", TakenIn::UnderItsLock);
        nodes.tell_subdirectory(fid(1), b"looked up", TakenIn::AtAnyTime);
        nodes.tell_subdirectory(fid(1), b"looked up", TakenIn::UnderItsLock);
        assert_eq!(nodes.take_subdirectory(fid(1), b"made"), NameKind::Directory);
        assert_eq!(nodes.take_subdirectory(fid(1), b"looked up"), NameKind::FreshDirectory);
        assert_eq!(nodes.take_subdirectory(fid(1), b"looked up"), NameKind::Plain, "taken");
    }

    #[test]
    fn pages_of_two_versions_are_outdated() {
        let nodes = Nodes::new(fid(1));
        nodes.remember(fid(5));
        let state = |version| nodes.page_state(fid(5), Version(version));
        assert_eq!(state(3), PageState::Current);
        assert_eq!(nodes.fill_pages(fid(5), Version(3)), Fill::Fits);
        assert_eq!((state(3), state(4)), (PageState::Current, PageState::Outdated));
        nodes.pages_changed(fid(5), Version(4));
        assert_eq!(state(4), PageState::Current);
        assert_eq!(nodes.fill_pages(fid(5), Version(9)), Fill::Fits);
        assert_eq!(state(9), PageState::Outdated);
        nodes.pages_dropped(fid(5));
        assert_eq!(state(9), PageState::Current);
    }

    /// Else a reader would see the new size and, where the old data ended, zeros.
    #[test]
    fn old_data_does_not_follow_new_attributes_into_the_kernel() {
        let nodes = Nodes::new(fid(1));
        nodes.remember(fid(5));
        assert_eq!(nodes.announce(fid(5), Version(4), 10), PageState::Current);
        assert_eq!(nodes.fill_pages(fid(5), Version(3)), Fill::Overtaken);
        assert_eq!(nodes.page_state(fid(5), Version(4)), PageState::Current, "nothing came in");
        assert_eq!(nodes.fill_pages(fid(5), Version(5)), Fill::Fits);
        assert_eq!(nodes.announce(fid(5), Version(6), 10), PageState::Outdated);
    }

    #[test]
    fn a_size_is_shown_once_until_the_file_becomes_shorter() {
        let nodes = Nodes::new(fid(1));
        nodes.remember(fid(5));
        nodes.announce(fid(5), Version(4), 10);
        assert!(!nodes.is_size_shown(fid(5), 10), "the kernel may have thrown the answer away");
        assert_eq!(nodes.size_shown(fid(5), Version(4), 10), Fill::Fits);
        nodes.announce(fid(5), Version(5), 10);
        assert!(nodes.is_size_shown(fid(5), 10), "other data, the same size");
        nodes.announce(fid(5), Version(6), 3);
        assert!(nodes.is_size_shown(fid(5), 3) && !nodes.is_size_shown(fid(5), 4));
        assert_eq!(nodes.size_shown(fid(5), Version(5), 10), Fill::Overtaken);
        assert!(!nodes.is_size_shown(fid(5), 10));
        assert_eq!(nodes.size_shown(fid(5), Version(6), 3), Fill::Fits);
        nodes.size_may_be(fid(5), 2);
        assert!(!nodes.is_size_shown(fid(5), 3));
    }

    #[test]
    fn an_inode_of_another_generation_keeps_its_fid() {
        let nodes = Nodes::new(fid(1));
        let restored = Fid { generation: 3, ..fid(5) };
        nodes.remember(restored);
        assert_eq!(nodes.fid_of(NodeId(5)), restored);
        assert_eq!(nodes.fid_of(NodeId::ROOT), fid(1));
    }
}
