//! `soda fsck`: check, and repair, a data directory that no server uses.

mod report;

use crate::args::FsckArgs;
use crate::commands::{print, print_json};
use crate::error::CliError;
use crate::scratch::Scratch;
use crate::units::count;
use indicatif::{ProgressBar, ProgressStyle};
use report::Summary;
use soda_server::{RecordError, check_records, random, settle_lost_records};
use soda_storage::{DamagedMetadata, DataDirectory, Salvaged, StorageError, StoreOptions};
use soda_types::Timestamp;
use soda_volume::fsck::{
    DataCheck, FsckOptions, FsckProgress, Phase, Problem, Repair, fsck, fsck_salvaged, runs_begun,
};
use std::time::{SystemTime, UNIX_EPOCH};

/// Not `soda-fsck.`: older versions, which may be at work, do not lock theirs.
const SCRATCH: &str = "soda-look.";

pub(crate) fn run(arguments: &FsckArgs) -> Result<(), CliError> {
    let path = &arguments.data;
    if !path.is_dir() {
        return Err(CliError::Failed(format!("{} is not a data directory of `soda serve`", path.display())));
    }
    let damaged = DataDirectory::damaged_metadata(path).map_err(|error| refused(error, |text| text))?;
    match damaged {
        Some(damaged) => salvage(arguments, damaged),
        None => check(arguments),
    }
}

/// Checks a directory whose metadata can be read.
fn check(arguments: &FsckArgs) -> Result<(), CliError> {
    let path = &arguments.data;
    let store_options = StoreOptions::default();
    // Who only looks gets a place for what the engine writes when it opens its files.
    let shadow = match arguments.repair {
        true => None,
        false => Some(scratch()?),
    };
    let in_place = |text: String| match &shadow {
        Some(shadow) => text.replace(&*shadow.path().to_string_lossy(), &path.to_string_lossy()),
        None => text,
    };
    let opened = match &shadow {
        Some(shadow) => DataDirectory::open_to_look(path, shadow.path(), store_options.clone()),
        None => DataDirectory::open_existing(path, store_options.clone()),
    };
    let mut lost_batches = None;
    let opened = match opened {
        Err(StorageError::DamagedJournal { .. }) if arguments.discard_lost => {
            let lost = DataDirectory::accept_lost_changes(path);
            lost_batches = lost.map_err(|error| CliError::Failed(error.to_string()))?;
            // What follows may fail, and then nobody would hear of it.
            lost_batches.iter().for_each(|lost| eprintln!("soda: {}", cut_off(*lost)));
            DataDirectory::open_existing(path, store_options)
        }
        Err(StorageError::NoData { .. }) if arguments.discard_lost => {
            DataDirectory::open_without_data(path, store_options)
        }
        opened => opened,
    };
    let directory = opened.map_err(|error| refused(error, in_place))?;
    let mut bar = Bar::new();
    let options = options(match (arguments.repair, arguments.discard_lost) {
        (false, _) => Repair::No,
        (true, false) => Repair::Yes,
        (true, true) => Repair::Discarding,
    })?;
    let report =
        fsck(directory.meta.clone(), directory.data.clone(), options, &mut |progress| bar.show(progress));
    bar.finish();
    let failed = |error: &dyn std::fmt::Display| {
        CliError::Failed(in_place(format!("the check of {} failed: {error}", path.display())))
    };
    let report = report.map_err(|error| match directory.meta.damage() {
        Some(damage) => CliError::Damaged(in_place(damage.to_owned())),
        None => failed(&error),
    })?;
    let mut of_server = Vec::new();
    if arguments.discard_lost {
        let runs = runs_begun(&*directory.meta).map_err(|error| failed(&error))?;
        let lost = Salvaged { lost_batches, ..Salvaged::default() };
        of_server = settle_lost_records(&*directory.meta, &lost, runs).map_err(|error| failed(&error))?;
    }
    of_server.extend(check_records(&*directory.meta, arguments.repair).map_err(|error| failed(&error))?);
    let mut summary = Summary::new(&report, &of_server, None);
    if let Some(lost) = lost_batches {
        summary.journal_was_cut(cut_off(lost));
    }
    say(arguments, &summary)?;
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
        left => Err(left_over(arguments, left)),
    }
}

