//! Answers to the kernel. A [`Reply`] is answered once; one that is dropped says EIO, so that no process waits for ever.

use super::abi::Record;
use super::{Sink, Unique};
use rustix::io::Errno as Raw;
use soda_client::Due;
use soda_types::{Attr, Errno, FileKind, Timestamp};
use std::hash::{DefaultHasher, Hasher};
use std::io;
use std::sync::Arc;
use std::time::Duration;

const ATTR_LEN: usize = 88;
const ENTRY_LEN: usize = 40 + ATTR_LEN;
const DIRENT_LEN: usize = 24;

/// The duty to answer one request.
#[derive(Debug)]
pub struct Reply {
    unique: Unique,
    asked: Asked,
    due: Option<Due>,
    sink: Option<Arc<dyn Sink>>,
}

/// Who waits for an answer, and when they asked.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Asked {
    /// Thread. 0: not known.
    pub(crate) tid: u32,
    /// Of `Nodes::bar`, until then.
    pub(crate) bars: u64,
}

/// What the kernel is told of an inode, and for how long it may believe it.
#[derive(Clone, Copy, Debug)]
pub struct AttrOut<'a> {
    pub node: u64,
    pub attr: &'a Attr,
    pub valid: Duration,
}

impl AttrOut<'_> {
    /// Tells attributes apart, as far as the kernel is told of them. Whatever changes anything sets the time of change; without
    /// that how much is allocated may become known late.
    pub(crate) fn print(&self) -> u32 {
        let mut hasher = DefaultHasher::new();
        hasher.write(&attr_record(self.node, &Attr { allocated: 0, ..*self.attr }));
        hasher.finish() as u32
    }
}

/// A name's answer: the inode and how long the kernel may believe name and attributes.
#[derive(Clone, Copy, Debug)]
pub struct EntryOut<'a> {
    pub attr: AttrOut<'a>,
    pub generation: u32,
    pub valid: Duration,
}

#[derive(Clone, Copy, Debug)]
pub struct OpenOut {
    pub handle: u64,
    /// `FOPEN_` flags.
    pub flags: u32,
}

/// Fields of statfs(2), in units of `block` bytes.
#[derive(Clone, Copy, Debug)]
pub struct Statfs {
    pub block: u32,
    pub blocks: u64,
    pub free: u64,
    pub inodes: u64,
    pub free_inodes: u64,
}

impl Reply {
    pub(crate) fn new(unique: Unique, sink: Arc<dyn Sink>) -> Reply {
        Reply { unique, asked: Asked::default(), due: None, sink: Some(sink) }
    }

    /// The same, of somebody's request.
    pub(crate) fn asked(mut self, asked: Asked) -> Reply {
        self.asked = asked;
        self
    }

    pub(crate) fn who_asked(&self) -> Asked {
        self.asked
    }

    /// The same, which the kernel has to have by then ([`soda_client::Answering::due`]).
    pub fn by(mut self, due: Option<Due>) -> Reply {
        self.due = due;
        self
    }

    pub fn unique(&self) -> Unique {
        self.unique
    }

    /// A request that gets no answer (FORGET).
    pub fn none(mut self) {
        self.sink = None;
    }

    pub fn error(self, errno: Errno) {
        self.raw_error(errno.raw());
    }

    pub(crate) fn raw_error(mut self, errno: i32) {
        self.send(-errno, &[]);
    }

    pub fn done(mut self) {
        self.send(0, &[]);
    }

    pub fn data(mut self, parts: &[&[u8]]) -> Taken {
        self.send(0, parts)
    }

    /// `false`: the kernel did not take it (the caller is gone), so no look-up was counted.
    pub fn entry(mut self, entry: EntryOut<'_>) -> Taken {
        self.tells_of(entry.attr);
        self.send(0, &[&entry_record(entry)])
    }

    /// A name that is not there, which the kernel may believe for `valid`.
    pub fn negative(mut self, valid: Duration) {
        if valid.is_zero() {
            self.send(-Errno::NoEntry.raw(), &[]);
            return;
        }
        let record = Record::<ENTRY_LEN>::new().skip(16).u64(valid.as_secs()).u64(0);
        self.send(0, &[&record.u32(valid.subsec_nanos()).u32(0).skip(ATTR_LEN).done()]);
    }

