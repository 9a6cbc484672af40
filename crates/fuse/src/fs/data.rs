//! File data.

use super::Inner;
use crate::handles::{Durability, FileHandle, Path, Placement};
use crate::nodes::Fill;
use crate::notify::Done;
use crate::wire::{Reply, abi};
use bytes::Bytes;
use soda_client::{Allocate, KillPriv, OpenFile, Whence, WriteAt};
use soda_types::{Attr, Errno, Fid, FsResult, Version};
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

/// How long the kernel may keep pages that no lease covers: enough for the process that asked to use them.
const UNCOVERED: Duration = Duration::from_millis(1);

/// So long an answer waits for pages to be dropped of which its caller may hold one locked.
const LOCKED: Duration = Duration::from_millis(5);

/// So often what was read is read again because the kernel knows of something newer. Each time somebody else has made
/// progress; in the end the pages are handed over, and taken back soon.
const READ_TRIES: u32 = 16;

const SEEK_DATA: u32 = 3;
const SEEK_HOLE: u32 = 4;

const FALLOC_KEEP_SIZE: u32 = 0x01;
const FALLOC_PUNCH_HOLE: u32 = 0x02;
const FALLOC_ZERO_RANGE: u32 = 0x10;

/// Where the bytes of a read end up.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum ReadGoal {
    /// The caller's buffer.
    Caller,
    /// The kernel's pages.
    Pages,
}

/// Whether a lease covers pages that the kernel is given, so that a recall will take them back.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Coverage {
    Lease,
    Missing,
    /// They go to the caller, not into pages.
    NotNeeded,
}

/// Where the bytes of a write come from.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum WriteOrigin {
    Caller,
    /// Pages of a shared mapping: what is in them is newer than what is anywhere else.
    Pages,
}

#[derive(Debug)]
pub(super) struct WriteRequest {
    pub(super) offset: u64,
    pub(super) data: Bytes,
    pub(super) origin: WriteOrigin,
    pub(super) placement: Placement,
    pub(super) kill_suid_sgid: bool,
    pub(super) durability: Durability,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct CopyRequest {
    pub(super) offset: u64,
    pub(super) to_offset: u64,
    pub(super) len: u64,
    pub(super) kill: KillPriv,
    /// The answer is a 64-bit number.
    pub(super) wide: bool,
}

/// What the short answer of a copy can count, in whole pages.
const MAX_SHORT_COPY: u64 = 0xffff_f000;

/// What a change of contents takes away for which the kernel does not say it: it leaves set-user-id and set-group-id to the file
/// system (FUSE_HANDLE_KILLPRIV_V2), but no flag in these requests tells whether the caller has CAP_FSETID.
pub(super) fn privileges_of(uid: u32) -> KillPriv {
    KillPriv::when(uid != 0)
}

fn allocate_how(mode: u32) -> Option<Allocate> {
    const PUNCH: u32 = FALLOC_PUNCH_HOLE | FALLOC_KEEP_SIZE;
    const ZERO_KEEP: u32 = FALLOC_ZERO_RANGE | FALLOC_KEEP_SIZE;
    Some(match mode {
        0 => Allocate::Extend,
        FALLOC_KEEP_SIZE => Allocate::KeepSize,
        PUNCH => Allocate::PunchHole,
        FALLOC_ZERO_RANGE => Allocate::ZeroRange,
        ZERO_KEEP => Allocate::ZeroRangeKeepSize,
        _ => return None,
    })
}

impl Inner {
    pub(super) async fn read(
        self: Arc<Self>,
        file: Arc<FileHandle>,
        offset: u64,
        len: u32,
        goal: ReadGoal,
        reply: Reply,
    ) {
        let mut tries = 0;
        let (data, coverage) = loop {
            let data = match self.client.read(&file.open, offset, len).await {
                Ok(data) => data,
                Err(error) => return self.fail("read", &error, reply),
            };
            if goal == ReadGoal::Caller {
                break (data, Coverage::NotNeeded);
            }
            tries += 1;
            match self.fill_pages(file.fid(), data.version()) {
                Some(coverage) => break (data, coverage),
                None if tries < READ_TRIES => {}
                None => {
                    self.nodes.pages_filled(file.fid(), data.version());
                    break (data, Coverage::Missing);
                }
            }
        };
        if goal == ReadGoal::Pages {
            let read = data.len() as u64;
            if read < u64::from(len) {
                self.nodes.size_may_be(file.fid(), offset + read);
            }
            self.last_bytes.correct(file.fid(), offset..offset + u64::from(len), data.chunks());
        }
        let chunks: Vec<&[u8]> = data.chunks().iter().map(|chunk| &chunk[..]).collect();
        reply.data(&chunks);
        if coverage == Coverage::Missing {
            self.drop_soon(file.fid(), offset..offset + u64::from(len));
        }
    }

