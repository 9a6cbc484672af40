//! Random operations on a volume and on the plainest file system there could be: results, attributes, names and data
//! must agree after each step; now and then the volume is opened anew, and fsck must find nothing.

use crate::common::*;
use bytes::Bytes;
use soda_storage::{DataDirectory, DataStore, MemoryData, MemoryMeta, MetaStore, StoreOptions};
use soda_types::{Errno, Fid, FileKind, FsResult, SetAttr, Timestamp};
use soda_volume::fsck::{DataCheck, FsckOptions, Repair, fsck};
use soda_volume::*;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

#[derive(Clone, Debug, Default)]
struct Node {
    directory: bool,
    data: Vec<u8>,
    names: BTreeMap<String, Fid>,
    xattrs: BTreeMap<String, Vec<u8>>,
    links: usize,
    open: bool,
}

#[derive(Debug, Default)]
struct Model {
    nodes: BTreeMap<Fid, Node>,
}

impl Model {
    fn node(&mut self, fid: Fid) -> &mut Node {
        self.nodes.get_mut(&fid).expect("the model knows it")
    }

    fn find(&self, parent: Fid, name: &str) -> Option<Fid> {
        self.nodes[&parent].names.get(name).copied()
    }

    fn is_below(&self, fid: Fid, ancestor: Fid) -> bool {
        fid == ancestor
            || self.nodes[&ancestor]
                .names
                .values()
                .any(|child| self.nodes[child].directory && self.is_below(fid, *child))
    }

    /// Takes a name away; what had it last goes, unless it is open.
    fn drop_name(&mut self, parent: Fid, name: &str) {
        let fid = self.node(parent).names.remove(name).unwrap();
        let node = self.node(fid);
        node.links = if node.directory { 0 } else { node.links - 1 };
        if node.links == 0 && !node.open {
            self.nodes.remove(&fid);
        }
    }
}

struct Random(u64);

impl Random {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % limit
    }

    fn pick<T: Copy>(&mut self, from: &[T]) -> T {
        from[self.below(from.len() as u64) as usize]
    }
}

struct World {
    meta: Arc<dyn MetaStore>,
    data: Arc<dyn DataStore>,
    volume: Volume,
    config: VolumeConfig,
    model: Model,
    random: Random,
    clock: i64,
    trace: Vec<String>,
}

const NAMES: [&str; 7] = ["a", "b", "c", "dd", "e", "f", "a-longer-name"];
const EDGES: [u64; 12] = [0, 1, 100, 4095, 4096, 4097, 8192, 10_000, 65_536, 70_000, 131_072, 300_000];

impl World {
    fn new(meta: Arc<dyn MetaStore>, data: Arc<dyn DataStore>, config: VolumeConfig, seed: u64) -> World {
        let volume = Volume::open(meta.clone(), data.clone(), config.clone()).unwrap();
        let mut model = Model::default();
        model.nodes.insert(volume.root(), Node { directory: true, links: 1, ..Node::default() });
        World { meta, data, volume, config, model, random: Random(seed), clock: 1, trace: Vec::new() }
    }

    fn directories(&self) -> Vec<Fid> {
        self.model
            .nodes
            .iter()
            .filter(|(_, node)| node.directory && node.links > 0)
            .map(|(fid, _)| *fid)
            .collect()
    }

    fn files(&self) -> Vec<Fid> {
        self.model.nodes.iter().filter(|(_, node)| !node.directory).map(|(fid, _)| *fid).collect()
    }

    fn offset(&mut self) -> u64 {
        let edge = self.random.pick(&EDGES);
        edge + self.random.pick(&[0, 0, 1, 50])
    }

