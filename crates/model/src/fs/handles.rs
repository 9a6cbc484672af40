//! Open files.

use super::reference::{Body, OpenFile, ReferenceFs};
use super::{
    Access, Contents, Disposition, Fallocate, Fill, Follow, Handle, OpenMode, Outcome, TreePath, Whence,
};
use soda_types::Errno;

impl ReferenceFs {
    /// open(2). A handle that is in use is closed first, whatever comes of the opening.
    pub(super) fn open(
        &mut self,
        handle: Handle,
        path: &TreePath,
        access: Access,
        disposition: Disposition,
        mode: OpenMode,
        perm: u16,
    ) -> Result<Outcome, Errno> {
        if self.handles.contains_key(&handle) {
            self.close(handle)?;
        }
        let follow = match disposition {
            Disposition::CreateNew => Follow::LinkItself,
            _ => Follow::Target,
        };
        let place = self.locate(path, follow)?;
        let ino = match (place.ino, disposition) {
            (Some(_), Disposition::CreateNew) => return Err(Errno::Exists),
            (Some(ino), _) => {
                if self.inodes[&ino].is_directory()
                    && (access != Access::Read || disposition != Disposition::MustExist)
                {
                    return Err(Errno::IsDirectory);
                }
                ino
            }
            (None, Disposition::MustExist | Disposition::Truncate) => return Err(Errno::NoEntry),
            (None, _) => {
                let ino = self.new_inode(Body::File(Contents::default()), perm);
                self.add_name(place.dir, place.name, ino);
                ino
            }
        };
        if matches!(disposition, Disposition::Truncate | Disposition::CreateOrTruncate) {
            self.resize(ino, 0)?;
        }
        self.handles.insert(handle, OpenFile { ino, access, mode });
        Ok(Outcome::Done)
    }

    pub(super) fn close(&mut self, handle: Handle) -> Result<Outcome, Errno> {
        let file = self.handles.remove(&handle).ok_or(Errno::BadHandle)?;
        self.forget_if_unreachable(file.ino);
        Ok(Outcome::Done)
    }

    pub(super) fn read(&self, handle: Handle, offset: u64, len: u32) -> Result<Outcome, Errno> {
        let file = self.opened(handle)?;
        if file.access == Access::Write {
            return Err(Errno::BadHandle);
        }
        match &self.inodes[&file.ino].body {
            Body::File(contents) => Ok(Outcome::Bytes(contents.read(offset, len.into()))),
            _ => Err(Errno::IsDirectory),
        }
    }

    pub(super) fn write(&mut self, handle: Handle, offset: u64, fill: Fill) -> Result<Outcome, Errno> {
        let file = self.writable(handle, Errno::BadHandle)?;
        let contents = self.contents(file)?;
        let at = match file.mode {
            OpenMode::Append => contents.size(),
            OpenMode::AtOffset => offset,
        };
        contents.write(at, &fill.bytes());
        self.inode(file.ino).mtime = None;
        Ok(Outcome::Count(fill.len.into()))
    }

    /// The answer of a file system in which every zero byte is a hole.
    pub(super) fn seek(&self, handle: Handle, offset: u64, whence: Whence) -> Result<Outcome, Errno> {
        let contents = self.file(self.opened(handle)?)?;
        if offset >= contents.size() {
            return Err(Errno::NoDevice);
        }
        let is_wanted = |byte: u8| (byte != 0) == (whence == Whence::Data);
        match (contents.find(offset, is_wanted), whence) {
            (Some(at), _) => Ok(Outcome::Offset(at)),
            (None, Whence::Data) => Err(Errno::NoDevice),
            (None, Whence::Hole) => Ok(Outcome::Offset(contents.size())),
        }
    }

