//! The reference model's operations on a real directory, and the comparison of what both answer.

use crate::mapping;
use rustix::fs::{
    self, AtFlags, CWD, FallocateFlags, FileType, Mode, OFlags, RenameFlags, SeekFrom, Timespec, XattrFlags,
};
use rustix::io::Errno as RawErrno;
use soda_model::{
    Access, Disposition, Fallocate, Follow, Handle, Op, OpenMode, Outcome, ReferenceFs, RenameMode, Seen,
    TreePath, Whence, XattrMode,
};
use soda_types::{Errno, FileKind, Ino, Name, Timestamp};
use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// One directory, reached through one mount or several. Operations by path take the root that is asked for; those on a
/// handle go where it was opened.
#[derive(Debug)]
pub struct RealTree {
    roots: Vec<PathBuf>,
    handles: BTreeMap<Handle, OwnedFd>,
}

impl RealTree {
    /// `roots`: empty directories that are one and the same. Sets the umask of the process to 0, because the model
    /// has none.
    pub fn new(roots: Vec<PathBuf>) -> RealTree {
        rustix::process::umask(Mode::empty());
        RealTree { roots, handles: BTreeMap::new() }
    }

    pub fn roots(&self) -> usize {
        self.roots.len()
    }

    /// Carries out one operation through mount number `root`.
    ///
    /// # Panics
    /// On an errno that `soda-types` has no name for.
    pub fn apply(&mut self, root: usize, op: &Op) -> Outcome {
        self.try_apply(root, op).unwrap_or_else(|raw| match Errno::from_raw(raw.raw_os_error()) {
            Some(errno) => Outcome::Failed(errno),
            None => panic!("{op:?}: unexpected {raw:?}"),
        })
    }

    /// As [`RealTree::apply`], where the daemon may be dead.
    ///
    /// # Errors
    /// What the system call failed with, whatever that is.
    pub fn try_apply(&mut self, root: usize, op: &Op) -> rustix::io::Result<Outcome> {
        let at = |path: &TreePath| self.roots[root].join(std::ffi::OsStr::from_bytes(&path.to_bytes()));
        let done = |()| Outcome::Done;
        match op {
            Op::Open { handle, path, access, disposition, mode, perm } => {
                let path = at(path);
                self.handles.remove(handle);
                let flags = open_flags(*access, *disposition, *mode);
                let file = fs::open(path, flags, Mode::from_raw_mode((*perm).into()))?;
                self.handles.insert(*handle, file);
                Ok(Outcome::Done)
            }
            Op::Close { handle } => match self.handles.remove(handle) {
                Some(_) => Ok(Outcome::Done),
                None => Err(RawErrno::BADF),
            },
            Op::Read { handle, offset, len } => read(self.opened(*handle)?, *offset, *len as usize),
            Op::Write { handle, offset, fill } => write(self.opened(*handle)?, *offset, &fill.bytes()),
            Op::Seek { handle, offset, whence } => seek(self.file(*handle)?, *offset, *whence),
            Op::MapLoad { handle, offset, len } => {
                mapping::load(self.file(*handle)?, *offset, *len as usize).map(Outcome::Bytes)
            }
            Op::MapStore { handle, offset, fill } => {
                mapping::store(self.file(*handle)?, *offset, &fill.bytes()).map(Outcome::Count)
            }
            Op::Ftruncate { handle, size } => fs::ftruncate(self.opened(*handle)?, *size).map(done),
            Op::Fallocate { handle, mode, offset, len } => {
                fs::fallocate(self.opened(*handle)?, fallocate_flags(*mode), *offset, *len).map(done)
            }
            Op::Fstat { handle } => fs::fstat(self.opened(*handle)?).map(|stat| Outcome::Stat(seen(&stat))),
            Op::Fsync { handle } => fs::fsync(self.opened(*handle)?).map(done),
            Op::Mkdir { path, perm } => fs::mkdir(at(path), Mode::from_raw_mode((*perm).into())).map(done),
            Op::Rmdir { path } => fs::rmdir(at(path)).map(done),
            Op::Unlink { path } => fs::unlink(at(path)).map(done),
            Op::Link { from, to } => fs::linkat(CWD, at(from), CWD, at(to), AtFlags::empty()).map(done),
            Op::Symlink { target, path } => fs::symlink(target.to_bytes(), at(path)).map(done),
            Op::Readlink { path } => {
                fs::readlink(at(path), Vec::new()).map(|target| Outcome::Bytes(target.into_bytes()))
            }
            Op::Rename { from, to, mode } => rename(&at(from), &at(to), rename_flags(*mode)).map(done),
            Op::Truncate { path, size } => truncate(&at(path), *size),
            Op::Chmod { path, perm } => fs::chmod(at(path), Mode::from_raw_mode((*perm).into())).map(done),
            Op::Utimens { path, mtime } => {
                let times = fs::Timestamps {
                    last_access: Timespec { tv_sec: 0, tv_nsec: fs::UTIME_OMIT },
                    last_modification: Timespec { tv_sec: mtime.secs(), tv_nsec: mtime.nanos().into() },
                };
                fs::utimensat(CWD, at(path), &times, AtFlags::empty()).map(done)
            }
            Op::Stat { path, follow: Follow::Target } => {
                fs::stat(at(path)).map(|stat| Outcome::Stat(seen(&stat)))
            }
            Op::Stat { path, follow: Follow::LinkItself } => {
                fs::lstat(at(path)).map(|stat| Outcome::Stat(seen(&stat)))
            }
            Op::Readdir { path } => readdir(&at(path)),
            Op::SetXattr { path, name, value, mode } => {
                let flags = match mode {
                    XattrMode::Set => XattrFlags::empty(),
                    XattrMode::Create => XattrFlags::CREATE,
                    XattrMode::Replace => XattrFlags::REPLACE,
                };
                fs::setxattr(at(path), name.as_bytes(), value, flags).map(done)
            }
            Op::GetXattr { path, name } => {
                let mut value = vec![0; soda_types::XATTR_VALUE_MAX];
                let len = fs::getxattr(at(path), name.as_bytes(), &mut value[..])?;
                value.truncate(len);
                Ok(Outcome::Bytes(value))
            }
            Op::ListXattr { path } => list_xattr(&at(path)),
            Op::RemoveXattr { path, name } => fs::removexattr(at(path), name.as_bytes()).map(done),
        }
    }

