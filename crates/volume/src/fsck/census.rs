//! Everything a volume has, read once.

use super::{BadChunk, DataCheck, FsckProgress, Phase, Problem, Report, Verified};
use crate::key::{self, KeyRange};
use crate::record::{self, Dirent, ExtentBody, Inode, Reclaim, RecordError, RedoRecord, Released};
use crate::view;
use crate::volume::Volume;
use bytes::Bytes;
use serde::de::DeserializeOwned;
use soda_storage::{ChunkRef, MetaRead, SegmentId, StorageError, Table};
use soda_types::{FileKind, FsResult, Ino, Name};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::ops::{ControlFlow, Range};

/// Records between two reports of progress.
const PROGRESS_STEP: u64 = 4096;

#[derive(Debug, Default)]
pub(super) struct Census {
    pub(super) inodes: BTreeMap<Ino, Inode>,
    /// Names in the order of their directories.
    pub(super) names: Vec<(Ino, Name, Dirent)>,
    pub(super) orphans: BTreeSet<Ino>,
    pub(super) streams: BTreeMap<u64, Stream>,
    pub(super) xattrs: BTreeMap<Ino, Vec<Vec<u8>>>,
    pub(super) reclaims: BTreeMap<u64, Reclaim>,
    pub(super) released: Vec<ChunkRef>,
    /// Whose data the journal has: an opening puts it into its place.
    redo: BTreeSet<ChunkRef>,
    /// Of all volumes: chunks are shared ground.
    pub(super) in_use: BTreeSet<ChunkRef>,
    pub(super) stored: BTreeMap<SegmentId, Vec<Range<u64>>>,
    /// What could not be read at all.
    pub(super) unreadable: Vec<Problem>,
    extents: u64,
}

#[derive(Debug, Default)]
pub(super) struct Stream {
    pub(super) extents: Vec<ExtentSummary>,
}

impl Stream {
    /// Sums of its extents, bytes: all, and those that are inline.
    pub(super) fn allocated(&self) -> (u64, u64) {
        let len = |extent: &ExtentSummary| extent.range.end - extent.range.start;
        (self.extents.iter().map(len).sum(), self.extents.iter().map(|extent| extent.inline).sum())
    }
}

#[derive(Clone, Debug)]
pub(super) struct ExtentSummary {
    pub(super) range: Range<u64>,
    pub(super) inline: u64,
    pub(super) chunk: Option<UsedChunk>,
}

#[derive(Clone, Debug)]
pub(super) struct UsedChunk {
    pub(super) chunk: ChunkRef,
    /// Where in the chunk the extent begins.
    pub(super) skip: u32,
    pub(super) bad: Option<BadChunk>,
}

impl Census {
    pub(super) fn take(
        volume: &Volume,
        data: DataCheck,
        verified: &mut Verified,
        progress: &mut dyn FnMut(FsckProgress),
    ) -> FsResult<Census> {
        let mut census = Census::default();
        let mut taker = Taker { volume, meta: &*volume.meta, progress };
        taker.inodes(&mut census)?;
        taker.names(&mut census)?;
        taker.extents(&mut census)?;
        taker.others(&mut census)?;
        taker.chunks(&mut census, data, verified)?;
        taker.space(&mut census)?;
        Ok(census)
    }

    pub(super) fn totals(&self, report: &mut Report) {
        report.inodes = self.inodes.len() as u64;
        report.names = self.names.len() as u64;
        report.extents = self.extents;
        report.chunks = self.in_use.len() as u64;
        report.reclaim_left = self.reclaims.len() as u64;
    }

    /// The inode whose data a stream is.
    pub(super) fn owners(&self) -> HashMap<u64, Ino> {
        let files = self.inodes.iter().filter(|(_, inode)| inode.kind == FileKind::File);
        files.map(|(ino, inode)| (inode.stream, *ino)).collect()
    }
}

/// Enters a record into the census.
type Enter<'a, T> = &'a mut dyn FnMut(&mut Census, &[u8], T) -> Result<(), RecordError>;

struct Taker<'a> {
    volume: &'a Volume,
    meta: &'a dyn MetaRead,
    progress: &'a mut dyn FnMut(FsckProgress),
}