    /// To be called before pages with data of `version` are handed to the kernel. `None`: there is something newer.
    ///
    /// The pages are in the kernel's cache already, locked until they are filled. So whoever makes them outdated from
    /// here on finds them there, and waits for them to drop them.
    fn fill_pages(&self, fid: Fid, version: Version) -> Option<Coverage> {
        let known = self.known_version(fid);
        if known.is_some_and(|known| known > version)
            || self.nodes.fill_pages(fid, version) == Fill::Overtaken
        {
            return None;
        }
        Some(if known == Some(version) { Coverage::Lease } else { Coverage::Missing })
    }

    /// No recall will come for these pages, and a mapping asks no questions: they must not stay.
    fn drop_soon(&self, fid: Fid, range: Range<u64>) {
        let notifier = self.notifier.clone();
        tokio::spawn(async move {
            tokio::time::sleep(UNCOVERED).await;
            let _ = notifier.data_elsewhere(fid, range).await;
        });
    }

    /// The version of the data if a lease covers it, without asking anyone.
    fn known_version(&self, fid: Fid) -> Option<Version> {
        let attr = self.client.cached_attr(fid)?;
        (!self.client.answer().remaining(attr.valid).is_zero()).then_some(attr.value.data_version)
    }

    pub(super) async fn write(self: Arc<Self>, file: Arc<FileHandle>, write: WriteRequest, reply: Reply) {
        let at = match (write.origin, write.placement, file.path) {
            (WriteOrigin::Pages, ..) => WriteAt::Pages(write.offset),
            (WriteOrigin::Caller, Placement::AtEnd, _) => WriteAt::End,
            // On its way through the pages it may keep them locked, too.
            (WriteOrigin::Caller, Placement::AtOffset, Path::Cached) => WriteAt::Pages(write.offset),
            (WriteOrigin::Caller, Placement::AtOffset, Path::Direct) => WriteAt::Offset(write.offset),
        };
        let kill = KillPriv::when(write.kill_suid_sgid);
        match self.client.write(&file.open, at, write.data, kill).await {
            Ok(written) => {
                let end = written.offset + written.len;
                let (attr, range) = (&written.attr.value, written.offset..end);
                match (write.origin, file.path) {
                    (WriteOrigin::Caller, Path::Direct) => self.data_changed(file.fid(), range, attr).await,
                    // The kernel holds these very pages locked until it has the answer.
                    _ => {
                        self.attributes_changed(file.fid());
                        self.nodes.pages_changed(file.fid(), attr.data_version);
                        self.nodes.pages_filled(file.fid(), attr.data_version);
                        if written.offset != write.offset {
                            self.drop_misplaced(file.fid(), attr).await;
                        }
                    }
                }
                if let Err(error) = self.make_durable(&file.open, write.durability).await {
                    return self.fail("write", &error, reply);
                }
                // The kernel never sends more than a megabyte at a time.
                reply.written(u32::try_from(written.len).unwrap_or(u32::MAX));
            }
            Err(error) => self.fail("write", &error, reply),
        }
    }

