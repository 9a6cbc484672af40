//! Listings.

use crate::error::{At, Result};
use soda_client::{Client, Detail, OpenDir};
use soda_types::{Fid, FileKind, FsResult};
use std::collections::VecDeque;
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Names that are asked for at once.
const PAGE: usize = 1024;

/// The names in a directory: all that are there from the beginning of the listing to its end, each once; of those that come or
/// go meanwhile each may be among them or not. `.` and `..` are not.
#[derive(Debug)]
pub struct ReadDir {
    client: Arc<Client>,
    open: Arc<OpenDir>,
    path: PathBuf,
    next: VecDeque<soda_client::DirEntry>,
    /// Where the next page begins; `None` behind the last one.
    from: Option<u64>,
}

/// A name in a directory.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct DirEntry {
    dir: PathBuf,
    name: OsString,
    kind: FileKind,
    fid: Fid,
}

impl DirEntry {
    pub fn file_name(&self) -> &OsStr {
        &self.name
    }

    /// The directory as it was given, and the name.
    pub fn path(&self) -> PathBuf {
        self.dir.join(&self.name)
    }

    pub fn kind(&self) -> FileKind {
        self.kind
    }

    /// The inode, for [`Volume::client`](crate::Volume::client).
    pub fn fid(&self) -> Fid {
        self.fid
    }
}

impl ReadDir {
    pub(crate) fn new(client: Arc<Client>, open: Arc<OpenDir>, path: PathBuf) -> ReadDir {
        ReadDir { client, open, path, next: VecDeque::new(), from: Some(0) }
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    /// `None` at the end.
    ///
    /// # Errors
    /// ESTALE if the directory was removed meanwhile.
    pub async fn next(&mut self) -> Result<Option<DirEntry>> {
        let next = self.next_name().await.at("list", &self.path)?;
        Ok(next.map(|entry| DirEntry {
            dir: self.path.clone(),
            name: OsString::from_vec(entry.name.as_bytes().to_vec()),
            kind: entry.kind,
            fid: entry.fid,
        }))
    }

    pub(crate) async fn next_name(&mut self) -> FsResult<Option<soda_client::DirEntry>> {
        while self.next.is_empty()
            && let Some(from) = self.from
        {
            let page = self.client.read_dir_with(&self.open, from, PAGE, Detail::Names).await?;
            self.from = page.last().map(|last| last.next);
            self.next.extend(page);
        }
        Ok(self.next.pop_front())
    }

    /// All that are left.
    ///
    /// # Errors
    /// As [`ReadDir::next`].
    pub async fn collect(mut self) -> Result<Vec<DirEntry>> {
        let mut all = Vec::new();
        while let Some(entry) = self.next().await? {
            all.push(entry);
        }
        Ok(all)
    }
}
