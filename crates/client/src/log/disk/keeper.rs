//! Logs that are kept from the beginning: of what is lost, for `recover`.

use super::inodes_of;
use super::place::{self, Note};
use soda_oplog::segments::{Entry, Header, Safety, SegmentError, Segments};
use soda_oplog::{Lsn, Record};
use soda_types::{Fid, Version};
use std::path::{Path, PathBuf};

/// So much is handed to the operating system at a time, bytes as [`soda_oplog::Change::weight`] counts them.
const PIECE: u64 = 4 << 20;

/// Keeps what a session has lost.
#[derive(Debug)]
pub(crate) struct Keeper {
    /// The cache directory, or what has its layout.
    pub(super) dir: PathBuf,
    /// Of the client, for people.
    pub(super) name: String,
    pub(super) header: Header,
}

impl Keeper {
    pub(crate) fn new(dir: &Path, name: &str, header: Header) -> Keeper {
        Keeper { dir: dir.to_owned(), name: name.to_owned(), header }
    }

    /// Writes these records, in ascending order, into a kept log of their own; the disk has it when this returns. Blocks as long
    /// as that takes. `found_at`: the version of an inode that the server had when a record was made, as far as that is known.
    ///
    /// # Errors
    /// It cannot be written; then nothing is left of it.
    pub(crate) fn keep(
        &self,
        records: &[Record],
        found_at: impl Fn(Fid, Lsn) -> Option<Version>,
        why: &str,
    ) -> Result<PathBuf, SegmentError> {
        let failed = |source| SegmentError::Io { path: self.dir.clone(), source };
        let dir = place::new_kept(&self.dir, &Note::new(&self.name, why)).map_err(failed)?;
        match self.fill(&dir, records, found_at) {
            Ok(()) => Ok(dir),
            Err(error) => {
                let _ = std::fs::remove_dir_all(&dir);
                Err(error)
            }
        }
    }

    fn fill(
        &self,
        dir: &Path,
        records: &[Record],
        found_at: impl Fn(Fid, Lsn) -> Option<Version>,
    ) -> Result<(), SegmentError> {
        // Of several files, too, the disk has each before this returns.
        let mut segments = Segments::create(dir, self.header.clone(), Safety::PowerCut)?;
        let mut unwritten = 0;
        for record in records {
            let found = |fid| Some((fid, found_at(fid, record.lsn)?));
            for (fid, version) in inodes_of(&record.change).filter_map(found) {
                segments.append(&Entry::Told { fid, version });
            }
            segments.append(&Entry::Record(record.clone()));
            unwritten += record.change.weight();
            if unwritten >= PIECE {
                segments.write()?;
                unwritten = 0;
            }
        }
        segments.sync()?;
        place::sync_kept(dir).map_err(|source| SegmentError::Io { path: dir.to_owned(), source })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use soda_oplog::{Change, segments};
    use soda_protocol::{OpId, SessionKey};
    use soda_types::{ClientId, Ino, Sequence, SessionId, Slot, Timestamp, VolumeId};
    use std::fs;
    use std::os::unix::fs::PermissionsExt;

    fn fid() -> Fid {
        Fid::new(VolumeId(1), Ino(2))
    }

    fn keeper(dir: &Path) -> Keeper {
        let header = Header {
            server: "here".to_owned(),
            volume: "main".to_owned(),
            client: ClientId([1; 16]),
            session: SessionKey { session: SessionId(1), secret: [2; 16] },
            digest: OpId { slot: Slot(3), sequence: Sequence(4) },
            slots: 2,
        };
        Keeper::new(dir, "host:/mnt", header)
    }

    fn write(lsn: u64, bytes: usize) -> Record {
        let data = vec![lsn as u8; bytes].into();
        let change = Change::Write { fid: fid(), offset: lsn << 20, data, kill_suid_sgid: false };
        Record { lsn: Lsn(lsn), at: Timestamp::new(1, 0), change }
    }

    /// Every path below.
    fn all_below(dir: &Path) -> Vec<PathBuf> {
        let mut all = Vec::new();
        for entry in fs::read_dir(dir).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                all.extend(all_below(&path));
            }
            all.push(path);
        }
        all
    }

    #[test]
    fn what_is_kept_is_a_log_like_any_other_and_nobody_elses_business() {
        let state = tempfile::tempdir().unwrap();
        let dir = state.path().join("not/there/yet");
        let keeper = keeper(&dir);
        // Of several files.
        let records: Vec<Record> = (7..60).map(|lsn| write(lsn, 1 << 20)).collect();
        let found_at = |_, lsn: Lsn| (lsn < Lsn(9)).then_some(Version(lsn.0 * 10));
        let kept = keeper.keep(&records, found_at, "it is over").unwrap();
        assert_eq!(place::kept(&dir).unwrap(), std::slice::from_ref(&kept));
        let note = Note::read(&kept);
        assert_eq!((note.client.as_str(), note.why.as_str()), ("host:/mnt", "it is over"));
        let found = segments::read(&kept).unwrap().unwrap();
        assert!(found.damage.is_none() && found.header == keeper.header, "{:?}", found.header);
        assert!(found.records().into_iter().eq(&records));
        let before = [7, 8, 9].map(|lsn| found.version_before(fid(), Lsn(lsn)));
        assert_eq!(before, [70, 80, 80].map(|version| Some(Version(version))));
        let all = all_below(&state.path().join("not"));
        assert!(all.iter().filter(|path| path.extension().is_some_and(|kind| kind == "log")).count() > 2);
        for path in all {
            let mode = fs::metadata(&path).unwrap().permissions().mode() & 0o777;
            assert_eq!(mode, if path.is_dir() { 0o700 } else { 0o600 }, "{}", path.display());
        }
        // A second one of the same second.
        let other = keeper.keep(&[write(1, 1)], |_, _| None, "once more").unwrap();
        assert_eq!((other != kept, place::kept(&dir).unwrap().len()), (true, 2));
    }

    #[test]
    fn of_what_cannot_be_kept_nothing_is_left() {
        let state = tempfile::tempdir().unwrap();
        let file = state.path().join("file");
        fs::write(&file, "x").unwrap();
        keeper(&file).keep(&[write(1, 1)], |_, _| None, "it is over").unwrap_err();
        keeper(&file.join("below")).keep(&[write(1, 1)], |_, _| None, "it is over").unwrap_err();
        assert_eq!(fs::read_dir(state.path()).unwrap().count(), 1);
    }
}