    fn opened(&self, handle: Handle) -> rustix::io::Result<&OwnedFd> {
        self.handles.get(&handle).ok_or(RawErrno::BADF)
    }

    /// What only files have; each file system has an errno of its own for directories.
    fn file(&self, handle: Handle) -> rustix::io::Result<&OwnedFd> {
        let opened = self.opened(handle)?;
        match FileType::from_raw_mode(fs::fstat(opened)?.st_mode) {
            FileType::Directory => Err(RawErrno::ISDIR),
            _ => Ok(opened),
        }
    }
}

/// Applies operations to the model and to a real tree and compares each answer.
#[derive(Debug)]
pub struct Comparison {
    pub model: ReferenceFs,
    pub real: RealTree,
    /// Which real inode number stands for which of the model.
    inos: BTreeMap<Ino, Ino>,
    applied: Vec<(usize, Op)>,
}

impl Comparison {
    pub fn new(real: RealTree) -> Comparison {
        Comparison { model: ReferenceFs::new(), real, inos: BTreeMap::new(), applied: Vec::new() }
    }

    /// One operation, through mount number `root`. `Err`: what differed, and the last operations before it.
    pub fn step(&mut self, root: usize, op: &Op) -> Result<(), String> {
        let expected = self.model.apply(op);
        let got = self.real.apply(root, op);
        self.applied.push((root, op.clone()));
        let agree = match op {
            Op::Seek { handle, offset, whence } => self.model.allows_seek(*handle, *offset, *whence, &got),
            _ => self.agree(&expected, &got),
        };
        if agree {
            return Ok(());
        }
        let mut story = String::new();
        let first = self.applied.len().saturating_sub(30);
        for (number, (root, op)) in self.applied.iter().enumerate().skip(first) {
            story.push_str(&format!("  {number:6} mount {root}: {op:?}\n"));
        }
        Err(format!("expected {expected:?}\n     got {got:?}\nafter\n{story}"))
    }

    /// Compares everything there is, through every mount.
    pub fn inspect(&mut self) -> Result<(), String> {
        for root in 0..self.real.roots() {
            for op in self.model.inspection() {
                self.step(root, &op)?;
            }
        }
        Ok(())
    }

    fn agree(&mut self, expected: &Outcome, got: &Outcome) -> bool {
        let (Outcome::Stat(expected), Outcome::Stat(got)) = (expected, got) else { return expected == got };
        let same_inode = match self.inos.get(&expected.ino) {
            Some(ino) => *ino == got.ino,
            None => {
                // A real number may have meant another file before, but only one that is gone.
                let model = &self.model;
                self.inos.retain(|ino, real| model.is_alive(*ino) || *real != got.ino);
                let is_free = self.inos.values().all(|real| *real != got.ino);
                self.inos.insert(expected.ino, got.ino);
                is_free
            }
        };
        let mut comparable = Seen { ino: expected.ino, ..*got };
        if expected.mtime.is_none() {
            comparable.mtime = None;
        }
        same_inode && comparable == *expected
    }
}

fn open_flags(access: Access, disposition: Disposition, mode: OpenMode) -> OFlags {
    let mut flags = OFlags::CLOEXEC
        | match access {
            Access::Read => OFlags::RDONLY,
            Access::Write => OFlags::WRONLY,
            Access::ReadWrite => OFlags::RDWR,
        };
    flags |= match disposition {
        Disposition::MustExist => OFlags::empty(),
        Disposition::Create => OFlags::CREATE,
        Disposition::CreateNew => OFlags::CREATE | OFlags::EXCL,
        Disposition::Truncate => OFlags::TRUNC,
        Disposition::CreateOrTruncate => OFlags::CREATE | OFlags::TRUNC,
    };
    if mode == OpenMode::Append {
        flags |= OFlags::APPEND;
    }
    flags
}

