//! How far a kept log has been applied: kept beside it, so that who was interrupted, or what failed, can be gone on with. Nothing
//! is written into the log itself.
//!
//! A file of lines, each appended when it is so:
//!
//! ```text
//! try 7                          this record is about to be carried out
//! 1 900 3 1001 4 12              an inode has become another one: volume, inode, generation, inode now, generation now, version
//! done 7                         the server has done it
//! over 7                         the server's disk has it: it is not needed any more
//! lost 7                         the server has lost it
//! ```

use soda_protocol::Lsn;
use soda_types::{Fid, Ino, Version};
use std::collections::{BTreeSet, HashMap};
use std::fmt::Write as _;
use std::fs::{self, File};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

/// In the log's directory.
const NAME: &str = "reached";

/// What an inode of the log has become.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Reached {
    /// Its number now: another one if the log made it.
    pub(super) now: Fid,
    /// The version that we have brought it to.
    pub(super) version: Version,
}

/// How far it has been applied.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub(super) struct Progress {
    pub(super) reached: HashMap<Fid, Reached>,
    /// What the server has done.
    pub(super) done: BTreeSet<Lsn>,
    /// What is not needed any more.
    pub(super) over: BTreeSet<Lsn>,
    /// It may have been done, and nobody was there to note it.
    pub(super) tried: Option<Lsn>,
}

impl Progress {
    /// What is not there, or is no such line, is left out: then what was changed counts as changed by somebody else.
    pub(super) fn read(dir: &Path) -> Progress {
        let text = fs::read_to_string(dir.join(NAME)).unwrap_or_default();
        let mut progress = Progress::default();
        // Of a line that was not finished nobody knows what it would have been.
        let whole = text.rfind('\n').map_or("", |end| &text[..end]);
        whole.lines().for_each(|line| progress.add(line));
        progress
    }

    fn add(&mut self, line: &str) {
        let of = |word| line.strip_prefix(word).and_then(|number| number.parse().ok()).map(Lsn);
        if let Some(lsn) = of("try ") {
            self.tried = Some(lsn);
        } else if let Some(lsn) = of("done ") {
            self.done.insert(lsn);
            self.tried.take_if(|tried| *tried == lsn);
        } else if let Some(lsn) = of("over ") {
            self.over.insert(lsn);
        } else if let Some(lsn) = of("lost ") {
            self.done.remove(&lsn);
        } else if let Some((fid, reached)) = parse(line) {
            self.reached.insert(fid, reached);
        }
    }

    fn text(&self) -> String {
        let mut text = String::new();
        self.reached.iter().for_each(|(fid, reached)| add_reached(&mut text, *fid, *reached));
        self.done.iter().for_each(|lsn| add(&mut text, "done", *lsn));
        self.over.iter().for_each(|lsn| add(&mut text, "over", *lsn));
        self.tried.iter().for_each(|lsn| add(&mut text, "try", *lsn));
        text
    }
}

/// Writes down how far it comes.
#[derive(Debug)]
pub(super) struct Notes(File);

impl Notes {
    /// Goes on with what was noted before.
    pub(super) fn begin(dir: &Path, before: &Progress) -> io::Result<Notes> {
        let new = dir.join(format!("{NAME}.new"));
        let mut file = File::options().create(true).write(true).truncate(true).mode(0o600).open(&new)?;
        file.write_all(before.text().as_bytes())?;
        file.sync_all()?;
        fs::rename(new, dir.join(NAME))?;
        Ok(Notes(file))
    }

    pub(super) fn note_tried(&mut self, lsn: Lsn) -> io::Result<()> {
        let mut text = String::new();
        add(&mut text, "try", lsn);
        self.0.write_all(text.as_bytes())
    }

    /// At once: whoever reads it finds all of it or nothing.
    pub(super) fn note_done(&mut self, lsn: Lsn, reached: &[(Fid, Reached)]) -> io::Result<()> {
        let mut text = String::new();
        reached.iter().for_each(|(fid, reached)| add_reached(&mut text, *fid, *reached));
        add(&mut text, "done", lsn);
        self.0.write_all(text.as_bytes())
    }

