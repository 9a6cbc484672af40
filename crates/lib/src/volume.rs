//! The calls that take a path.

use crate::dir::ReadDir;
use crate::error::{At, Result, Unfinished};
use crate::file::File;
use crate::options::{OpenOptions, Options, User};
use crate::path::{Found, Last, Place, walk};
use bytes::Bytes;
use soda_client::{
    Client, ConnectError, IfExists, KillPriv, NewNode, NoKernel, OpenMode, RenameHow, SetXattr,
};
use soda_types::{
    Attr, Creds, Errno, Fid, FileKind, FsError, FsResult, FsStats, InUse, LockOwner, Name, SetAttr,
};
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// A volume that is connected. Clones are the same one.
#[derive(Clone, Debug)]
pub struct Volume {
    client: Arc<Client>,
    user: User,
    /// Of locks: each open file is somebody else.
    owners: Arc<AtomicU64>,
}

impl Volume {
    /// Connects, and opens a session. Changes that a program before this one left in the
    /// [`cache_dir`](Options::cache_dir) are told to the server first.
    ///
    /// # Errors
    /// [`ConnectError`]: the server is not there, is none, or refuses; this is no multi-thread runtime.
    pub async fn connect(options: Options) -> std::result::Result<Volume, ConnectError> {
        let client = Client::connect(options.client, Box::new(NoKernel)).await?;
        Ok(Volume { client, user: options.user, owners: Arc::default() })
    }

    /// What this is made of: inodes in place of paths, and everything else that a mount uses.
    pub fn client(&self) -> &Arc<Client> {
        &self.client
    }

    /// Tells the server what it has not heard of, gives everything back, and says goodbye. Afterwards every call fails with EIO,
    /// those of clones, too. Waits for the server as long as it goes on taking changes, half a minute from when it does not.
    ///
    /// Without this, dropping the last clone has the runtime tell them, if they are in no cache directory, and nobody hears how
    /// that ends: where the runtime ends first, or the server is away, they are lost, with a warning in the log.
    ///
    /// # Errors
    /// [`Unfinished`]: what it did not take.
    pub async fn shutdown(&self) -> std::result::Result<(), Unfinished> {
        Unfinished::unless_all_told(self.client.shutdown().await)
    }

    /// Makes everything durable at the server that was answered so far.
    ///
    /// # Errors
    /// ENOSPC; EIO if it was lost.
    pub async fn sync(&self) -> Result<()> {
        self.client.sync_all().await.at("sync", Path::new("/"))
    }

    /// # Errors
    /// EIO while the server is away, with a [`timeout`](Options::timeout).
    pub async fn statfs(&self) -> Result<FsStats> {
        self.client.statfs().await.at("look at the space of", Path::new("/"))
    }

    /// Opens a regular file.
    ///
    /// # Errors
    /// ENOENT, EEXIST, EISDIR, ENXIO for a pipe, socket or device, ENOTDIR, ELOOP, EROFS, ENOSPC; EINVAL for options that make no
    /// sense.
    pub async fn open(&self, path: impl AsRef<Path>, options: OpenOptions) -> Result<File> {
        let path = path.as_ref();
        self.open_at(path, options).await.at("open", path)
    }

    async fn open_at(&self, path: &Path, options: OpenOptions) -> FsResult<File> {
        options.check()?;
        let creates = options.create || options.create_new;
        if creates && path.as_os_str().as_bytes().ends_with(b"/") {
            return Err(Errno::IsDirectory.into());
        }
        let mode = match (options.read, options.writes()) {
            (true, true) => OpenMode::ReadWrite,
            (false, true) => OpenMode::Write,
            (_, false) => OpenMode::Read,
        };
        let last = if options.create_new { Last::Stay } else { Last::Follow };
        let place = walk(&self.client, path, last).await?;
        let (fid, open) = match place {
            Place { found: Some(_), .. } if options.create_new => return Err(Errno::Exists.into()),
            Place { found: Some(found), .. } => {
                check_regular(found)?;
                (found.fid, self.client.open(found.fid, mode).await?)
            }
            Place { entry: Some((dir, name)), .. } if creates => {
                let existing = if options.create_new { IfExists::Fail } else { IfExists::Open };
                let new = NewNode { existing, ..self.new_node(FileKind::File, options.mode) };
                let (entry, open) = self.client.create_open(dir, &name, new, mode).await?;
                if let Some(node) = entry.node {
                    // Somebody else may have made something else meanwhile.
                    check_regular(node.into())?;
                }
                (open.fid(), open)
            }
            Place { .. } => return Err(Errno::NoEntry.into()),
        };
        if options.truncate {
            self.client.setattr(fid, SetAttr { size: Some(0), ..SetAttr::default() }).await?;
        }
        let owner = LockOwner(self.owners.fetch_add(1, Ordering::Relaxed));
        Ok(File::new(Arc::clone(&self.client), open, path.to_owned(), options, self.kill(), owner))
    }