    fn step(&mut self) {
        self.clock += 1;
        let clock = Timestamp::new(self.clock, 0);
        let directories = self.directories();
        let (parent, other) = (self.random.pick(&directories), self.random.pick(&directories));
        let (one, two) = (self.random.pick(&NAMES), self.random.pick(&NAMES));
        let kind = self.random.below(24);
        self.trace.push(format!("{kind}: {parent}/{one} {other}/{two}"));
        let volume = &self.volume;
        let mut txn = volume.begin(clock);
        match kind {
            0..=3 => {
                let directory = kind == 0;
                let kind = if directory { NewKind::Directory } else { NewKind::File };
                let result = txn.create(parent, &name(one), new_node(kind, 0o644));
                match self.model.find(parent, one) {
                    Some(_) => assert_eq!(errno(&result), Some(Errno::Exists)),
                    None => {
                        let fid = result.unwrap().fid;
                        let open = self.random.below(4) == 0;
                        self.model.nodes.insert(fid, Node { directory, links: 1, open, ..Node::default() });
                        self.model.node(parent).names.insert(one.to_owned(), fid);
                    }
                }
                txn.commit().unwrap();
            }
            4 | 5 => {
                let found = self.model.find(parent, one);
                let open = found.map_or(IfOpen::Delete, |fid| if_open(&self.model.nodes[&fid]));
                let unlinked = txn.unlink(parent, &name(one), open);
                let removed = txn.rmdir(parent, &name(one), open);
                match found.map(|fid| self.model.nodes[&fid].clone()) {
                    None => {
                        assert_eq!(
                            (errno(&unlinked), errno(&removed)),
                            (Some(Errno::NoEntry), Some(Errno::NoEntry))
                        );
                    }
                    Some(node) if node.directory => {
                        assert_eq!(errno(&unlinked), Some(Errno::IsDirectory));
                        if node.names.is_empty() {
                            removed.unwrap();
                            self.model.drop_name(parent, one);
                        } else {
                            assert_eq!(errno(&removed), Some(Errno::NotEmpty));
                        }
                    }
                    Some(node) => {
                        let expected = match (node.links, node.open) {
                            (2.., _) => Fate::Linked,
                            (_, true) => Fate::Orphaned,
                            (_, false) => Fate::Deleted,
                        };
                        assert_eq!(unlinked.unwrap().fate, expected);
                        assert_eq!(errno(&removed), Some(Errno::NoEntry));
                        self.model.drop_name(parent, one);
                    }
                }
                txn.commit().unwrap();
            }
            6 => {
                let Some(fid) = self.model.find(parent, one) else { return };
                let result = txn.link(fid, other, &name(two));
                if self.model.nodes[&fid].directory {
                    assert_eq!(errno(&result), Some(Errno::Perm));
                } else if self.model.find(other, two).is_some() {
                    assert_eq!(errno(&result), Some(Errno::Exists));
                } else {
                    result.unwrap();
                    self.model.node(fid).links += 1;
                    self.model.node(other).names.insert(two.to_owned(), fid);
                }
                txn.commit().unwrap();
            }
            7 | 8 => {
                drop(txn);
                self.rename(clock, (parent, one), (other, two));
            }
            9..=15 => {
                let files = self.files();
                if files.is_empty() {
                    return;
                }
                drop(txn);
                let file = self.random.pick(&files);
                let append = self.random.below(3) == 0;
                let len =
                    self.random.pick(&[0u64, 1, 100, 1000, 4096, 5000, 20_000, 65_536, 150_000]) as usize;
                let offset = if append { self.model.nodes[&file].data.len() as u64 } else { self.offset() };
                let fill = self.random.below(255) as u8 + 1;
                let staged = self.volume.stage_write(file, vec![fill; len].into()).unwrap();
                let mut txn = self.volume.begin(clock);
                let at = if append { WriteAt::End } else { WriteAt::Offset(offset) };
                let written = txn.write(file, at, staged, KillPriv::Keep).unwrap();
                assert_eq!((written.offset, written.len), (offset, len as u64));
                if self.random.below(10) == 0 {
                    // Given up: nothing happened.
                    drop(txn);
                    return self.check_file(file);
                }
                txn.commit().unwrap();
                if len > 0 {
                    let data = &mut self.model.node(file).data;
                    let end = offset as usize + len;
                    data.resize(data.len().max(end), 0);
                    data[offset as usize..end].fill(fill);
                }
                self.check_file(file);
            }
            16 | 17 => {
                let files = self.files();
                if files.is_empty() {
                    return;
                }
                drop(txn);
                let file = self.random.pick(&files);
                let size = self.offset();
                let mut txn = self.volume.begin(clock);
                txn.set_attr(file, &SetAttr { size: Some(size), ..SetAttr::default() }).unwrap();
                txn.commit().unwrap();
                self.model.node(file).data.resize(size as usize, 0);
                self.check_file(file);
            }
            18 => {
                let files = self.files();
                if files.is_empty() {
                    return;
                }
                drop(txn);
                let file = self.random.pick(&files);
                let (offset, len) = (self.offset(), 1 + self.offset());
                use soda_volume::Allocate::*;
                let mode = self.random.pick(&[Extend, KeepSize, PunchHole, ZeroRange, ZeroRangeKeepSize]);
                let mut txn = self.volume.begin(clock);
                txn.fallocate(file, mode, offset, len, KillPriv::Keep).unwrap();
                txn.commit().unwrap();
                let data = &mut self.model.node(file).data;
                if matches!(mode, Extend | ZeroRange) {
                    data.resize(data.len().max((offset + len) as usize), 0);
                }
                if matches!(mode, PunchHole | ZeroRange | ZeroRangeKeepSize) {
                    let end = data.len().min((offset + len) as usize);
                    let start = end.min(offset as usize);
                    data[start..end].fill(0);
                }
                self.check_file(file);
            }
            19 => {
                let files = self.files();
                if files.is_empty() {
                    return;
                }
                drop(txn);
                let (from, to) = (self.random.pick(&files), self.random.pick(&files));
                let (from_offset, to_offset, len) = (self.offset(), self.offset(), self.offset());
                let mut txn = self.volume.begin(clock);
                let result = txn.copy_range((from, from_offset), (to, to_offset), len, KillPriv::Keep);
                let source = &self.model.nodes[&from].data;
                let end = source.len().min((from_offset + len) as usize);
                let copied = source.get(from_offset as usize..end).unwrap_or_default().to_vec();
                let overlap = from == to
                    && from_offset < to_offset + copied.len() as u64
                    && to_offset < from_offset + copied.len() as u64;
                if overlap && !copied.is_empty() {
                    assert_eq!(errno(&result), Some(Errno::Invalid));
                } else {
                    assert_eq!(result.unwrap().len, copied.len() as u64);
                    if !copied.is_empty() {
                        let data = &mut self.model.node(to).data;
                        let end = to_offset as usize + copied.len();
                        data.resize(data.len().max(end), 0);
                        data[to_offset as usize..end].copy_from_slice(&copied);
                    }
                }
                txn.commit().unwrap();
                self.check_file(to);
            }
            20 => {
                let all: Vec<Fid> = self.model.nodes.keys().copied().collect();
                drop(txn);
                let fid = self.random.pick(&all);
                let xattr = format!("user.{two}");
                let mut txn = self.volume.begin(clock);
                if self.random.below(3) == 0 {
                    let result = txn.remove_xattr(fid, xattr.as_bytes());
                    match self.model.node(fid).xattrs.remove(&xattr) {
                        Some(_) => drop(result.unwrap()),
                        None => assert_eq!(errno(&result), Some(Errno::NoData)),
                    }
                } else {
                    let value = vec![3; self.random.below(3000) as usize];
                    txn.set_xattr(
                        fid,
                        xattr.as_bytes(),
                        value.clone().into(),
                        SetXattr::Either,
                        KillPriv::Keep,
                    )
                    .unwrap();
                    self.model.node(fid).xattrs.insert(xattr, value);
                }
                txn.commit().unwrap();
                let listed: Vec<Bytes> = self.volume.list_xattrs(fid).unwrap();
                assert!(
                    listed
                        .iter()
                        .map(|name| &name[..])
                        .eq(self.model.nodes[&fid].xattrs.keys().map(|name| name.as_bytes()))
                );
            }
            21 => {
                drop(txn);
                let open: Vec<Fid> =
                    self.model.nodes.iter().filter(|(_, node)| node.open).map(|(fid, _)| *fid).collect();
                if open.is_empty() {
                    return;
                }
                let fid = self.random.pick(&open);
                let node = self.model.node(fid);
                node.open = false;
                if node.links == 0 {
                    let mut txn = self.volume.begin(clock);
                    txn.drop_orphan(fid).unwrap();
                    txn.commit().unwrap();
                    self.model.nodes.remove(&fid);
                }
            }
            22 => {
                drop(txn);
                let node = new_node(NewKind::File, 0o600);
                let mut txn = self.volume.begin(clock);
                let fid = txn.tmpfile(parent, node).unwrap().fid;
                txn.commit().unwrap();
                self.model.nodes.insert(fid, Node { open: true, ..Node::default() });
            }
            _ => {
                drop(txn);
                self.volume.reclaim_some(1 + self.random.below(5) as usize).unwrap();
                if self.random.below(4) == 0 {
                    self.volume.sync().unwrap();
                }
            }
        }
    }