fn fallocate_flags(mode: Fallocate) -> FallocateFlags {
    match mode {
        Fallocate::Allocate => FallocateFlags::empty(),
        Fallocate::AllocateKeepSize => FallocateFlags::KEEP_SIZE,
        Fallocate::PunchHole => FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE,
        Fallocate::ZeroRange => FallocateFlags::ZERO_RANGE,
        Fallocate::ZeroRangeKeepSize => FallocateFlags::ZERO_RANGE | FallocateFlags::KEEP_SIZE,
    }
}

fn rename_flags(mode: RenameMode) -> RenameFlags {
    match mode {
        RenameMode::Replace => RenameFlags::empty(),
        RenameMode::NoReplace => RenameFlags::NOREPLACE,
        RenameMode::Exchange => RenameFlags::EXCHANGE,
    }
}

/// renameat2(2), once more after ESTALE.
///
/// Linux fails so by itself when one of the names turns out to be a directory that it still knows by another name, because
/// another machine moved it: it would have to move its dentry, for which it lacks a lock that the rename holds
/// (fs/dcache.c, `__d_unalias`). Once the name was looked up by anything else, it succeeds.
fn rename(from: &Path, to: &Path, flags: RenameFlags) -> rustix::io::Result<()> {
    match fs::renameat_with(CWD, from, CWD, to, flags) {
        Err(RawErrno::STALE) => {
            let _ = (fs::lstat(from), fs::lstat(to));
            fs::renameat_with(CWD, from, CWD, to, flags)
        }
        other => other,
    }
}

fn read(file: &OwnedFd, offset: u64, len: usize) -> rustix::io::Result<Outcome> {
    let mut bytes = vec![0; len];
    let mut filled = 0;
    // A read may be cut short anywhere but only the end of the file answers nothing.
    while filled < len {
        match rustix::io::pread(file, &mut bytes[filled..], offset + filled as u64)? {
            0 => break,
            count => filled += count,
        }
    }
    bytes.truncate(filled);
    Ok(Outcome::Bytes(bytes))
}

fn seek(file: &OwnedFd, offset: u64, whence: Whence) -> rustix::io::Result<Outcome> {
    let whence = match whence {
        Whence::Data => SeekFrom::Data(offset),
        Whence::Hole => SeekFrom::Hole(offset),
    };
    fs::seek(file, whence).map(Outcome::Offset)
}

fn write(file: &OwnedFd, offset: u64, bytes: &[u8]) -> rustix::io::Result<Outcome> {
    let mut written = 0;
    while written < bytes.len() {
        written += rustix::io::pwrite(file, &bytes[written..], offset + written as u64)?;
    }
    Ok(Outcome::Count(written as u64))
}

/// truncate(2), which rustix lacks: what the kernel does with it, opened for writing, is what it does itself.
fn truncate(path: &Path, size: u64) -> rustix::io::Result<Outcome> {
    let file = fs::open(path, OFlags::WRONLY | OFlags::CLOEXEC, Mode::empty())?;
    fs::ftruncate(file, size).map(|()| Outcome::Done)
}

fn readdir(path: &Path) -> rustix::io::Result<Outcome> {
    let dir = fs::open(path, OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?;
    let mut names = Vec::new();
    for entry in fs::Dir::read_from(dir)? {
        let entry = entry?;
        if let Ok(name) = Name::new(entry.file_name().to_bytes()) {
            names.push((name, kind(entry.file_type())));
        }
    }
    names.sort_by(|(left, _), (right, _)| left.cmp(right));
    Ok(Outcome::Names(names))
}

fn list_xattr(path: &Path) -> rustix::io::Result<Outcome> {
    let mut list = vec![0; soda_types::XATTR_LIST_MAX];
    let len = fs::listxattr(path, &mut list[..])?;
    let names = list[..len].split(|byte| *byte == 0).filter(|name| name.starts_with(b"user."));
    let mut names: Vec<_> = names.filter_map(|name| Name::new(name).ok()).map(|name| (name, None)).collect();
    names.sort_by(|(left, _), (right, _)| left.cmp(right));
    Ok(Outcome::Names(names))
}

fn seen(stat: &fs::Stat) -> Seen {
    let kind = kind(FileType::from_raw_mode(stat.st_mode)).unwrap_or(FileKind::File);
    let size = if kind == FileKind::Directory { 0 } else { stat.st_size as u64 };
    Seen {
        ino: Ino(stat.st_ino),
        kind,
        perm: (stat.st_mode & 0o7777) as u16,
        nlink: stat.st_nlink as u32,
        size,
        mtime: Some(Timestamp::new(stat.st_mtime, stat.st_mtime_nsec as u32)),
    }
}

fn kind(file_type: FileType) -> Option<FileKind> {
    Some(match file_type {
        FileType::RegularFile => FileKind::File,
        FileType::Directory => FileKind::Directory,
        FileType::Symlink => FileKind::Symlink,
        FileType::Fifo => FileKind::Fifo,
        FileType::Socket => FileKind::Socket,
        FileType::CharacterDevice => FileKind::CharDevice,
        FileType::BlockDevice => FileKind::BlockDevice,
        FileType::Unknown => return None,
    })
}