    /// The whole file.
    ///
    /// # Errors
    /// As [`Volume::open`] and [`File::read_at`].
    pub async fn read(&self, path: impl AsRef<Path>) -> Result<Bytes> {
        let file = self.open(path, OpenOptions::new().read(true)).await?;
        let size = file.metadata().await?.size;
        // One byte more than there should be: it may have grown.
        file.read_at(0, usize::try_from(size.saturating_add(1)).unwrap_or(usize::MAX)).await
    }

    /// Makes `contents` all that is in the file, which is created if it is not there. Whoever reads meanwhile may see a part.
    ///
    /// # Errors
    /// As [`Volume::open`] and [`File::write_at`].
    pub async fn write(&self, path: impl AsRef<Path>, contents: impl Into<Bytes>) -> Result<()> {
        let file = self.open(path, OpenOptions::new().write(true).create(true).truncate(true)).await?;
        file.write_at(0, contents).await?;
        file.close().await
    }

    /// Of what the path means, symbolic links followed.
    ///
    /// # Errors
    /// ENOENT, ENOTDIR, ELOOP.
    pub async fn metadata(&self, path: impl AsRef<Path>) -> Result<Attr> {
        let path = path.as_ref();
        self.attr_at(path, Last::Follow).await.at("look at", path)
    }

    /// Of what the path names, be it a symbolic link.
    ///
    /// # Errors
    /// ENOENT, ENOTDIR, ELOOP.
    pub async fn symlink_metadata(&self, path: impl AsRef<Path>) -> Result<Attr> {
        let path = path.as_ref();
        self.attr_at(path, Last::Stay).await.at("look at", path)
    }

    async fn attr_at(&self, path: &Path, last: Last) -> FsResult<Attr> {
        let fid = walk(&self.client, path, last).await?.found()?.fid;
        Ok(self.client.getattr(fid).await?.value)
    }