    fn rename(&mut self, clock: Timestamp, (from, one): (Fid, &str), (to, two): (Fid, &str)) {
        // `None`: an exchange.
        let existing =
            self.random.pick(&[Some(Replace::Allowed), Some(Replace::Allowed), Some(Replace::Refused), None]);
        let (source, target) = (self.model.find(from, one), self.model.find(to, two));
        let open = target.map_or(IfOpen::Delete, |fid| if_open(&self.model.nodes[&fid]));
        let mut txn = self.volume.begin(clock);
        let result = match existing {
            Some(existing) => txn.rename(from, &name(one), to, &name(two), existing, open),
            None => txn.exchange((from, &name(one)), (to, &name(two))),
        };
        let is_directory = |fid: Fid| self.model.nodes[&fid].directory;
        let knot = |moving: Fid, into: Fid| is_directory(moving) && self.model.is_below(into, moving);
        let expected = match (source, target, existing) {
            (None, _, _) => Err(Errno::NoEntry),
            (_, Some(_), Some(Replace::Refused)) => Err(Errno::Exists),
            (_, None, None) => Err(Errno::NoEntry),
            (Some(source), Some(target), None) => match source == target {
                true => Ok(()),
                false if knot(source, to) || knot(target, from) => Err(Errno::Invalid),
                false => Ok(()),
            },
            (Some(source), Some(target), _) if source == target => Ok(()),
            (Some(source), _, _) if knot(source, to) => Err(Errno::Invalid),
            (Some(source), Some(target), _) => match (is_directory(source), is_directory(target)) {
                (true, false) => Err(Errno::NotDirectory),
                (false, true) => Err(Errno::IsDirectory),
                (true, true) if !self.model.nodes[&target].names.is_empty() => Err(Errno::NotEmpty),
                _ => Ok(()),
            },
            (Some(_), None, _) => Ok(()),
        };
        assert_eq!(errno(&result), expected.err(), "rename {from}/{one} to {to}/{two}, {existing:?}");
        txn.commit().unwrap();
        if expected.is_err() || source == target {
            return;
        }
        let source = source.unwrap();
        if existing.is_none() {
            self.model.node(from).names.insert(one.to_owned(), target.unwrap());
        } else {
            if target.is_some() {
                self.model.drop_name(to, two);
            }
            self.model.node(from).names.remove(one);
        }
        self.model.node(to).names.insert(two.to_owned(), source);
    }