    /// The server has lost what it had done of these. How far the inodes that they touch have come nobody knows, so they are at
    /// no version: others may have brought them to the same one. On the disk when it returns.
    pub(super) fn note_lost(&mut self, lsns: &[Lsn], inodes: &[(Fid, Fid)]) -> io::Result<()> {
        let mut text = String::new();
        for (fid, now) in inodes {
            add_reached(&mut text, *fid, Reached { now: *now, version: Version(0) });
        }
        lsns.iter().for_each(|lsn| add(&mut text, "lost", *lsn));
        self.0.write_all(text.as_bytes())?;
        self.0.sync_all()
    }

    /// On the disk when it returns.
    pub(super) fn note_over(&mut self, lsns: &[Lsn]) -> io::Result<()> {
        let mut text = String::new();
        lsns.iter().for_each(|lsn| add(&mut text, "over", *lsn));
        self.0.write_all(text.as_bytes())?;
        self.0.sync_all()
    }
}

fn add(text: &mut String, word: &str, lsn: Lsn) {
    // Writing to memory does not fail.
    let _ = writeln!(text, "{word} {}", lsn.0);
}

fn add_reached(text: &mut String, fid: Fid, Reached { now, version }: Reached) {
    let (volume, ino, generation) = (fid.volume.0, fid.ino.0, fid.generation);
    let _ = writeln!(text, "{volume} {ino} {generation} {} {} {}", now.ino.0, now.generation, version.0);
}

fn parse(line: &str) -> Option<(Fid, Reached)> {
    let numbers: Vec<u64> = line.split(' ').map(|number| number.parse().ok()).collect::<Option<_>>()?;
    let [volume, ino, generation, ino_now, generation_now, version] = numbers[..] else { return None };
    let of = |ino, generation: u64| {
        let volume = soda_types::VolumeId(volume.try_into().ok()?);
        Some(Fid { volume, ino: Ino(ino), generation: generation.try_into().ok()? })
    };
    let now = of(ino_now, generation_now)?;
    Some((of(ino, generation)?, Reached { now, version: Version(version) }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use soda_types::VolumeId;

    fn fid(ino: u64) -> Fid {
        Fid { volume: VolumeId(1), ino: Ino(ino), generation: 3 }
    }

    #[test]
    fn what_was_noted_is_read_back_and_garbage_left_out() {
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(Progress::read(dir.path()), Progress::default());
        let mut notes = Notes::begin(dir.path(), &Progress::default()).unwrap();
        let five = (fid(5), Reached { now: fid(900), version: Version(7) });
        let six = (fid(6), Reached { now: fid(6), version: Version(u64::MAX) });
        notes.note_tried(Lsn(1)).unwrap();
        notes.note_done(Lsn(1), &[(fid(5), Reached { version: Version(1), ..five.1 })]).unwrap();
        notes.note_tried(Lsn(2)).unwrap();
        notes.note_done(Lsn(2), &[five, six]).unwrap();
        notes.note_over(&[Lsn(1)]).unwrap();
        notes.note_tried(Lsn(31)).unwrap();
        let expected = Progress {
            reached: HashMap::from([five, six]),
            done: BTreeSet::from([Lsn(1), Lsn(2)]),
            over: BTreeSet::from([Lsn(1)]),
            tried: Some(Lsn(31)),
        };
        assert_eq!(Progress::read(dir.path()), expected);
        let mut text = fs::read_to_string(dir.path().join(NAME)).unwrap();
        // The last one was about to be `done 31`, or 3, or 310.
        text.push_str("1 2 3\nx\n1 2 99999999999 4 5 6\ndone x\ndone 31");
        fs::write(dir.path().join(NAME), text).unwrap();
        assert_eq!(Progress::read(dir.path()), expected);
        let mut notes = Notes::begin(dir.path(), &expected).unwrap();
        notes.note_lost(&[Lsn(2)], &[(fid(6), fid(6))]).unwrap();
        let lost = Progress::read(dir.path());
        assert_eq!((lost.done, lost.reached[&fid(6)].version), (BTreeSet::from([Lsn(1)]), Version(0)));
        let mut notes = Notes::begin(dir.path(), &expected).unwrap();
        notes.note_done(Lsn(31), &[]).unwrap();
        let after = Progress::read(dir.path());
        assert_eq!((after.tried, after.done.len(), after.reached), (None, 3, expected.reached));
    }
}