    /// The kernel has put an append into its pages where it took the end of the file to be, and that was not the end.
    ///
    /// Of these pages the caller may hold one locked until it has the answer. That one is not taken for filled after it, and
    /// goes when it is unlocked.
    async fn drop_misplaced(&self, fid: Fid, attr: &Attr) {
        let _ = tokio::time::timeout(LOCKED, self.data_changed(fid, 0..u64::MAX, attr)).await;
    }

    /// The kernel leaves it to the file system of a direct write to sync.
    async fn make_durable(&self, file: &OpenFile, durability: Durability) -> FsResult<()> {
        match durability {
            Durability::Later => Ok(()),
            Durability::OnReturn => self.client.fsync_file(file).await,
        }
    }

    /// What an own change of data made wrong in the kernel: the pages of the range, and the attributes.
    pub(super) async fn data_changed(&self, fid: Fid, range: Range<u64>, attr: &Attr) {
        self.nodes.announce(fid, attr.data_version, attr.size);
        if self.nodes.may_have_pages(fid) {
            if self.notifier.data_elsewhere(fid, range).await == Done::Yes {
                self.nodes.pages_changed(fid, attr.data_version);
            }
        } else {
            self.attributes_changed(fid);
        }
    }

    pub(super) async fn fallocate(
        self: Arc<Self>,
        file: Arc<FileHandle>,
        Range { start, end }: Range<u64>,
        mode: u32,
        kill: KillPriv,
        reply: Reply,
    ) {
        let Some(how) = allocate_how(mode) else { return reply.error(Errno::NotSupported) };
        let (offset, len) = (start, end - start);
        let result = self.client.fallocate(&file.open, offset, len, how, kill).await;
        let result = match result {
            Ok(()) => self.range_changed(&file, offset, len).await,
            Err(error) => Err(error),
        };
        self.finish("fallocate", result, reply);
    }

    async fn range_changed(&self, file: &FileHandle, offset: u64, len: u64) -> FsResult<()> {
        let attr = self.client.getattr(file.fid()).await?;
        self.data_changed(file.fid(), offset..offset.saturating_add(len), &attr.value).await;
        self.make_durable(&file.open, file.durability).await
    }

    pub(super) async fn copy_range(
        self: Arc<Self>,
        from: Arc<FileHandle>,
        to: Arc<FileHandle>,
        copy: CopyRequest,
        reply: Reply,
    ) {
        let len = if copy.wide { copy.len } else { copy.len.min(MAX_SHORT_COPY) };
        let (source, target) = ((&*from.open, copy.offset), (&*to.open, copy.to_offset));
        let result = self.client.copy_range(source, target, len, copy.kill).await;
        let copied = match result {
            Ok(copied) => copied,
            Err(error) => return self.fail("copy_file_range", &error, reply),
        };
        match self.range_changed(&to, copy.to_offset, copied).await {
            Ok(()) if copy.wide => reply.number(copied),
            Ok(()) => reply.written(copied as u32),
            Err(error) => self.fail("copy_file_range", &error, reply),
        }
    }

    pub(super) async fn seek(self: Arc<Self>, file: Arc<FileHandle>, offset: u64, whence: u32, reply: Reply) {
        let whence = match whence {
            SEEK_DATA => Whence::Data,
            SEEK_HOLE => Whence::Hole,
            _ => return reply.error(Errno::Invalid),
        };
        if offset > abi::lock::END {
            return reply.error(Errno::NoDevice);
        }
        match self.client.seek(&file.open, offset, whence).await {
            Ok(offset) => reply.number(offset),
            Err(error) => self.fail("lseek", &error, reply),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn modes_of_fallocate_that_are_not_supported_say_so() {
        assert_eq!(allocate_how(0), Some(Allocate::Extend));
        assert_eq!(allocate_how(FALLOC_PUNCH_HOLE | FALLOC_KEEP_SIZE), Some(Allocate::PunchHole));
        assert_eq!(allocate_how(FALLOC_PUNCH_HOLE), None);
        assert_eq!(allocate_how(0x08), None); // collapse
    }
}