    fn check_file(&self, file: Fid) {
        let node = &self.model.nodes[&file];
        let size = node.data.len();
        assert_eq!(self.volume.getattr(file).unwrap().size, size as u64);
        assert!(read(&self.volume, file, 0, size + 10) == node.data, "data of {file}");
        let (middle, part) = (size / 3, size / 3 + 1);
        assert!(read(&self.volume, file, middle as u64, part) == node.data[middle..size.min(middle + part)]);
    }

    fn check_everything(&mut self) {
        for (fid, node) in &self.model.nodes {
            let attr = self.volume.getattr(*fid).unwrap();
            if node.directory {
                let subdirectories =
                    node.names.values().filter(|child| self.model.nodes[child].directory).count();
                let nlink = if node.links == 0 { 0 } else { 2 + subdirectories };
                assert_eq!((attr.kind, attr.nlink), (FileKind::Directory, nlink as u32));
                let entries = self.volume.read_dir(*fid, None, 100, Listing::Attributes).unwrap();
                let found: BTreeSet<_> =
                    entries.iter().map(|entry| (entry.name.to_string(), entry.fid)).collect();
                assert_eq!(found, node.names.clone().into_iter().collect());
                for entry in entries {
                    assert_eq!(
                        self.volume.lookup(*fid, &entry.name).unwrap().unwrap().attr,
                        entry.attr.unwrap()
                    );
                }
            } else {
                assert_eq!((attr.kind, attr.nlink), (FileKind::File, node.links as u32));
                self.check_file(*fid);
                for (xattr, value) in &node.xattrs {
                    assert_eq!(self.volume.get_xattr(*fid, xattr.as_bytes()).unwrap(), value);
                }
            }
        }
        assert_eq!(self.volume.usage().0, self.model.nodes.len() as u64);
        let orphans = self.model.nodes.iter().filter(|(_, node)| node.links == 0).map(|(fid, _)| *fid);
        assert!(self.volume.orphans().unwrap().into_iter().eq(orphans));
    }

