//! What a log holds of files, as files.

use super::names::Way;
use super::show::Paths;
use crate::log::Behind;
use serde::{Deserialize, Serialize};
use soda_oplog::{Change, Record};
use soda_protocol::Allocate;
use soda_types::{Fid, FileKind, SetAttr};
use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs::{self, DirBuilder, File};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{DirBuilderExt, FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

/// A file that was written out.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Saved {
    pub file: PathBuf,
    /// Bytes of data that the log holds of it; later ones over earlier ones count twice.
    pub held: u64,
    pub whole: Whole,
}

/// Whether a file is all there.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Whole {
    Yes,
    /// It was there before: what was not written is zeros here.
    No,
}

/// On its way: under a name of its own.
struct Open {
    file: File,
    path: PathBuf,
    held: u64,
    whole: Whole,
}

pub(super) fn save<'a>(
    records: impl Iterator<Item = &'a Record>,
    dir: &Path,
    mut paths: Paths,
) -> io::Result<Vec<Saved>> {
    begin(dir)?;
    let mut saving = Saving { dir, files: BTreeMap::new(), made: 0 };
    for record in records {
        saving.follow(&record.change)?;
        paths.follow(&record.change);
    }
    let files = saving.files;
    files.into_iter().map(|(fid, open)| open.name(dir, fid, &paths)).collect()
}

/// Nothing that is there is written over, and other users may not look.
fn begin(dir: &Path) -> io::Result<()> {
    match DirBuilder::new().mode(0o700).create(dir) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => match fs::read_dir(dir)?.next() {
            None => Ok(()),
            Some(_) => Err(error),
        },
        result => result,
    }
}

struct Saving<'a> {
    dir: &'a Path,
    files: BTreeMap<Fid, Open>,
    made: u64,
}

impl Saving<'_> {
    fn follow(&mut self, change: &Change) -> io::Result<()> {
        match change {
            Change::Create { fid, new, .. } | Change::TmpFile { fid, new, .. }
                if new.kind == FileKind::File =>
            {
                self.open(*fid, Whole::Yes)?;
            }
            Change::Write { fid, offset, data, .. } => {
                let open = self.open(*fid, Whole::No)?;
                open.file.write_all_at(&data.to_bytes(), *offset)?;
                open.held += data.len() as u64;
            }
            Change::SetAttr { fid, set: SetAttr { size: Some(size), .. } } => {
                let open = self.open(*fid, Whole::No)?;
                open.file.set_len(*size)?;
                if *size == 0 {
                    open.whole = Whole::Yes;
                }
            }
            Change::Allocate { fid, offset, len, how } => {
                self.open(*fid, Whole::No)?.allocate(*offset, *len, *how)?;
            }
            _ => {
                if let Some(open) = Behind::removed_by(change).and_then(|fid| self.files.remove(&fid)) {
                    fs::remove_file(open.path)?;
                }
            }
        }
        Ok(())
    }

    fn open(&mut self, fid: Fid, whole: Whole) -> io::Result<&mut Open> {
        use std::collections::btree_map::Entry;
        match self.files.entry(fid) {
            Entry::Occupied(open) => Ok(open.into_mut()),
            Entry::Vacant(none) => {
                self.made += 1;
                let path = self.dir.join(format!(".{}", self.made));
                let file = File::options().read(true).write(true).create_new(true).mode(0o600).open(&path)?;
                Ok(none.insert(Open { file, path, held: 0, whole }))
            }
        }
    }
}

impl Open {
    fn allocate(&self, offset: u64, len: u64, how: Allocate) -> io::Result<()> {
        let size = self.file.metadata()?.len();
        let end = offset.saturating_add(len);
        match how {
            Allocate::Extend | Allocate::ZeroRange if end > size => self.file.set_len(end)?,
            _ => {}
        }
        match how {
            Allocate::Extend | Allocate::KeepSize => Ok(()),
            Allocate::PunchHole | Allocate::ZeroRange | Allocate::ZeroRangeKeepSize => {
                let zeros = vec![0; 64 << 10];
                let mut at = offset;
                while at < end.min(size) {
                    let piece = (end.min(size) - at).min(zeros.len() as u64);
                    self.file.write_all_at(&zeros[..piece as usize], at)?;
                    at += piece;
                }
                Ok(())
            }
        }
    }