    /// Whether there is something.
    ///
    /// # Errors
    /// As [`Volume::metadata`], but for ENOENT and ENOTDIR.
    pub async fn exists(&self, path: impl AsRef<Path>) -> Result<bool> {
        match self.metadata(path).await {
            Ok(_) => Ok(true),
            Err(error) if matches!(error.errno(), Errno::NoEntry | Errno::NotDirectory) => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Permissions, owner, size, times: what is `None` stays.
    ///
    /// # Errors
    /// As [`Volume::metadata`]; EROFS, ENOSPC.
    pub async fn set_metadata(&self, path: impl AsRef<Path>, set: SetAttr) -> Result<Attr> {
        let path = path.as_ref();
        let work = async {
            let fid = walk(&self.client, path, Last::Follow).await?.found()?.fid;
            Ok::<_, FsError>(self.client.setattr(fid, set).await?.value)
        };
        work.await.at("change", path)
    }

    /// With the permissions 0755.
    ///
    /// # Errors
    /// EEXIST, ENOENT for the directory above, ENOTDIR, EROFS, ENOSPC.
    pub async fn create_dir(&self, path: impl AsRef<Path>) -> Result<()> {
        let path = path.as_ref();
        self.create_dir_at(path).await.at("create the directory", path)
    }

    async fn create_dir_at(&self, path: &Path) -> FsResult<()> {
        // A symbolic link at the end is in the way, with or without `/` behind it.
        let (dir, name) = walk(&self.client, without_slash(path), Last::Stay).await?.free()?;
        let new = self.new_node(FileKind::Directory, 0o755);
        self.client.create(dir, &name, new).await.map(drop)
    }

    /// The directory and those above it, as far as they are not there.
    ///
    /// # Errors
    /// As [`Volume::create_dir`]; EEXIST only if it is something else.
    pub async fn create_dir_all(&self, path: impl AsRef<Path>) -> Result<()> {
        let path = path.as_ref();
        let work = async {
            let mut above: Vec<&Path> =
                path.ancestors().filter(|path| !path.as_os_str().is_empty()).collect();
            // From the deepest one that is there.
            let mut missing = Vec::new();
            while let Some(dir) = above.first().copied() {
                match walk(&self.client, dir, Last::Follow).await {
                    Ok(Place { found: Some(found), .. }) if found.kind == FileKind::Directory => break,
                    Ok(Place { found: Some(_), .. }) => return Err(Errno::Exists.into()),
                    Ok(Place { found: None, .. }) => {}
                    Err(error) if error.errno == Errno::NoEntry => {}
                    Err(error) => return Err(error),
                }
                missing.push(above.remove(0));
            }
            for dir in missing.into_iter().rev() {
                match self.create_dir_at(dir).await {
                    // Another machine was faster, or it ends with `..`.
                    Err(error) if error.errno == Errno::Exists => {}
                    other => other?,
                }
            }
            match walk(&self.client, path, Last::Follow).await?.found()?.kind {
                FileKind::Directory => Ok(()),
                _ => Err(FsError::from(Errno::Exists)),
            }
        };
        work.await.at("create the directory", path)
    }

    /// # Errors
    /// ENOENT; EISDIR for a directory; EROFS.
    pub async fn remove_file(&self, path: impl AsRef<Path>) -> Result<()> {
        let path = path.as_ref();
        let work = async {
            let place = walk(&self.client, path, Last::Stay).await?;
            if place.found()?.kind == FileKind::Directory {
                return Err(Errno::IsDirectory.into());
            }
            let (dir, name) = place.named()?;
            self.client.unlink(dir, &name).await
        };
        work.await.at("remove", path)
    }

    /// # Errors
    /// ENOENT, ENOTDIR, ENOTEMPTY, EROFS; EBUSY for the root, and for a path that ends with `..`.
    pub async fn remove_dir(&self, path: impl AsRef<Path>) -> Result<()> {
        let path = path.as_ref();
        let work = async {
            let (dir, name) = walk(&self.client, path, Last::Stay).await?.named()?;
            self.client.rmdir(dir, &name).await
        };
        work.await.at("remove the directory", path)
    }

    /// The directory with all that is in it. Symbolic links are removed, not followed.
    ///
    /// # Errors
    /// As [`Volume::remove_dir`]; ENOTEMPTY if somebody goes on making names in it.
    pub async fn remove_dir_all(&self, path: impl AsRef<Path>) -> Result<()> {
        let path = path.as_ref();
        let work = async {
            let place = walk(&self.client, path, Last::Stay).await?;
            let found = place.found()?;
            if found.kind != FileKind::Directory {
                return Err(Errno::NotDirectory.into());
            }
            let (dir, name) = place.named()?;
            self.empty(found.fid).await?;
            self.client.rmdir(dir, &name).await
        };
        work.await.at("remove the tree", path)
    }

    /// Removes all that is in a directory.
    async fn empty(&self, top: Fid) -> FsResult<()> {
        let client = &self.client;
        let listing = async |fid| {
            Ok::<_, FsError>(ReadDir::new(Arc::clone(client), client.open_dir(fid).await?, PathBuf::new()))
        };
        // Directories that are being emptied, each with its name in the one before.
        let mut path = vec![(top, None::<Name>, listing(top).await?)];
        while let Some((dir, name, left)) = path.last_mut() {
            match left.next_name().await? {
                Some(entry) if entry.kind == FileKind::Directory => {
                    let names = listing(entry.fid).await?;
                    path.push((entry.fid, Some(entry.name), names));
                }
                Some(entry) => gone_is_fine(client.unlink(*dir, &entry.name).await)?,
                None => {
                    let name = name.take();
                    path.pop();
                    if let (Some((above, ..)), Some(name)) = (path.last(), name) {
                        gone_is_fine(client.rmdir(*above, &name).await)?;
                    }
                }
            }
        }
        Ok(())
    }

    /// Moves what is at `from` to `to`, in one step for everybody; replaces what is there, as rename(2).
    ///
    /// # Errors
    /// ENOENT, ENOTDIR, EISDIR, ENOTEMPTY; EINVAL into itself; EROFS, ENOSPC.
    pub async fn rename(&self, from: impl AsRef<Path>, to: impl AsRef<Path>) -> Result<()> {
        self.rename_with(from, to, RenameHow::Plain).await
    }

    /// As [`Volume::rename`], with the flags of renameat2(2).
    ///
    /// # Errors
    /// As [`Volume::rename`]; EEXIST with [`RenameHow::NoReplace`].
    pub async fn rename_with(
        &self,
        from: impl AsRef<Path>,
        to: impl AsRef<Path>,
        how: RenameHow,
    ) -> Result<()> {
        let (from, to) = (from.as_ref(), to.as_ref());
        let work = async {
            let source = walk(&self.client, from, Last::Stay).await?;
            let moved = source.found()?;
            let is_directory = moved.kind == FileKind::Directory;
            let (dir, name) = source.named()?;
            // `mv directory new/` is right, `mv file new/` is not.
            let to = if is_directory { without_slash(to) } else { to };
            let target = walk(&self.client, to, Last::Stay).await?;
            if !is_directory && target.found.is_none() && to.as_os_str().as_bytes().ends_with(b"/") {
                return Err(Errno::NotDirectory.into());
            }
            if target.above.contains(&moved.fid) {
                return Err(Errno::Invalid.into());
            }
            let (new_dir, new_name) = target.entry.ok_or(Errno::Busy)?;
            self.client.rename(dir, &name, new_dir, &new_name, how).await
        };
        work.await.at("rename", from)
    }

    /// A further name for a file.
    ///
    /// # Errors
    /// ENOENT, EEXIST, EMLINK; EPERM for a directory; EROFS, ENOSPC.
    pub async fn hard_link(&self, original: impl AsRef<Path>, link: impl AsRef<Path>) -> Result<()> {
        let (original, link) = (original.as_ref(), link.as_ref());
        let work = async {
            let found = walk(&self.client, original, Last::Stay).await?.found()?;
            if found.kind == FileKind::Directory {
                return Err(Errno::Perm.into());
            }
            let (dir, name) = walk(&self.client, link, Last::Stay).await?.free()?;
            self.client.link(found.fid, dir, &name).await.map(drop)
        };
        work.await.at("link", link)
    }

    /// # Errors
    /// EEXIST, ENOENT, ENAMETOOLONG for a target of more than 4,095 bytes, EROFS, ENOSPC.
    pub async fn symlink(&self, target: impl AsRef<Path>, link: impl AsRef<Path>) -> Result<()> {
        let (target, link) = (target.as_ref(), link.as_ref());
        let work = async {
            let (dir, name) = walk(&self.client, link, Last::Stay).await?.free()?;
            let target = target.as_os_str().as_bytes().to_vec();
            let new = NewNode { target, ..self.new_node(FileKind::Symlink, 0o777) };
            self.client.create(dir, &name, new).await.map(drop)
        };
        work.await.at("create the link", link)
    }

    /// # Errors
    /// ENOENT; EINVAL if it is no symbolic link.
    pub async fn read_link(&self, path: impl AsRef<Path>) -> Result<PathBuf> {
        let path = path.as_ref();
        let work = async {
            let found = walk(&self.client, path, Last::Stay).await?.found()?;
            if found.kind != FileKind::Symlink {
                return Err(Errno::Invalid.into());
            }
            let target = self.client.readlink(found.fid).await?;
            Ok::<_, FsError>(PathBuf::from(OsString::from_vec(target.to_vec())))
        };
        work.await.at("read the link", path)
    }

    /// # Errors
    /// ENOENT, ENOTDIR.
    pub async fn read_dir(&self, path: impl AsRef<Path>) -> Result<ReadDir> {
        let path = path.as_ref();
        let work = async {
            let found = walk(&self.client, path, Last::Follow).await?.found()?;
            if found.kind != FileKind::Directory {
                return Err(FsError::from(Errno::NotDirectory));
            }
            self.client.open_dir(found.fid).await
        };
        let open = work.await.at("list", path)?;
        Ok(ReadDir::new(Arc::clone(&self.client), open, path.to_owned()))
    }

    /// The value of an extended attribute.
    ///
    /// # Errors
    /// ENODATA if there is none of this name; ENOENT.
    pub async fn xattr(&self, path: impl AsRef<Path>, name: impl AsRef<OsStr>) -> Result<Bytes> {
        let path = path.as_ref();
        let work = async {
            let fid = walk(&self.client, path, Last::Follow).await?.found()?.fid;
            self.client.getxattr(fid, name.as_ref().as_bytes()).await
        };
        work.await.at("read an attribute of", path)
    }

    /// The names of all extended attributes.
    ///
    /// # Errors
    /// ENOENT.
    pub async fn xattrs(&self, path: impl AsRef<Path>) -> Result<Vec<OsString>> {
        let path = path.as_ref();
        let work = async {
            let fid = walk(&self.client, path, Last::Follow).await?.found()?.fid;
            self.client.listxattr(fid).await
        };
        let names = work.await.at("list the attributes of", path)?;
        Ok(names.into_iter().map(OsString::from_vec).collect())
    }

    /// Sets an extended attribute, whether or not it is there.
    ///
    /// # Errors
    /// ENOENT, E2BIG, ERANGE, EROFS, ENOSPC.
    pub async fn set_xattr(
        &self,
        path: impl AsRef<Path>,
        name: impl AsRef<OsStr>,
        value: impl AsRef<[u8]>,
    ) -> Result<()> {
        let path = path.as_ref();
        let (name, value) = (name.as_ref().as_bytes(), value.as_ref());
        let work = async {
            let fid = walk(&self.client, path, Last::Follow).await?.found()?.fid;
            self.client.setxattr(fid, name, value, SetXattr::Either, self.kill()).await
        };
        work.await.at("set an attribute of", path)
    }

    /// # Errors
    /// ENODATA if there is none of this name; ENOENT, EROFS.
    pub async fn remove_xattr(&self, path: impl AsRef<Path>, name: impl AsRef<OsStr>) -> Result<()> {
        let path = path.as_ref();
        let work = async {
            let fid = walk(&self.client, path, Last::Follow).await?.found()?.fid;
            self.client.removexattr(fid, name.as_ref().as_bytes()).await
        };
        work.await.at("remove an attribute of", path)
    }

    fn new_node(&self, kind: FileKind, perm: u16) -> NewNode {
        let creds = Creds { uid: self.user.uid, gid: self.user.gid, pid: std::process::id() };
        let (target, existing) = (Vec::new(), IfExists::Fail);
        NewNode { kind, perm, umask: 0, rdev: 0, target, creds, existing, open: InUse::No }
    }

    fn kill(&self) -> KillPriv {
        if self.user.uid == 0 { KillPriv::Keep } else { KillPriv::Kill }
    }
}

fn check_regular(found: Found) -> FsResult<()> {
    match found.kind {
        FileKind::File => Ok(()),
        FileKind::Directory => Err(Errno::IsDirectory.into()),
        // Followed before, so it has come since.
        FileKind::Symlink => Err(Errno::Loop.into()),
        _ => Err(Errno::NoDevice.into()),
    }
}

fn without_slash(path: &Path) -> &Path {
    let bytes = path.as_os_str().as_bytes();
    let end = bytes.iter().rposition(|byte| *byte != b'/').map_or(bytes.len().min(1), |last| last + 1);
    Path::new(OsStr::from_bytes(&bytes[..end]))
}

/// Another machine may remove the same tree.
fn gone_is_fine(result: FsResult<()>) -> FsResult<()> {
    result.or_else(|error| if error.errno == Errno::NoEntry { Ok(()) } else { Err(error) })
}