    /// Whether lseek(2) may have answered this, now: zeros may count as data, but nothing else may count as a hole.
    pub fn allows_seek(&self, handle: Handle, offset: u64, whence: Whence, got: &Outcome) -> bool {
        let strictest = self.seek(handle, offset, whence);
        let size = self.opened(handle).and_then(|file| self.file(file)).map_or(0, Contents::size);
        match (strictest, got, whence) {
            (Err(Errno::NoDevice), Outcome::Offset(at), Whence::Data) => (offset..size).contains(at),
            (Ok(Outcome::Offset(first)), Outcome::Offset(at), Whence::Data) => (offset..=first).contains(at),
            (Ok(Outcome::Offset(first)), Outcome::Offset(at), Whence::Hole) => {
                // It may be found later than the first zero, but not where there is data.
                (first..=size).contains(at)
                    && self.seek(handle, *at, Whence::Hole).map_or(*at == size, |hole| hole == *got)
            }
            (Ok(_), _, _) => false,
            (Err(errno), got, _) => *got == Outcome::Failed(errno),
        }
    }

    pub(super) fn map_load(&self, handle: Handle, offset: u64, len: u32) -> Result<Outcome, Errno> {
        let file = self.opened(handle)?;
        let bytes = self.file(file)?.read(offset, len.into());
        if !bytes.is_empty() && file.access == Access::Write {
            return Err(Errno::Access);
        }
        Ok(Outcome::Bytes(bytes))
    }

    pub(super) fn map_store(&mut self, handle: Handle, offset: u64, fill: Fill) -> Result<Outcome, Errno> {
        let file = self.opened(handle)?;
        let contents = self.contents(file)?;
        let len = contents.size().saturating_sub(offset).min(fill.len.into());
        if len == 0 {
            return Ok(Outcome::Count(0));
        }
        if file.access != Access::ReadWrite {
            return Err(Errno::Access);
        }
        contents.write(offset, &fill.bytes()[..len as usize]);
        self.inode(file.ino).mtime = None;
        Ok(Outcome::Count(len))
    }

    pub(super) fn ftruncate(&mut self, handle: Handle, size: u64) -> Result<Outcome, Errno> {
        let file = self.writable(handle, Errno::Invalid)?;
        self.resize(file.ino, size)?;
        Ok(Outcome::Done)
    }

    pub(super) fn fallocate(
        &mut self,
        handle: Handle,
        mode: Fallocate,
        offset: u64,
        len: u64,
    ) -> Result<Outcome, Errno> {
        let file = self.opened(handle)?;
        if len == 0 {
            return Err(Errno::Invalid);
        }
        if file.access == Access::Read {
            return Err(Errno::BadHandle);
        }
        let contents = self.contents(file)?;
        if matches!(mode, Fallocate::PunchHole | Fallocate::ZeroRange | Fallocate::ZeroRangeKeepSize) {
            contents.zero(offset, len);
        }
        if matches!(mode, Fallocate::Allocate | Fallocate::ZeroRange) && offset + len > contents.size() {
            contents.resize(offset + len);
        }
        self.inode(file.ino).mtime = None;
        Ok(Outcome::Done)
    }

    pub(super) fn truncate(&mut self, path: &TreePath, size: u64) -> Result<Outcome, Errno> {
        let ino = self.existing(path, Follow::Target)?;
        self.resize(ino, size)?;
        Ok(Outcome::Done)
    }

    pub(super) fn opened(&self, handle: Handle) -> Result<OpenFile, Errno> {
        self.handles.get(&handle).copied().ok_or(Errno::BadHandle)
    }

    fn writable(&self, handle: Handle, otherwise: Errno) -> Result<OpenFile, Errno> {
        let file = self.opened(handle)?;
        if file.access == Access::Read { Err(otherwise) } else { Ok(file) }
    }

    fn contents(&mut self, file: OpenFile) -> Result<&mut Contents, Errno> {
        match &mut self.inode(file.ino).body {
            Body::File(contents) => Ok(contents),
            _ => Err(Errno::IsDirectory),
        }
    }

    fn file(&self, file: OpenFile) -> Result<&Contents, Errno> {
        match &self.inodes[&file.ino].body {
            Body::File(contents) => Ok(contents),
            _ => Err(Errno::IsDirectory),
        }
    }

    fn resize(&mut self, ino: soda_types::Ino, size: u64) -> Result<(), Errno> {
        let inode = self.inode(ino);
        match &mut inode.body {
            Body::File(contents) => contents.resize(size),
            _ => return Err(Errno::IsDirectory),
        }
        inode.mtime = None;
        Ok(())
    }
}
