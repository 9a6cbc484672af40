//! An open file.

use crate::error::{At, Result};
use crate::options::OpenOptions;
use bytes::{Bytes, BytesMut};
use soda_client::{Client, KillPriv, LockWait, OpenFile, WriteAt};
use soda_types::{Attr, Errno, FsResult, Lock, LockFamily, LockMode, LockOwner, SetAttr};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use tokio::runtime::Handle;

/// An open file: it stays until it is closed, whatever becomes of its names. There is no position; calls may overlap.
#[derive(Debug)]
pub struct File {
    client: Arc<Client>,
    open: Arc<OpenFile>,
    path: PathBuf,
    options: OpenOptions,
    kill: KillPriv,
    owner: LockOwner,
    /// Whether it may have a lock.
    locked: AtomicBool,
    runtime: Handle,
}

impl File {
    pub(crate) fn new(
        client: Arc<Client>,
        open: Arc<OpenFile>,
        path: PathBuf,
        options: OpenOptions,
        kill: KillPriv,
        owner: LockOwner,
    ) -> File {
        let (locked, runtime) = (AtomicBool::new(false), Handle::current());
        File { client, open, path, options, kill, owner, locked, runtime }
    }

    /// As it was opened.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// `len` bytes from `offset` on; fewer only if the file ends before. One of up to a MiB is of one moment; of a longer one
    /// each MiB is.
    ///
    /// # Errors
    /// EBADF if it was not opened to read; EIO for data that are damaged on the server; ESTALE.
    pub async fn read_at(&self, offset: u64, len: usize) -> Result<Bytes> {
        self.read_whole(offset, len).await.at("read", &self.path)
    }

    async fn read_whole(&self, offset: u64, len: usize) -> FsResult<Bytes> {
        allowed(self.options.read)?;
        let most = self.client.max_io() as usize;
        let first = self.client.read(&self.open, offset, len.min(most) as u32).await?.to_bytes();
        if first.len() < most || len <= most {
            return Ok(first);
        }
        let mut all = BytesMut::from(&first[..]);
        loop {
            let wanted = (len - all.len()).min(most);
            let next = self.client.read(&self.open, offset + all.len() as u64, wanted as u32).await?;
            next.chunks().iter().for_each(|chunk| all.extend_from_slice(chunk));
            if next.len() < wanted || all.len() == len {
                return Ok(all.freeze());
            }
        }
    }

    /// Writes all of `data` at `offset`. One of up to a MiB is seen whole or not at all by others; of a longer one each MiB is,
    /// and if it fails a part may be there.
    ///
    /// # Errors
    /// EBADF if it was not opened to write; ENOSPC, EDQUOT, EFBIG; EIO if changes of the file were lost since it was opened.
    pub async fn write_at(&self, offset: u64, data: impl Into<Bytes>) -> Result<()> {
        let work = async {
            allowed(self.options.write)?;
            self.client.write_all(&self.open, WriteAt::Offset(offset), data.into(), self.kill).await
        };
        work.await.at("write", &self.path)
    }

    /// Writes `data` behind all that is in the file, and says where that was. What other machines append meanwhile is before it
    /// or behind it; if it is longer than a MiB, also between its MiBs.
    ///
    /// # Errors
    /// As [`File::write_at`].
    pub async fn append(&self, data: impl Into<Bytes>) -> Result<u64> {
        let work = async {
            allowed(self.options.writes())?;
            let data = data.into();
            let first = self.client.write(&self.open, WriteAt::End, data.clone(), self.kill).await?;
            let rest = data.slice(usize::try_from(first.len).map_or(data.len(), |len| len.min(data.len()))..);
            if !rest.is_empty() {
                self.client.write_all(&self.open, WriteAt::End, rest, self.kill).await?;
            }
            FsResult::Ok(first.offset)
        };
        work.await.at("append to", &self.path)
    }

    /// Cuts it, or extends it with zeros.
    ///
    /// # Errors
    /// As [`File::write_at`].
    pub async fn set_len(&self, size: u64) -> Result<()> {
        let work = async {
            allowed(self.options.writes())?;
            self.client.setattr(self.open.fid(), SetAttr { size: Some(size), ..SetAttr::default() }).await
        };
        work.await.at("set the length of", &self.path).map(drop)
    }

    /// # Errors
    /// ESTALE.
    pub async fn metadata(&self) -> Result<Attr> {
        self.client.getattr(self.open.fid()).await.at("look at", &self.path).map(|attr| attr.value)
    }

    /// When it returns all that was written to the file before, by whatever machine, is on the server's disk.
    ///
    /// # Errors
    /// EIO if changes of the file were lost since it was opened, each time that this happens once; ENOSPC.
    pub async fn sync(&self) -> Result<()> {
        self.client.fsync_file(&self.open).await.at("sync", &self.path)
    }

    /// Waits for a lock on the whole file, as flock(2): other open files, of this and all other machines, keep off. One that has
    /// the other kind already changes it, not in one step.
    ///
    /// # Errors
    /// EIO if locks of the file were lost with the session: open it again.
    pub async fn lock(&self, mode: LockMode) -> Result<()> {
        self.locked.store(true, Ordering::Relaxed);
        let lock = self.whole(mode);
        self.client.lock_until(&self.open, lock, std::future::pending()).await.at("lock", &self.path)
    }

    /// As [`File::lock`], without waiting. Whether it was granted.
    ///
    /// # Errors
    /// As [`File::lock`].
    pub async fn try_lock(&self, mode: LockMode) -> Result<bool> {
        self.locked.store(true, Ordering::Relaxed);
        match self.client.lock_set(&self.open, self.whole(mode), LockWait::No).await {
            Ok(()) => Ok(true),
            Err(error) if error.errno == Errno::TryAgain => Ok(false),
            Err(error) => Err(error).at("lock", &self.path),
        }
    }

    /// # Errors
    /// EIO with a time-out, while the server is away.
    pub async fn unlock(&self) -> Result<()> {
        if !self.locked.swap(false, Ordering::Relaxed) {
            return Ok(());
        }
        let released = self.client.lock_release_owner(self.open.fid(), LockFamily::Flock, self.owner).await;
        released.at("unlock", &self.path)
    }

    /// Closes it, and says what became of what was written: dropping it is silent. It does not wait for the server; who has to
    /// know that all is on its disk calls [`File::sync`] before.
    ///
    /// # Errors
    /// EIO if changes of the file were lost, and no write or sync has said so.
    pub async fn close(self) -> Result<()> {
        let unlocked = self.unlock().await;
        self.client.check_loss_at_close(&self.open).at("close", &self.path).and(unlocked)
    }

    fn whole(&self, mode: LockMode) -> Lock {
        let (family, owner, pid) = (LockFamily::Flock, self.owner, std::process::id());
        Lock { family, owner, pid, start: 0, end: u64::MAX, mode }
    }
}

impl Drop for File {
    fn drop(&mut self) {
        if *self.locked.get_mut() {
            let (client, fid, owner) = (Arc::clone(&self.client), self.open.fid(), self.owner);
            let open = Arc::clone(&self.open);
            self.runtime.spawn(async move {
                // With the session gone the lock is gone as well.
                let _ = client.lock_release_owner(fid, LockFamily::Flock, owner).await;
                drop(open);
            });
        }
    }
}

fn allowed(opened_for_it: bool) -> FsResult<()> {
    if opened_for_it { Ok(()) } else { Err(Errno::BadHandle.into()) }
}