    /// Gives it the name that it has in the volume, or, if that is taken, one with its number.
    fn name(self, dir: &Path, fid: Fid, paths: &Paths) -> io::Result<Saved> {
        let Way { from, names, .. } = paths.way(fid);
        let mut below = match from {
            None => PathBuf::new(),
            Some(from) => PathBuf::from(format!("inode-{}", from.ino.0)),
        };
        below.extend(names.iter().map(|name| OsStr::from_bytes(name.as_bytes())));
        let by_number = || PathBuf::from(format!("inode-{}-{}", fid.ino.0, fid.generation));
        let tried = [below, by_number()].into_iter().find_map(|below| self.name_below(dir, &below).ok());
        let file = tried.unwrap_or_else(|| self.path.clone());
        Ok(Saved { file, held: self.held, whole: self.whole })
    }

    fn name_below(&self, dir: &Path, below: &Path) -> io::Result<PathBuf> {
        let to = dir.join(below);
        if let Some(above) = to.parent() {
            DirBuilder::new().recursive(true).mode(0o700).create(above)?;
        }
        // Unlike rename(2), this replaces nothing.
        fs::hard_link(&self.path, &to)?;
        fs::remove_file(&self.path)?;
        Ok(to)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use soda_oplog::Fate;
    use soda_oplog::world::{fid, new, place, record};

    fn write(ino: u64, offset: u64, data: &'static [u8]) -> Change {
        let data = data.into();
        Change::Write { fid: fid(ino), offset, data, kill_suid_sgid: false }
    }

    fn create(directory: u64, number: u8, ino: u64, kind: FileKind) -> Change {
        Change::Create { place: place(fid(directory), number), fid: fid(ino), new: new(kind) }
    }

    #[test]
    fn files_are_written_out_as_the_log_left_them() {
        let name = |number| place(fid(1), number).name.to_string();
        let size = |ino, size| Change::SetAttr {
            fid: fid(ino),
            set: SetAttr { size: Some(size), ..SetAttr::default() },
        };
        let changes = [
            create(1, 0, 2, FileKind::Directory),
            create(2, 1, 3, FileKind::File),
            write(3, 0, b"first"),
            write(3, 2, b"XY"),
            // It was there before.
            write(9, 4, b"tail"),
            size(9, 7),
            Change::Allocate { fid: fid(9), offset: 5, len: 1, how: Allocate::PunchHole },
            create(1, 4, 5, FileKind::File),
            write(5, 0, b"nobody sees it"),
            Change::Unlink { place: place(fid(1), 4), fid: fid(5), then: Fate::Gone },
            create(1, 4, 6, FileKind::File),
        ];
        let records: Vec<Record> = (1..).zip(changes).map(|(lsn, change)| record(lsn, change)).collect();
        let dir = tempfile::tempdir().unwrap();
        let to = dir.path().join("saved");
        let mut saved = save(records.iter(), &to, Paths::default()).unwrap();
        saved.sort_by(|a, b| a.file.cmp(&b.file));
        let of = |path: PathBuf, held, whole| Saved { file: to.join(path), held, whole };
        let (below, empty) = (PathBuf::from(name(0)).join(name(1)), PathBuf::from(name(4)));
        let mut expected = vec![
            of("inode-9".into(), 4, Whole::No),
            of(below.clone(), 7, Whole::Yes),
            of(empty.clone(), 0, Whole::Yes),
        ];
        expected.sort_by(|a, b| a.file.cmp(&b.file));
        assert_eq!(saved, expected);
        assert_eq!(fs::read(to.join(below)).unwrap(), b"fiXYt");
        assert_eq!(fs::read(to.join("inode-9")).unwrap(), b"\0\0\0\0t\0i");
        assert_eq!(fs::read(to.join(empty)).unwrap(), b"");
        let left = fs::read_dir(&to)
            .unwrap()
            .filter(|entry| entry.as_ref().is_ok_and(|entry| entry.file_name().as_bytes().starts_with(b".")));
        assert_eq!(left.count(), 0);
        // With what the server says of it; a name that the log has given to another one is not taken.
        let at = |number: u8| soda_protocol::Whereabouts::At(vec![place(fid(1), number).name]);
        for (number, file) in [(7, name(7)), (4, "inode-9-0".into())] {
            let to = dir.path().join(format!("named{number}"));
            let paths = Paths::with(std::collections::HashMap::from([(fid(9), at(number))]));
            save(records.iter(), &to, paths).unwrap();
            assert_eq!(fs::read(to.join(file)).unwrap(), b"\0\0\0\0t\0i");
            assert_eq!(fs::read(to.join(name(4))).unwrap(), b"");
        }
        // Nothing that is there is written over.
        assert_eq!(
            save(records.iter(), &to, Paths::default()).unwrap_err().kind(),
            io::ErrorKind::AlreadyExists
        );
    }
}