    pub fn created(mut self, entry: EntryOut<'_>, open: OpenOut) -> Taken {
        self.tells_of(entry.attr);
        self.send(0, &[&entry_record(entry), &open_record(open)])
    }

    pub fn opened(mut self, open: OpenOut) -> Taken {
        self.send(0, &[&open_record(open)])
    }

    pub fn attr(mut self, out: AttrOut<'_>) -> Taken {
        let head = Record::<16>::new().u64(out.valid.as_secs()).u32(out.valid.subsec_nanos()).u32(0).done();
        self.send(0, &[&head, &attr_record(out.node, out.attr)])
    }

    /// Answer to STATX: as `attr`, with the time of birth.
    pub fn statx(mut self, out: AttrOut<'_>) -> Taken {
        self.send(0, &[&statx_record(out)])
    }

    pub fn written(mut self, bytes: u32) {
        self.send(0, &[&Record::<8>::new().u32(bytes).u32(0).done()]);
    }

    /// A single 64-bit number: an offset, a count.
    pub fn number(mut self, value: u64) {
        self.send(0, &[&value.to_ne_bytes()]);
    }

    /// What an ioctl(2) that went well brings; as long as the kernel asked for.
    pub fn ioctl(mut self, data: &[u8]) {
        self.send(0, &[&Record::<16>::new().skip(16).done(), data]);
    }

    /// The size an attribute's value (or the list of names) would have.
    pub fn xattr_size(self, size: u32) {
        self.written(size);
    }

    pub fn lock(mut self, start: u64, end: u64, kind: u32, pid: u32) {
        self.send(0, &[&Record::<24>::new().u64(start).u64(end).u32(kind).u32(pid).done()]);
    }

    pub fn statfs(mut self, s: Statfs) {
        let record =
            Record::<80>::new().u64(s.blocks).u64(s.free).u64(s.free).u64(s.inodes).u64(s.free_inodes);
        self.send(0, &[&record.u32(s.block).u32(soda_types::NAME_MAX as u32).u32(s.block).skip(28).done()]);
    }

    fn tells_of(&self, out: AttrOut<'_>) {
        if let (Some(sink), FileKind::File) = (&self.sink, out.attr.kind) {
            sink.told_of_file(out.node);
        }
    }

    fn send(&mut self, error: i32, parts: &[&[u8]]) -> Taken {
        let Some(sink) = self.sink.take() else { return Taken::No };
        match sink.send_by(self.unique, error, parts, self.due) {
            Ok(()) => Taken::Yes,
            // The process was killed meanwhile; unmounted. Both are nobody's fault.
            Err(error) if matches!(Raw::from_io_error(&error), Some(Raw::NOENT | Raw::NODEV)) => Taken::No,
            Err(error) => {
                report_refused_reply(self.unique, &error);
                // A refused answer leaves the process waiting: say so in a form that cannot be refused.
                let _ = sink.send(self.unique, -Errno::Io.raw(), &[]);
                Taken::No
            }
        }
    }
}

impl Drop for Reply {
    fn drop(&mut self) {
        self.send(-Errno::Io.raw(), &[]);
    }
}

/// Whether the kernel accepted an answer (and counts the look-up in it).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Taken {
    Yes,
    No,
}

#[cold]
fn report_refused_reply(unique: Unique, error: &io::Error) {
    tracing::error!(unique, %error, "the kernel refused an answer");
}

/// Entries of a directory on their way to the kernel.
#[derive(Debug)]
pub struct DirBuffer {
    bytes: Vec<u8>,
    limit: usize,
}

/// Whether an entry still fitted.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Fit {
    Yes,
    Full,
}

impl DirBuffer {
    pub fn new(limit: u32) -> DirBuffer {
        DirBuffer { bytes: Vec::with_capacity((limit as usize).min(1 << 16)), limit: limit as usize }
    }

