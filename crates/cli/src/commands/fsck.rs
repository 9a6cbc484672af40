//! `soda fsck`: check, and repair, a data directory that no server uses.

use crate::args::FsckArgs;
use crate::commands::{print, print_json};
use crate::error::CliError;
use crate::scratch::Scratch;
use crate::units::{count, show_size};
use indicatif::{ProgressBar, ProgressStyle};
use serde::Serialize;
use soda_server::{DamagedRecord, check_records, random};
use soda_storage::{DataDirectory, StorageError, StoreOptions};
use soda_types::Timestamp;
use soda_volume::fsck::{DataCheck, FsckOptions, FsckProgress, Phase, Problem, Repair, Report, fsck};
use std::time::{SystemTime, UNIX_EPOCH};

/// Not `soda-fsck.`: older versions, which may be at work, do not lock theirs.
const SCRATCH: &str = "soda-look.";

#[derive(Debug, Serialize)]
struct Summary {
    inodes: u64,
    names: u64,
    extents: u64,
    chunks: u64,
    found: Vec<Found>,
    repaired: usize,
    left: Vec<Found>,
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
struct Found {
    problem: String,
    inode: Option<u64>,
    /// One of its paths, from the root of the volume.
    path: Option<String>,
    /// Bytes of the file: from, and up to.
    range: Option<(u64, u64)>,
}

pub(crate) fn run(arguments: &FsckArgs) -> Result<(), CliError> {
    let path = &arguments.data;
    if !path.is_dir() {
        return Err(CliError::Failed(format!("{} is not a data directory of `soda serve`", path.display())));
    }
    let store_options = StoreOptions::default();
    // Who only looks gets a place for what the engine writes when it opens its files.
    let shadow = match arguments.repair {
        true => None,
        false => Some(
            Scratch::new_in(&std::env::temp_dir(), SCRATCH).map_err(CliError::io("a temporary directory"))?,
        ),
    };
    let in_place = |text: String| match &shadow {
        Some(shadow) => text.replace(&*shadow.path().to_string_lossy(), &path.to_string_lossy()),
        None => text,
    };
    let opened = match &shadow {
        Some(shadow) => DataDirectory::open_to_look(path, shadow.path(), store_options.clone()),
        None => DataDirectory::open_existing(path, store_options.clone()),
    };
    let mut lost_changes = None;
    let opened = match opened {
        Err(StorageError::DamagedJournal { .. }) if arguments.discard_lost => {
            let lost = DataDirectory::accept_lost_changes(path);
            lost_changes = lost.map_err(|error| CliError::Failed(error.to_string()))?.map(cut_off);
            // What follows may fail, and then nobody would hear of it.
            lost_changes.iter().for_each(|problem| eprintln!("soda: {problem}"));
            DataDirectory::open_existing(path, store_options)
        }
        Err(StorageError::NoData { .. }) if arguments.discard_lost => {
            DataDirectory::open_without_data(path, store_options)
        }
        opened => opened,
    };
    let directory = opened.map_err(|error| match error {
        StorageError::BadFormat { .. }
        | StorageError::NoMetadata { .. }
        | StorageError::NoData { .. }
        | StorageError::DamagedJournal { .. }
        | StorageError::DamagedMetadata { .. } => CliError::Damaged(in_place(error.to_string())),
        _ => CliError::Failed(in_place(error.to_string())),
    })?;
    let options = FsckOptions {
        repair: match (arguments.repair, arguments.discard_lost) {
            (false, _) => Repair::No,
            (true, false) => Repair::Yes,
            (true, true) => Repair::Discarding,
        },
        data: DataCheck::CheckSums,
        now: now(),
        // Mounts may have seen more than is left: what the repair makes must not be taken for that.
        branch: random().map(u64::from_le_bytes).map_err(CliError::io("a random number"))?,
    };
    let mut bar = Bar::new();
    let report =
        fsck(directory.meta.clone(), directory.data.clone(), options, &mut |progress| bar.show(progress));
    bar.finish();
    let report = report.map_err(|error| match directory.meta.damage() {
        Some(damage) => CliError::Damaged(in_place(damage.to_owned())),
        None => CliError::Failed(in_place(format!("the check of {} failed: {error}", path.display()))),
    })?;
    let of_server = check_records(&*directory.meta, arguments.repair);
    let of_server = of_server.map_err(|error| {
        CliError::Failed(in_place(format!("the check of {} failed: {error}", path.display())))
    })?;
    let mut summary = summary(&report, &of_server);
    if let Some(problem) = lost_changes {
        summary.found.insert(0, Found { problem, inode: None, path: None, range: None });
        summary.repaired += 1;
    }
    match arguments.json {
        true => print_json(&summary)?,
        false => print(&text(&summary))?,
    }
    match summary.left.len() {
        0 => Ok(()),
        left if arguments.repair
            && left == report.left.len()
            && report.left.iter().all(Problem::is_lost_data) =>
        {
            Err(CliError::Damaged(format!(
                "data in {} are lost: reading them goes on failing until they are overwritten or cut off. Restore the files \
                 from a copy, or have --repair --discard-lost make holes of them, which read as zeros",
                count(left as u64, "place")
            )))
        }
        left if arguments.repair => {
            Err(CliError::Damaged(format!("{} could not be repaired", count(left as u64, "problem"))))
        }
        left => Err(CliError::Damaged(format!(
            "{} left; --repair mends what can be mended (keep a copy of the directory first)",
            count(left as u64, "problem")
        ))),
    }
}

fn now() -> Timestamp {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    Timestamp::new(since.as_secs() as i64, since.subsec_nanos())
}

/// Of how many batches nothing is left.
fn cut_off(lost: impl Into<u64>) -> String {
    format!(
        "the journal was damaged: its last {} or more are lost, a copy is kept (.torn)",
        count(lost, "batch")
    )
}

fn summary(report: &Report, of_server: &[DamagedRecord]) -> Summary {
    let found = |problem: &Problem| Found {
        problem: problem.to_string(),
        inode: report.inode(problem).map(|ino| ino.0),
        path: report.path(problem).map(str::to_owned),
        range: problem.range().map(|range| (range.start, range.end)),
    };
    let found_of_server =
        |record: &DamagedRecord| Found { problem: record.to_string(), inode: None, path: None, range: None };
    Summary {
        inodes: report.inodes,
        names: report.names,
        extents: report.extents,
        chunks: report.chunks,
        found: report.problems.iter().map(found).chain(of_server.iter().map(found_of_server)).collect(),
        repaired: report.repaired + of_server.iter().filter(|record| record.is_mended).count(),
        left: report
            .left
            .iter()
            .map(found)
            .chain(of_server.iter().filter(|record| !record.is_mended).map(found_of_server))
            .collect(),
        lost_files: report.lost_files,
        lost_bytes: report.lost_bytes,
        unswept_bytes: report.unswept,
        reclaim_left: report.reclaim_left,
    }
}

fn text(summary: &Summary) -> String {
    let mut out = format!(
        "{}, {}, {}, {}\n",
        count(summary.inodes, "inode"),
        count(summary.names, "name"),
        count(summary.extents, "extent"),
        count(summary.chunks, "chunk")
    );
    if summary.unswept_bytes > 0 {
        out.push_str(&format!(
            "{} of data that nothing refers to, from the last crash: the server removes them when it starts\n",
            show_size(summary.unswept_bytes)
        ));
    }
    if summary.reclaim_left > 0 {
        out.push_str(&format!(
            "{} whose space is still being given back: the server goes on with it when it starts\n",
            count(summary.reclaim_left, "deleted file")
        ));
    }
    for Found { problem, path, .. } in &summary.found {
        let place = path.as_ref().map_or(String::new(), |path| format!("{path}: "));
        out.push_str(&format!("problem: {place}{problem}\n"));
    }
    if summary.lost_files > 0 {
        out.push_str(&format!(
            "lost: {} of {}, which read as zeros now\n",
            show_size(summary.lost_bytes),
            count(summary.lost_files, "file")
        ));
    }
    match (summary.found.len(), summary.left.len()) {
        (0, _) => out.push_str("clean\n"),
        (found, 0) => out.push_str(&format!("{}, all repaired\n", count(found as u64, "problem"))),
        (found, left) => out.push_str(&format!(
            "{}, {} repaired, {left} left\n",
            count(found as u64, "problem"),
            summary.repaired
        )),
    }
    out
}

/// A bar on a terminal, nothing elsewhere.
struct Bar {
    bar: ProgressBar,
    phase: Option<Phase>,
}

impl Bar {
    fn new() -> Bar {
        // Draws to standard error, and only if that is a terminal.
        let bar = ProgressBar::new(0);
        let style = ProgressStyle::with_template("{msg:12} {wide_bar} {pos}/{len} {eta}");
        Bar { bar: style.map_or(bar.clone(), |style| bar.with_style(style)), phase: None }
    }

    fn show(&mut self, progress: FsckProgress) {
        if self.phase != Some(progress.phase) {
            self.phase = Some(progress.phase);
            self.bar.set_message(format!("{:?}", progress.phase));
            self.bar.reset();
        }
        if let Some(total) = progress.total {
            self.bar.set_length(total);
        }
        self.bar.set_position(progress.done);
    }

    fn finish(&self) {
        self.bar.finish_and_clear();
    }
}