/// Checks what can be read of damaged metadata; puts it into their place where that is wanted, or nothing is lost by it.
fn salvage(arguments: &FsckArgs, damaged: DamagedMetadata) -> Result<(), CliError> {
    let path = &arguments.data;
    let has_all_records = damaged.has_all_records();
    let is_to_stay = arguments.repair && (arguments.discard_lost || has_all_records);
    let shadow = scratch()?;
    let salvage = match is_to_stay {
        true => damaged.salvage(&StoreOptions::default()),
        false => damaged.salvage_to_look(shadow.path(), StoreOptions::default()),
    };
    let salvage = salvage.map_err(|error| refused(error, |text| text))?;
    let options = options(match (is_to_stay, arguments.discard_lost) {
        (false, _) => Repair::No,
        (true, false) => Repair::Yes,
        (true, true) => Repair::Discarding,
    })?;
    let failed = |error: &dyn std::fmt::Display| {
        CliError::Damaged(format!(
            "the metadata of {} are damaged, and what can be read of them is not enough: {error}. Restore the directory from a \
             copy; nothing was changed",
            path.display()
        ))
    };
    let mut bar = Bar::new();
    let (meta, data) = (salvage.directory.meta.clone(), salvage.directory.data.clone());
    let report = fsck_salvaged(meta, data, options, &salvage.found, &mut |progress| bar.show(progress));
    bar.finish();
    let report = report.map_err(|error| failed(&error))?;
    // Also where it does not stay: to know what would become of it.
    let settle = || -> Result<_, RecordError> {
        let meta = &*salvage.directory.meta;
        let runs = runs_begun(meta).unwrap_or_default();
        let mut of_server = settle_lost_records(meta, &salvage.found, runs)?;
        of_server.extend(check_records(meta, is_to_stay)?);
        Ok(of_server)
    };
    let of_server = settle().map_err(|error| failed(&error))?;
    let mut summary = Summary::new(&report, &of_server, Some(&salvage.found));
    if let Some(lost) = salvage.found.lost_batches {
        summary.journal_was_cut(cut_off(lost));
    }
    if is_to_stay && (arguments.discard_lost || salvage.found.lost_batches.is_none()) {
        let kept = salvage.install(&today()).map_err(|error| CliError::Failed(error.to_string()))?;
        summary.kept_at(kept.display().to_string());
        say(arguments, &summary)?;
        return match summary.left.len() {
            0 => Ok(()),
            left => Err(left_over(arguments, left)),
        };
    }
    say(arguments, &summary)?;
    let places = count(summary.damaged_places() as u64, "place");
    if has_all_records && salvage.found.lost_batches.is_none() {
        return Err(CliError::Damaged(format!(
            "the metadata are damaged in {places}, but no record is lost; nothing was changed. --repair makes new ones of \
             them, and keeps the damaged ones beside them; or restore {} from a copy",
            path.display()
        )));
    }
    Err(CliError::Damaged(format!(
        "the metadata are damaged in {places}; nothing was changed. Restore {} from a copy. Where there is none, --repair \
         --discard-lost makes new metadata of all that can be read, and keeps the damaged ones beside them",
        path.display()
    )))
}

fn scratch() -> Result<Scratch, CliError> {
    Scratch::new_in(&std::env::temp_dir(), SCRATCH).map_err(CliError::io("a temporary directory"))
}

fn options(repair: Repair) -> Result<FsckOptions, CliError> {
    Ok(FsckOptions {
        repair,
        data: DataCheck::CheckSums,
        now: now(),
        // Mounts may have seen more than is left: what the repair makes must not be taken for that.
        branch: random().map(u64::from_le_bytes).map_err(CliError::io("a random number"))?,
    })
}

fn say(arguments: &FsckArgs, summary: &Summary) -> Result<(), CliError> {
    match arguments.json {
        true => print_json(summary),
        false => print(&summary.text()),
    }
}

fn left_over(arguments: &FsckArgs, left: usize) -> CliError {
    let left = count(left as u64, "problem");
    CliError::Damaged(match arguments.repair {
        true => format!("{left} could not be repaired"),
        false => {
            format!("{left} left; --repair mends what can be mended (keep a copy of the directory first)")
        }
    })
}

/// A directory that does not open. `in_place`: names the place that is meant.
fn refused(error: StorageError, in_place: impl Fn(String) -> String) -> CliError {
    match error {
        StorageError::BadFormat { .. }
        | StorageError::NoMetadata { .. }
        | StorageError::NoData { .. }
        | StorageError::DamagedJournal { .. }
        | StorageError::DamagedMetadata { .. } => CliError::Damaged(in_place(error.to_string())),
        _ => CliError::Failed(in_place(error.to_string())),
    }
}

fn now() -> Timestamp {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    Timestamp::new(since.as_secs() as i64, since.subsec_nanos())
}

/// As part of a file's name.
fn today() -> String {
    let seconds = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
    soda_lab::machine::date(seconds).chars().take_while(|letter| *letter != ' ').collect()
}

/// Of how many batches nothing is left.
fn cut_off(lost: u64) -> String {
    format!(
        "the journal was damaged: its last {} or more are lost, a copy is kept (.torn)",
        count(lost, "batch")
    )
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