    pub fn as_bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// `next`: the offset to go on from after this entry.
    pub fn push(&mut self, node: u64, next: u64, kind: FileKind, name: &[u8]) -> Fit {
        self.push_record(&[&dirent_record(node, next, kind, name), name])
    }

    pub fn has_room_for_plus(&self, name: &[u8]) -> bool {
        let len = (ENTRY_LEN + DIRENT_LEN + name.len()).next_multiple_of(8);
        self.bytes.len() + len <= self.limit
    }

    pub fn push_plus(&mut self, entry: EntryOut<'_>, next: u64, name: &[u8]) -> Fit {
        let kind = entry.attr.attr.kind;
        let dirent = dirent_record(entry.attr.node, next, kind, name);
        self.push_record(&[&entry_record(entry), &dirent, name])
    }

    /// An entry of READDIRPLUS which leaves the kernel without knowledge of the inode.
    pub fn push_plus_unknown(&mut self, node: u64, next: u64, kind: FileKind, name: &[u8]) -> Fit {
        self.push_record(&[&[0; ENTRY_LEN], &dirent_record(node, next, kind, name), name])
    }

    fn push_record(&mut self, parts: &[&[u8]]) -> Fit {
        let len = parts.iter().map(|part| part.len()).sum::<usize>();
        let end = self.bytes.len() + len.next_multiple_of(8);
        if end > self.limit {
            return Fit::Full;
        }
        parts.iter().for_each(|part| self.bytes.extend_from_slice(part));
        self.bytes.resize(end, 0);
        Fit::Yes
    }
}

fn mode_of(attr: &Attr) -> u32 {
    type_bits(attr.kind) | u32::from(attr.perm)
}

fn type_bits(kind: FileKind) -> u32 {
    match kind {
        FileKind::Fifo => 0o010000,
        FileKind::CharDevice => 0o020000,
        FileKind::Directory => 0o040000,
        FileKind::BlockDevice => 0o060000,
        FileKind::File => 0o100000,
        FileKind::Symlink => 0o120000,
        FileKind::Socket => 0o140000,
    }
}

/// What `mode` of a MKNOD names; a directory has its own call.
pub(crate) fn kind_of_mode(mode: u32) -> Option<FileKind> {
    Some(match mode & 0o170000 {
        0o010000 => FileKind::Fifo,
        0o020000 => FileKind::CharDevice,
        0o060000 => FileKind::BlockDevice,
        0 | 0o100000 => FileKind::File,
        0o140000 => FileKind::Socket,
        _ => return None,
    })
}

/// Preferred unit of reads and writes, bytes.
const BLOCK_SIZE: u32 = 4096;

fn attr_record(node: u64, attr: &Attr) -> [u8; ATTR_LEN] {
    Record::<ATTR_LEN>::new()
        .u64(node)
        .u64(attr.size)
        .u64(attr.allocated.div_ceil(512))
        .u64(attr.atime.secs() as u64)
        .u64(attr.mtime.secs() as u64)
        .u64(attr.ctime.secs() as u64)
        .u32(attr.atime.nanos())
        .u32(attr.mtime.nanos())
        .u32(attr.ctime.nanos())
        .u32(mode_of(attr))
        .u32(attr.nlink)
        .u32(attr.uid)
        .u32(attr.gid)
        .u32(attr.rdev)
        .u32(BLOCK_SIZE)
        .u32(0)
        .done()
}

fn entry_record(entry: EntryOut<'_>) -> [u8; ENTRY_LEN] {
    Record::<ENTRY_LEN>::new()
        .u64(entry.attr.node)
        .u64(u64::from(entry.generation))
        .u64(entry.valid.as_secs())
        .u64(entry.attr.valid.as_secs())
        .u32(entry.valid.subsec_nanos())
        .u32(entry.attr.valid.subsec_nanos())
        .raw(&attr_record(entry.attr.node, entry.attr.attr))
        .done()
}

fn open_record(open: OpenOut) -> [u8; 16] {
    Record::<16>::new().u64(open.handle).u32(open.flags).u32(0).done()
}