    fn fsck(&self) {
        let options = FsckOptions {
            repair: Repair::No,
            data: DataCheck::CheckSums,
            now: Timestamp::new(1, 0),
            branch: 0,
        };
        let report = fsck(self.meta.clone(), self.data.clone(), options, &mut |_| {}).unwrap();
        assert!(report.problems.is_empty(), "{:#?}", report.problems);
    }

    fn run(mut self, rounds: usize, steps: usize) {
        for _ in 0..rounds {
            for _ in 0..steps {
                self.step();
            }
            self.check_everything();
            // What is known only to caches is not known any more.
            self.volume = Volume::open(self.meta.clone(), self.data.clone(), self.config.clone()).unwrap();
            self.check_everything();
            self.fsck();
        }
        self.volume.reclaim_all().unwrap();
        self.check_everything();
        self.fsck();
        let stored: u64 = self.data.segments().unwrap().iter().map(|segment| segment.stored).sum();
        assert!(self.volume.usage().1 > 0 || stored == 0);
    }
}

fn if_open(node: &Node) -> IfOpen {
    if node.open { IfOpen::Keep } else { IfOpen::Delete }
}

fn errno<T>(result: &FsResult<T>) -> Option<Errno> {
    result.as_ref().err().map(|error| error.errno)
}

/// Prints how to come back to a run that fails.
fn with_seed(seed: u64, run: impl FnOnce()) {
    struct Told(u64);
    impl Drop for Told {
        fn drop(&mut self) {
            if std::thread::panicking() {
                eprintln!("this was seed {}: SODA_SEED={} runs it alone", self.0, self.0);
            }
        }
    }
    let _told = Told(seed);
    run();
}

fn seeds(count: u64) -> Vec<u64> {
    match std::env::var("SODA_SEED") {
        Ok(seed) => vec![seed.parse().unwrap()],
        Err(_) => (1..=count).collect(),
    }
}

/// Edges of chunks and inline data everywhere.
fn tight(seed: u64) -> VolumeConfig {
    VolumeConfig {
        inode_cache: 64,
        dirent_cache: 64,
        chunk_cache: 1 << 20,
        extent_cache: 1 << 20,
        inline_max: 6000,
        inline_total: 12_000,
        chunk_len: if seed.is_multiple_of(4) { 8192 } else { 64 << 10 },
        pieces_max: 8,
        ..VolumeConfig::default()
    }
}

#[test]
fn agrees_with_the_model_in_memory() {
    for seed in seeds(30) {
        with_seed(seed, || {
            let config = if seed % 2 == 0 { tight(seed) } else { VolumeConfig::default() };
            World::new(Arc::new(MemoryMeta::new()), Arc::new(MemoryData::new()), config, seed).run(4, 250);
        });
    }
}

#[test]
fn agrees_with_the_model_on_disk() {
    for seed in seeds(3) {
        with_seed(seed, || {
            let directory = tempfile::tempdir().unwrap();
            let options = StoreOptions { segment_len: 1 << 20, ..StoreOptions::default() };
            let stores = DataDirectory::open(directory.path(), options).unwrap();
            World::new(stores.meta.clone(), stores.data.clone(), tight(seed), seed).run(4, 250);
        });
    }
}
