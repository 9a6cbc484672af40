//! A log file that does not fill the disk: what a mount's daemon logs for months lies in a file system in memory.

use std::fs::File;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

/// Bytes of the file. With the one before it, twice as much.
const LIMIT: u64 = 8 << 20;

/// Appends. At its limit the file is renamed to `NAME.old`, in place of the one before, and a new one begins.
#[derive(Debug)]
pub(crate) struct LogFile {
    path: PathBuf,
    file: File,
    len: u64,
    limit: u64,
}

impl LogFile {
    /// # Errors
    /// It cannot be opened or made.
    pub(crate) fn open(path: &Path) -> io::Result<LogFile> {
        LogFile::open_with(path, LIMIT)
    }

    /// Whether nothing was there when it was opened, and nothing is now.
    pub(crate) fn is_empty(&self) -> bool {
        self.len == 0
    }

    fn open_with(path: &Path, limit: u64) -> io::Result<LogFile> {
        // The process may go to another directory.
        let path = std::path::absolute(path)?;
        let file = append_to(&path)?;
        let len = file.metadata()?.len();
        Ok(LogFile { path, file, len, limit })
    }

    fn start_anew(&mut self) -> io::Result<()> {
        // A pipe or a device stays what it is.
        if !std::fs::symlink_metadata(&self.path)?.is_file() {
            return Ok(());
        }
        let mut old = self.path.clone().into_os_string();
        old.push(".old");
        std::fs::rename(&self.path, old)?;
        let file = append_to(&self.path)?;
        if is_same(&self.file, &io::stderr()) {
            rustix::stdio::dup2_stderr(&file)?;
        }
        self.file = file;
        Ok(())
    }
}

impl Write for LogFile {
    /// One log line at a time: it is not cut.
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        if self.len > 0 && self.len + line.len() as u64 > self.limit {
            self.len = 0;
            // Without a new file the old one goes on.
            let _ = self.start_anew();
        }
        self.file.write_all(line)?;
        self.len += line.len() as u64;
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.flush()
    }
}

fn append_to(path: &Path) -> io::Result<File> {
    File::options().create(true).append(true).open(path)
}

fn is_same(a: &impl std::os::fd::AsFd, b: &impl std::os::fd::AsFd) -> bool {
    let inode =
        |fd: std::os::fd::BorrowedFd<'_>| rustix::fs::fstat(fd).map(|stat| (stat.st_dev, stat.st_ino));
    matches!((inode(a.as_fd()), inode(b.as_fd())), (Ok(a), Ok(b)) if a == b)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_log_is_bounded_and_its_end_is_kept_in_whole_lines() {
        const LINES: usize = 1000;
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("log");
        for half in 0..2 {
            // Opened again, as by the next daemon.
            let mut log = LogFile::open_with(&path, 1000).unwrap();
            for number in 0..LINES / 2 {
                log.write_all(format!("line {}\n", half * LINES / 2 + number).as_bytes()).unwrap();
            }
        }
        let read = |name: &str| std::fs::read_to_string(dir.path().join(name)).unwrap();
        let (old, new) = (read("log.old"), read("log"));
        assert!(old.len() <= 1000 && new.len() <= 1000);
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 2);
        let kept: Vec<String> = old.lines().chain(new.lines()).map(str::to_owned).collect();
        let last: Vec<String> = (LINES - kept.len()..LINES).map(|number| format!("line {number}")).collect();
        assert_eq!(kept, last);
        assert!(kept.len() > 90, "{}", kept.len());
    }

    #[test]
    fn what_is_no_file_is_not_renamed() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("log");
        std::os::unix::fs::symlink("/dev/null", &path).unwrap();
        let mut log = LogFile::open_with(&path, 10).unwrap();
        for _ in 0..10 {
            log.write_all(b"a line\n").unwrap();
        }
        assert!(std::fs::symlink_metadata(&path).unwrap().is_symlink());
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 1);
    }
}