fn dirent_record(node: u64, next: u64, kind: FileKind, name: &[u8]) -> [u8; DIRENT_LEN] {
    Record::<DIRENT_LEN>::new().u64(node).u64(next).u32(name.len() as u32).u32(type_bits(kind) >> 12).done()
}

/// Type, mode, nlink, uid, gid, times, ino, size, blocks, and btime: `STATX_BASIC_STATS | STATX_BTIME`.
const STATX_MASK: u32 = 0xfff;

fn statx_record(out: AttrOut<'_>) -> [u8; 288] {
    let attr = out.attr;
    let time = |record: Record<288>, t: Timestamp| record.u64(t.secs() as u64).u32(t.nanos()).u32(0);
    let mut record = Record::<288>::new()
        .u64(out.valid.as_secs())
        .u32(out.valid.subsec_nanos())
        .u32(0)
        .skip(16)
        .u32(STATX_MASK)
        .u32(BLOCK_SIZE)
        .u64(0)
        .u32(attr.nlink)
        .u32(attr.uid)
        .u32(attr.gid)
        .u16(mode_of(attr) as u16)
        .u16(0)
        .u64(out.node)
        .u64(attr.size)
        .u64(attr.allocated.div_ceil(512))
        .u64(0);
    for t in [attr.atime, attr.btime, attr.ctime, attr.mtime] {
        record = time(record, t);
    }
    // Device numbers as new_encode_dev packs them.
    let (major, minor) = ((attr.rdev >> 8) & 0xfff, (attr.rdev & 0xff) | ((attr.rdev >> 12) & 0xfff00));
    record.u32(major).u32(minor).u32(0).u32(0).skip(112).done()
}

/// Of a regular file.
#[cfg(test)]
pub(crate) fn some_attr() -> Attr {
    let t = Timestamp::new(-5, 7);
    Attr {
        ino: soda_types::Ino(9),
        kind: FileKind::File,
        perm: 0o644,
        nlink: 1,
        uid: 1,
        gid: 2,
        rdev: 0,
        size: 513,
        allocated: 513,
        atime: t,
        mtime: t,
        ctime: t,
        btime: t,
        version: soda_types::Version(1),
        data_version: soda_types::Version(1),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Mutex;

    #[derive(Debug, Default)]
    struct Seen(Mutex<Vec<(i32, Vec<u8>)>>);

    impl Sink for Seen {
        fn send(&self, _: Unique, error: i32, parts: &[&[u8]]) -> io::Result<()> {
            self.0.lock().unwrap().push((error, parts.concat()));
            Ok(())
        }
    }

    #[test]
    fn records_have_the_kernels_lengths() {
        let seen = Arc::new(Seen::default());
        let reply = || Reply::new(1, seen.clone());
        let attr = some_attr();
        let out = AttrOut { node: 9, attr: &attr, valid: Duration::from_millis(1500) };
        let entry = EntryOut { attr: out, generation: 0, valid: Duration::from_secs(2) };
        let _ = reply().entry(entry);
        reply().negative(Duration::from_secs(1));
        let _ = reply().created(entry, OpenOut { handle: 1, flags: 0 });
        let _ = reply().attr(out);
        let _ = reply().statx(out);
        reply().statfs(Statfs { block: 4096, blocks: 1, free: 1, inodes: 1, free_inodes: 1 });
        drop(reply());
        let lengths: Vec<_> = seen.0.lock().unwrap().iter().map(|(e, b)| (*e, b.len())).collect();
        assert_eq!(
            lengths,
            [(0, 128), (0, 128), (0, 144), (0, 104), (0, 288), (0, 80), (-Raw::IO.raw_os_error(), 0)]
        );
    }

    #[test]
    fn a_full_directory_buffer_says_so() {
        let mut buffer = DirBuffer::new(64);
        assert_eq!(buffer.push(1, 1, FileKind::File, b"123456789"), Fit::Yes);
        assert_eq!(buffer.as_bytes().len(), 40);
        assert_eq!(buffer.push(1, 2, FileKind::File, b"1"), Fit::Full);
        assert!(!buffer.has_room_for_plus(b"a"));
    }
}
