//! The same calls on a volume and on the local disk, by `std::fs`: they must agree, errors too.

use crate::Cell;
use libsoda::{Metadata, OpenOptions, RenameHow, Volume, Writes};
use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use tempfile::TempDir;

/// One tree twice.
struct Both {
    volume: Volume,
    local: TempDir,
    _cell: Cell,
}

/// What a call did: what there is to tell of it, or the errno.
type Told = Result<String, i32>;

fn raw(error: &io::Error) -> i32 {
    match error.kind() {
        // What `std` itself refuses has no number.
        io::ErrorKind::InvalidInput => 22,
        _ => error.raw_os_error().unwrap_or_else(|| panic!("{error} has no number")),
    }
}

fn said(attr: &Metadata) -> String {
    format!("{:?} {:o} {} {}", attr.kind, attr.perm, attr.nlink, attr.size)
}

fn local_said(attr: &fs::Metadata) -> String {
    let kind = if attr.is_dir() {
        "Directory"
    } else if attr.is_symlink() {
        "Symlink"
    } else {
        "File"
    };
    format!("{kind} {:o} {} {}", attr.mode() & 0o7777, attr.nlink(), attr.size())
}

#[derive(Clone, Debug)]
enum Op {
    Write(&'static str, &'static str),
    Read(&'static str),
    Open(&'static str, [bool; 6]),
    CreateDir(&'static str),
    CreateDirAll(&'static str),
    RemoveFile(&'static str),
    RemoveDir(&'static str),
    RemoveDirAll(&'static str),
    Rename(&'static str, &'static str),
    HardLink(&'static str, &'static str),
    Symlink(&'static str, &'static str),
    ReadLink(&'static str),
    Stat(&'static str),
    LinkStat(&'static str),
    List(&'static str),
}

impl Both {
    async fn new(writes: Writes) -> Both {
        let cell = Cell::start();
        Both { volume: cell.volume(writes).await, local: tempfile::tempdir().unwrap(), _cell: cell }
    }

    async fn there(&self, op: &Op) -> Told {
        let volume = &self.volume;
        let done = match op.clone() {
            Op::Write(path, text) => volume.write(path, text).await.map(|()| String::new()),
            Op::Read(path) => volume.read(path).await.map(|data| String::from_utf8_lossy(&data).into_owned()),
            Op::Open(path, [read, write, append, truncate, create, create_new]) => {
                let options = OpenOptions::new().read(read).write(write).append(append).truncate(truncate);
                volume.open(path, options.create(create).create_new(create_new)).await.map(|_| String::new())
            }
            Op::CreateDir(path) => volume.create_dir(path).await.map(|()| String::new()),
            Op::CreateDirAll(path) => volume.create_dir_all(path).await.map(|()| String::new()),
            Op::RemoveFile(path) => volume.remove_file(path).await.map(|()| String::new()),
            Op::RemoveDir(path) => volume.remove_dir(path).await.map(|()| String::new()),
            Op::RemoveDirAll(path) => volume.remove_dir_all(path).await.map(|()| String::new()),
            Op::Rename(from, to) => volume.rename(from, to).await.map(|()| String::new()),
            Op::HardLink(original, link) => volume.hard_link(original, link).await.map(|()| String::new()),
            Op::Symlink(target, link) => volume.symlink(target, link).await.map(|()| String::new()),
            Op::ReadLink(path) => volume.read_link(path).await.map(|target| target.display().to_string()),
            Op::Stat(path) => volume.metadata(path).await.map(|attr| without_dir_size(said(&attr))),
            Op::LinkStat(path) => {
                volume.symlink_metadata(path).await.map(|attr| without_dir_size(said(&attr)))
            }
            Op::List(path) => match volume.read_dir(path).await {
                Ok(listing) => listing.collect().await.map(|entries| {
                    let mut names: Vec<_> =
                        entries.iter().map(|entry| entry.file_name().to_owned()).collect();
                    names.sort();
                    format!("{names:?}")
                }),
                Err(error) => Err(error),
            },
        };
        done.map_err(|error| error.errno().raw())
    }

    fn here(&self, op: &Op) -> Told {
        let at = |path: &str| -> PathBuf {
            // Not `join`, which knows absolute paths and drops slashes at the end.
            PathBuf::from(format!("{}/{path}", self.local.path().display()))
        };
        let done = match op.clone() {
            Op::Write(path, text) => fs::write(at(path), text).map(|()| String::new()),
            Op::Read(path) => fs::read_to_string(at(path)),
            Op::Open(path, [read, write, append, truncate, create, create_new]) => {
                let mut options = fs::OpenOptions::new();
                options.read(read).write(write).append(append).truncate(truncate).create(create);
                options.create_new(create_new).mode(0o644).open(at(path)).and_then(|file| {
                    // Here only regular files are opened.
                    let is_dir = file.metadata()?.is_dir();
                    if is_dir { Err(io::Error::from_raw_os_error(21)) } else { Ok(String::new()) }
                })
            }
            Op::CreateDir(path) => fs::create_dir(at(path)).map(|()| String::new()),
            Op::CreateDirAll(path) => fs::create_dir_all(at(path)).map(|()| String::new()),
            Op::RemoveFile(path) => fs::remove_file(at(path)).map(|()| String::new()),
            Op::RemoveDir(path) => fs::remove_dir(at(path)).map(|()| String::new()),
            Op::RemoveDirAll(path) => fs::remove_dir_all(at(path)).map(|()| String::new()),
            Op::Rename(from, to) => fs::rename(at(from), at(to)).map(|()| String::new()),
            Op::HardLink(original, link) => fs::hard_link(at(original), at(link)).map(|()| String::new()),
            Op::Symlink(target, link) => {
                std::os::unix::fs::symlink(Path::new(target), at(link)).map(|()| String::new())
            }
            Op::ReadLink(path) => fs::read_link(at(path)).map(|target| target.display().to_string()),
            Op::Stat(path) => fs::metadata(at(path)).map(|attr| without_dir_size(local_said(&attr))),
            Op::LinkStat(path) => {
                fs::symlink_metadata(at(path)).map(|attr| without_dir_size(local_said(&attr)))
            }
            Op::List(path) => fs::read_dir(at(path)).map(|entries| {
                let mut names: Vec<_> = entries.map(|entry| entry.unwrap().file_name()).collect();
                names.sort();
                format!("{names:?}")
            }),
        };
        done.map_err(|error| raw(&error))
    }

    async fn agree(&self, ops: &[Op]) {
        for op in ops {
            assert_eq!(self.there(op).await, self.here(op), "{op:?}");
        }
    }
}

/// How long a directory is, each file system has its own idea of.
fn without_dir_size(said: String) -> String {
    match said.starts_with("Directory") {
        true => said.rsplit_once(' ').unwrap().0.to_owned(),
        false => said,
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn names_and_links_are_as_on_a_local_disk() {
    use Op::*;
    for writes in [Writes::Through, Writes::Delayed] {
        let both = Both::new(writes).await;
        both.agree(&[
            Stat("/"),
            Stat("."),
            List("/"),
            Stat("none"),
            CreateDir("a"),
            CreateDir("a"),
            CreateDir("a/"),
            CreateDir("x/y"),
            CreateDirAll("a/b/c/d"),
            CreateDirAll("a/b/c/d"),
            CreateDirAll("/a//b/./c/../e/"),
            List("a/b"),
            Write("a/f", "one"),
            Write("a/f", "2"),
            Read("a/f"),
            Read("a/f/"),
            Read("a/f/g"),
            Read("a"),
            Read("a/none"),
            Write("a", "x"),
            Write("none/f", "x"),
            CreateDir("a/f"),
            CreateDirAll("a/f/g"),
            CreateDirAll("a/f"),
            Symlink("f", "a/link"),
            Symlink("f", "a/link"),
            Read("a/link"),
            ReadLink("a/link"),
            ReadLink("a/f"),
            ReadLink("a"),
            LinkStat("a/link"),
            Stat("a/link"),
            Stat("a/link/"),
            LinkStat("a/link/"),
            Symlink("../a/b", "a/up"),
            List("a/up"),
            LinkStat("a/up"),
            LinkStat("a/up/"),
            Stat("a/up/c/d/../.."),
            CreateDir("a/up"),
            CreateDir("a/up/new"),
            Write("a/up/new/f", "through a link"),
            Read("a/b/new/f"),
            Symlink("nowhere", "dangling"),
            Stat("dangling"),
            Write("dangling", "made"),
            Read("nowhere"),
            Symlink("loop", "loop"),
            Stat("loop"),
            LinkStat("loop"),
            Read("loop/x"),
            CreateDir("loop"),
            HardLink("a/f", "hard"),
            Stat("hard"),
            HardLink("a/f", "hard"),
            HardLink("a", "harddir"),
            HardLink("a/link", "hardlink"),
            LinkStat("hardlink"),
            HardLink("none", "x"),
            Rename("hard", "soft"),
            Rename("soft", "a/f"),
            Stat("soft"),
            Rename("a/b", "moved"),
            Rename("moved", "moved/in"),
            Rename("none", "x"),
            Rename("moved", "a"),
            Rename("a/f", "moved"),
            Rename("a", "a/f"),
            Rename("moved", "again/"),
            Rename("a/f", "file/"),
            Rename("a/f", "file"),
            Rename("file", "a/f"),
            List("/"),
            RemoveFile("again"),
            RemoveFile("a/none"),
            RemoveFile("a/link"),
            RemoveDir("a"),
            RemoveDir("a/f"),
            RemoveDir("again/new/"),
            RemoveFile("again/new/f"),
            RemoveDir("again/new"),
            RemoveDirAll("again"),
            RemoveDirAll("again"),
            RemoveDirAll("a/f/g"),
            List("a"),
            RemoveDirAll("a"),
            List("/"),
        ])
        .await;
        let long = "n".repeat(256).leak();
        both.agree(&[Stat(long), CreateDir(long), Write(long, "")]).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn files_are_opened_as_on_a_local_disk() {
    for writes in [Writes::Through, Writes::Delayed] {
        let both = Both::new(writes).await;
        both.agree(&[Op::CreateDir("dir"), Op::Symlink("made-by-link", "link")]).await;
        for bits in 0..64u8 {
            let flags = std::array::from_fn(|bit| bits >> bit & 1 == 1);
            for path in ["file", "other", "dir", "link", "none/x", "dir/"] {
                both.agree(&[
                    Op::Write("file", "there before"),
                    Op::Open(path, flags),
                    Op::Stat(path),
                    Op::Stat("file"),
                ])
                .await;
            }
            for path in ["other", "made-by-link"] {
                both.agree(&[Op::RemoveFile(path)]).await;
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_rename_can_refuse_to_replace_and_can_exchange() {
    let cell = Cell::start();
    let volume = cell.volume(Writes::Delayed).await;
    volume.write("a", "a").await.unwrap();
    volume.write("b", "b").await.unwrap();
    let refused = volume.rename_with("a", "b", RenameHow::NoReplace).await.unwrap_err();
    assert_eq!(refused.kind(), io::ErrorKind::AlreadyExists);
    volume.rename_with("a", "b", RenameHow::Exchange).await.unwrap();
    assert_eq!(
        (&volume.read("a").await.unwrap()[..], &volume.read("b").await.unwrap()[..]),
        (&b"b"[..], &b"a"[..])
    );
}