impl Taker<'_> {
    /// Visits the records of a table that decode; notes the others.
    fn each<T: DeserializeOwned>(
        &mut self,
        census: &mut Census,
        phase: Phase,
        table: Table,
        range: KeyRange,
        visit: Enter<'_, T>,
    ) -> FsResult<()> {
        let mut done = 0;
        let progress = &mut self.progress;
        self.meta.scan(table, &range.start, &range.end, &mut |key, value: Bytes| {
            if u64::is_multiple_of(done, PROGRESS_STEP) {
                progress(FsckProgress { phase, done, total: None });
            }
            done += 1;
            let result = record::decode::<T>(&value).and_then(|record| visit(census, key, record));
            if let Err(error) = result {
                census.unreadable.push(Problem::Unreadable { table, key: key.to_vec(), error });
            }
            ControlFlow::Continue(())
        })?;
        Ok(())
    }

    fn all(&self) -> KeyRange {
        key::volume_range(self.volume.id)
    }

    fn inodes(&mut self, census: &mut Census) -> FsResult<()> {
        self.each(census, Phase::Inodes, Table::Inode, self.all(), &mut |census, key, inode: Inode| {
            let ino = exact_number(key)?;
            census.inodes.insert(Ino(ino), inode);
            Ok(())
        })
    }

    fn names(&mut self, census: &mut Census) -> FsResult<()> {
        self.each(census, Phase::Names, Table::Dirent, self.all(), &mut |census, key, dirent: Dirent| {
            let parent = key::number(key).ok_or(RecordError::Malformed)?;
            let name = Name::new(key::rest(key)).map_err(|_| RecordError::Malformed)?;
            census.names.push((Ino(parent), name, dirent));
            Ok(())
        })
    }

    fn extents(&mut self, census: &mut Census) -> FsResult<()> {
        let range = self.all();
        let mut done = 0;
        let progress = &mut self.progress;
        self.meta.scan(Table::Extent, &range.start, &range.end, &mut |key, value| {
            if u64::is_multiple_of(done, PROGRESS_STEP) {
                progress(FsckProgress { phase: Phase::Extents, done, total: None });
            }
            done += 1;
            let placed = view::placed(key, &value);
            match (key::number(key), placed) {
                (Some(stream), Ok(placed)) => {
                    let chunk = match &placed.extent.body {
                        ExtentBody::Chunk { chunk, skip } => {
                            Some(UsedChunk { chunk: *chunk, skip: *skip, bad: None })
                        }
                        ExtentBody::Inline(_) => None,
                    };
                    let inline = placed.extent.inline_len();
                    census.in_use.extend(chunk.iter().map(|used| used.chunk));
                    let summary = ExtentSummary { range: placed.start..placed.end, inline, chunk };
                    census.streams.entry(stream).or_default().extents.push(summary);
                }
                (_, placed) => {
                    let error = placed.err().unwrap_or(RecordError::Malformed);
                    census.unreadable.push(Problem::Unreadable {
                        table: Table::Extent,
                        key: key.to_vec(),
                        error,
                    });
                }
            }
            ControlFlow::Continue(())
        })?;
        census.extents = done;
        Ok(())
    }

    fn others(&mut self, census: &mut Census) -> FsResult<()> {
        let phase = Phase::Attributes;
        self.each(census, phase, Table::Xattr, self.all(), &mut |census, key, _: record::Xattr| {
            let ino = key::number(key).ok_or(RecordError::Malformed)?;
            census.xattrs.entry(Ino(ino)).or_default().push(key.to_vec());
            Ok(())
        })?;
        self.each(census, phase, Table::Orphan, self.all(), &mut |census, key, (): ()| {
            census.orphans.insert(Ino(exact_number(key)?));
            Ok(())
        })?;
        self.each(census, phase, Table::Reclaim, self.all(), &mut |census, key, reclaim: Reclaim| {
            census.reclaims.insert(exact_number(key)?, reclaim);
            Ok(())
        })?;
        let everything = KeyRange { start: Vec::new(), end: key::end_of_table() };
        self.each(census, phase, Table::Release, everything, &mut |census, key, released: Released| {
            if key::chunk(&released.chunk) != key {
                return Err(RecordError::Malformed);
            }
            census.released.push(released.chunk);
            Ok(())
        })?;
        let everything = KeyRange { start: Vec::new(), end: key::end_of_table() };
        self.each(census, phase, Table::Redo, everything, &mut |census, key, redo: RedoRecord| {
            census.redo.insert(redo.check(key)?.chunk);
            Ok(())
        })
    }

    /// Looks at the chunks in use, in the order of the medium.
    fn chunks(&mut self, census: &mut Census, data: DataCheck, verified: &mut Verified) -> FsResult<()> {
        let total = census.in_use.iter().map(|chunk| u64::from(chunk.len)).sum();
        let lengths: HashMap<SegmentId, u64> =
            self.volume.data.segments()?.into_iter().map(|segment| (segment.id, segment.len)).collect();
        let mut done = 0;
        for chunk in &census.in_use {
            (self.progress)(FsckProgress { phase: Phase::Chunks, done, total: Some(total) });
            done += u64::from(chunk.len);
            if census.redo.contains(chunk) {
                continue;
            }
            verified.entry(*chunk).or_insert_with(|| {
                let end = chunk.offset.saturating_add(u64::from(chunk.len));
                if lengths.get(&chunk.segment).is_none_or(|len| end > *len) {
                    return Some(BadChunk::Missing);
                }
                match data {
                    DataCheck::Existence => None,
                    DataCheck::CheckSums => verify(self.volume, chunk),
                }
            });
        }
        for extent in census.streams.values_mut().flat_map(|stream| &mut stream.extents) {
            if let Some(used) = &mut extent.chunk {
                used.bad = verified.get(&used.chunk).copied().flatten();
            }
        }
        Ok(())
    }

    fn space(&mut self, census: &mut Census) -> FsResult<()> {
        let segments = self.volume.data.segments()?;
        let total = Some(segments.len() as u64);
        for (done, segment) in segments.into_iter().enumerate() {
            (self.progress)(FsckProgress { phase: Phase::Space, done: done as u64, total });
            census.stored.insert(segment.id, self.volume.data.stored_ranges(segment.id)?);
        }
        Ok(())
    }
}

fn verify(volume: &Volume, chunk: &ChunkRef) -> Option<BadChunk> {
    match volume.data.read(chunk) {
        Ok(_) => None,
        Err(StorageError::NoSegment { .. }) => Some(BadChunk::Missing),
        Err(StorageError::Corrupt { .. }) => Some(BadChunk::CheckSum),
        Err(error) => {
            tracing::warn!(%error, "a chunk cannot be read");
            Some(BadChunk::Unreadable)
        }
    }
}

/// The number of a key that has nothing after it.
fn exact_number(key: &[u8]) -> Result<u64, RecordError> {
    key::number(key).filter(|_| key::rest(key).is_empty()).ok_or(RecordError::Malformed)
}
