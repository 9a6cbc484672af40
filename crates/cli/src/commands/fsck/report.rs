//! What `soda fsck` says, for people and for programs.

use crate::units::{count, show_size};
use serde::Serialize;
use soda_server::DamagedRecord;
use soda_storage::Salvaged;
use soda_volume::fsck::{PATHS_MAX, Problem, Report};

#[derive(Debug, Serialize)]
pub(super) struct Summary {
    inodes: u64,
    names: u64,
    extents: u64,
    chunks: u64,
    /// What of the metadata's files cannot be read: file, and keys where records are lost.
    damaged: Vec<String>,
    /// Where the damaged metadata are kept that new ones were made of.
    kept: Option<String>,
    pub(super) found: Vec<Found>,
    pub(super) repaired: usize,
    pub(super) left: Vec<Found>,
    /// Files, and bytes of them, that `--discard-lost` made holes.
    lost_files: u64,
    lost_bytes: u64,
    /// Bytes of chunks that the last crash left and the next start of the server removes.
    unswept_bytes: u64,
    /// Deleted files whose space the server still gives back.
    reclaim_left: u64,
}

/// A problem, and where it is, as far as it is somewhere.
#[derive(Debug, Serialize)]
pub(super) struct Found {
    pub(super) problem: String,
    inode: Option<u64>,
    /// One of its paths, from the root of the volume.
    path: Option<String>,
    /// All of them, up to some.
    paths: Vec<String>,
    /// Bytes of the file: from, and up to.
    range: Option<(u64, u64)>,
    /// What is lost there, where records of the metadata are.
    lost: Option<String>,
}

impl Found {
    /// One that is nowhere in the volume.
    pub(super) fn nowhere(problem: String) -> Found {
        Found { problem, inode: None, path: None, paths: Vec::new(), range: None, lost: None }
    }

    fn line(&self) -> String {
        let more = match self.paths.len() {
            PATHS_MAX.. => ", ...",
            _ => "",
        };
        let place = match &self.paths[..] {
            [] => String::new(),
            paths => format!("{}{more}: ", paths.join(", ")),
        };
        match &self.lost {
            Some(lost) => format!("lost: {place}{lost}\n"),
            None => format!("problem: {place}{}\n", self.problem),
        }
    }
}

impl Summary {
    /// `salvaged`: what the metadata were made of that were looked at, where others are damaged.
    pub(super) fn new(report: &Report, of_server: &[DamagedRecord], salvaged: Option<&Salvaged>) -> Summary {
        let found = |problem: &Problem| {
            let paths = report.paths(problem);
            Found {
                problem: problem.to_string(),
                inode: report.inode(problem).map(|ino| ino.0),
                path: paths.first().cloned(),
                paths: paths.to_vec(),
                range: problem.range().map(|range| (range.start, range.end)),
                lost: salvaged.and_then(|_| problem.loss()),
            }
        };
        let of_record = |record: &DamagedRecord| Found::nowhere(record.to_string());
        let not_mended = of_server.iter().filter(|record| !record.is_mended);
        let damaged = |salvaged: &Salvaged| {
            let parts = salvaged.damaged.iter().cloned();
            parts.chain(salvaged.lost.iter().map(ToString::to_string)).collect()
        };
        Summary {
            inodes: report.inodes,
            names: report.names,
            extents: report.extents,
            chunks: report.chunks,
            damaged: salvaged.map(damaged).unwrap_or_default(),
            kept: None,
            found: report.problems.iter().map(found).chain(of_server.iter().map(of_record)).collect(),
            repaired: report.repaired + of_server.iter().filter(|record| record.is_mended).count(),
            left: report.left.iter().map(found).chain(not_mended.map(of_record)).collect(),
            lost_files: report.lost_files,
            lost_bytes: report.lost_bytes,
            unswept_bytes: report.unswept,
            reclaim_left: report.reclaim_left,
        }
    }

    /// How many of the metadata's files, or parts of them, are damaged.
    pub(super) fn damaged_places(&self) -> usize {
        self.damaged.len()
    }

    /// New metadata are in the place of the damaged ones, which are kept there.
    pub(super) fn kept_at(&mut self, kept: String) {
        self.kept = Some(kept);
    }

    /// That a journal was cut, which was before all else.
    pub(super) fn journal_was_cut(&mut self, problem: String) {
        self.found.insert(0, Found::nowhere(problem));
        self.repaired += 1;
    }

    pub(super) fn text(&self) -> String {
        let mut out = format!(
            "{}, {}, {}, {}\n",
            count(self.inodes, "inode"),
            count(self.names, "name"),
            count(self.extents, "extent"),
            count(self.chunks, "chunk")
        );
        if self.unswept_bytes > 0 {
            out.push_str(&format!(
                "{} of data that nothing refers to, from the last crash: the server removes them when it starts\n",
                show_size(self.unswept_bytes)
            ));
        }
        if self.reclaim_left > 0 {
            out.push_str(&format!(
                "{} whose space is still being given back: the server goes on with it when it starts\n",
                count(self.reclaim_left, "deleted file")
            ));
        }
        self.damaged.iter().for_each(|damaged| out.push_str(&format!("damaged: {damaged}\n")));
        self.found.iter().for_each(|found| out.push_str(&found.line()));
        if let Some(kept) = &self.kept {
            out.push_str(&format!(
                "new metadata have all that could be read. The damaged ones are kept as {kept}: remove that directory \
                 when nothing is missed\n"
            ));
        }
        if self.lost_files > 0 {
            out.push_str(&format!(
                "lost: {} of {}, which read as zeros now\n",
                show_size(self.lost_bytes),
                count(self.lost_files, "file")
            ));
        }
        match (self.found.len(), self.left.len()) {
            (0, _) if self.damaged.is_empty() => out.push_str("clean\n"),
            (0, _) => out.push_str("nothing is lost\n"),
            (found, 0) => out.push_str(&format!("{}, all repaired\n", count(found as u64, "problem"))),
            (found, left) => out.push_str(&format!(
                "{}, {} repaired, {left} left\n",
                count(found as u64, "problem"),
                self.repaired
            )),
        }
        out
    }
}
