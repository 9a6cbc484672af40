//! `soda recover`: logs of delayed writes that were not told to the server and will not be by themselves.

mod names;

use crate::args::{RecoverArgs, RecoverCommand, RecoverOne};
use crate::cache_dirs;
use crate::commands::{print, print_json, runtime};
use crate::error::CliError;
use crate::progress::Progress;
use crate::table::Table;
use crate::units::{count, show_duration, show_size};
use names::{Asked, ask};
use soda_client::recover::{
    self, Applied, KeptLog, KeptRecord, LogState, Named, Outcome, RecoverError, Saved, Whole,
};
use soda_client::{Client, ClientConfig, NoKernel, Retry};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// How long a server may be away while something is applied.
const PATIENCE: Duration = Duration::from_secs(30);

pub(crate) fn run(arguments: &RecoverArgs) -> Result<(), CliError> {
    let logs = kept(&arguments.cache_dir)?;
    match &arguments.command {
        RecoverCommand::Ls { json: true } => print_json(&logs),
        RecoverCommand::Ls { json: false } => print(&list_text(&logs, now())),
        RecoverCommand::Show { one, server, save: None } => show(find(&logs, one)?, one, server.as_deref()),
        RecoverCommand::Show { one, server, save: Some(dir) } => {
            save(find(&logs, one)?, one, server.as_deref(), dir)
        }
        RecoverCommand::Apply { one, server } => apply(find(&logs, one)?, one, server.as_deref()),
        RecoverCommand::Drop(one) => {
            let log = find(&logs, one)?;
            log.remove().map_err(failed)?;
            match one.json {
                true => print_json(log),
                false => {
                    print(&format!("{}: dropped, with {}\n", log.name, count(log.records as u64, "change")))
                }
            }
        }
    }
}

/// What is kept in these cache directories; in all that are known if none is named.
///
/// # Errors
/// One that was named cannot be read.
pub(crate) fn kept(named: &[PathBuf]) -> Result<Vec<KeptLog>, CliError> {
    // Where there is nothing nothing is kept; but who names it has something else in mind.
    if let Some(missing) = named.iter().find(|dir| !dir.is_dir()) {
        return Err(CliError::Failed(format!("{} is not there, or is no directory", missing.display())));
    }
    let dirs = if named.is_empty() { cache_dirs::known() } else { named.to_vec() };
    let mut logs = Vec::new();
    for dir in dirs {
        match recover::list(&dir) {
            Ok(found) => logs.extend(found),
            Err(error) if named.is_empty() => tracing::warn!(?dir, %error, "a cache directory is left out"),
            Err(error) => return Err(failed(error)),
        }
    }
    Ok(logs)
}

fn failed(error: RecoverError) -> CliError {
    CliError::Failed(error.to_string())
}

pub(crate) fn now() -> Duration {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default()
}

fn find<'a>(logs: &'a [KeptLog], wanted: &RecoverOne) -> Result<&'a KeptLog, CliError> {
    let named: Vec<&KeptLog> = logs.iter().filter(|log| log.name == wanted.name).collect();
    match named.as_slice() {
        [log] => Ok(log),
        [] => Err(CliError::Failed(format!(
            "no log {} is kept; `soda recover ls` lists them. One in another cache directory is found with --cache-dir DIR",
            wanted.name
        ))),
        several => {
            let dirs: Vec<String> = several.iter().map(|log| log.dir.display().to_string()).collect();
            let text = format!(
                "there are several logs {}: {}. Name the cache directory with --cache-dir DIR",
                wanted.name,
                dirs.join(", ")
            );
            Err(CliError::Failed(text))
        }
    }
}

fn list_text(logs: &[KeptLog], now: Duration) -> String {
    if logs.is_empty() {
        return "Nothing is kept, and nothing waits: all delayed writes of mounts that have ended were told, or were in no log \
                (without cache-dir a crash takes them).\n"
            .into();
    }
    let mut table = Table::new(["log", "state", "for", "volume", "mount", "changes", "size"]);
    for log in logs {
        table.row([
            log.name.clone(),
            state(log.state).into(),
            show_duration(Duration::from_secs(now.saturating_sub(log.kept_at).as_secs())),
            format!("{}/{}", log.server, log.volume),
            if log.client.is_empty() { "-".into() } else { log.client.clone() },
            log.records.to_string(),
            show_size(log.bytes),
        ]);
    }
    let mut out = table.to_string();
    for log in logs {
        out.push_str(&format!("\n{}: {}\n  in {}\n", log.name, log.why, log.dir.display()));
        if log.beyond_damage > 0 {
            let beyond = count(log.beyond_damage as u64, "change");
            out.push_str(&format!("  behind the damage: {beyond}, to be shown and saved only\n"));
        }
    }
    out
}

fn state(state: LogState) -> &'static str {
    match state {
        LogState::Kept => "kept",
        LogState::Waiting => "waits",
        LogState::LookedAfter => "in use",
    }
}

/// What is said when a mount begins with a cache directory in which others have left something.
pub(crate) fn warn_of_others(cache_dir: &Path) {
    for log in recover::list(cache_dir).unwrap_or_default() {
        if log.state == LogState::Waiting {
            eprintln!("soda: {}", waiting_text(&log));
        }
    }
}

fn waiting_text(log: &KeptLog) -> String {
    format!(
        "{}: {} of {}/{} {} there, which this server does not know of: mount that with this cache-dir, or see `soda recover ls`",
        log.dir.display(),
        count(log.records as u64, "delayed change"),
        log.server,
        log.volume,
        if log.records == 1 { "waits" } else { "wait" }
    )
}

/// The names that the server has for what the log does not name.
fn names_of_now(log: &KeptLog, server: Option<&str>) -> Result<Asked, CliError> {
    Ok(ask(server.unwrap_or(&log.server), log.unnamed().map_err(failed)?))
}

fn show(log: &KeptLog, wanted: &RecoverOne, server: Option<&str>) -> Result<(), CliError> {
    let asked = names_of_now(log, server)?;
    let records = log.named(&asked.names).show().map_err(failed)?;
    match wanted.json {
        true => print_json_beside(&records, &asked),
        false => print(&records_text(&records, &asked)),
    }
}

/// Who reads it hears elsewhere why there are no names.
fn print_json_beside(value: &impl serde::Serialize, asked: &Asked) -> Result<(), CliError> {
    if let Some(why) = &asked.why_not {
        eprintln!("soda: {}", names::not_asked_text(why));
    }
    print_json(value)
}

fn records_text(records: &[KeptRecord], asked: &Asked) -> String {
    let mut table = Table::new(["change", "operation", "path", ""]);
    for record in records {
        let (operation, path) = (record.operation.clone(), record.path.clone());
        table.row([record.lsn.0.to_string(), operation, path, detail_text(record)]);
    }
    format!("{table}{}", asked.text())
}

/// What else there is to say, and why it has no path.
fn detail_text(record: &KeptRecord) -> String {
    let detail = &record.detail;
    let why = match record.named {
        // The latter is said of all at once.
        Named::Log | Named::Server | Named::NotAsked => return detail.clone(),
        Named::Gone => "the server does not have the inode any more",
        Named::NotFound => "the server has the inode, and found no name of it in time",
    };
    if detail.is_empty() { why.into() } else { format!("{detail}; {why}") }
}

/// Writes out the files in it.
fn save(log: &KeptLog, wanted: &RecoverOne, server: Option<&str>, dir: &Path) -> Result<(), CliError> {
    let asked = names_of_now(log, server)?;
    let saved = log.named(&asked.names).save(dir).map_err(failed)?;
    match wanted.json {
        true => print_json_beside(&saved, &asked),
        false => print(&saved_text(&saved, &asked)),
    }
}

fn saved_text(saved: &[Saved], asked: &Asked) -> String {
    if saved.is_empty() {
        return "It holds nothing of any file.\n".into();
    }
    let mut table = Table::new(["file", "written", ""]);
    for Saved { file, held, whole } in saved {
        let rest = match whole {
            Whole::Yes => "",
            Whole::No => "what was there before is zeros",
        };
        table.row([file.display().to_string(), show_size(*held), rest.into()]);
    }
    format!("{table}{}", asked.text())
}

fn apply(log: &KeptLog, wanted: &RecoverOne, server: Option<&str>) -> Result<(), CliError> {
    let server = server.unwrap_or(&log.server);
    let mut config = ClientConfig::new(server, &log.volume);
    config.name = format!("{}:recover", rustix::system::uname().nodename().to_string_lossy());
    config.retry = Retry::Soft { timeout: PATIENCE };
    let (log, report, asked) = runtime()?.block_on(async {
        let client: Arc<Client> = Client::connect(config, Box::new(NoKernel)).await?;
        // Not before the server answers: until then a mount could still tell it.
        let log = log.put_aside().map_err(failed)?;
        // Before it moves any.
        let asked = names_of_now(&log, Some(server))?;
        let what = format!("{} to be applied", count(log.records as u64, "change"));
        let mut progress = Progress::new(what, log.records as u64);
        let named = log.named(&asked.names);
        let report = named.apply(&client, |done| progress.show(done as u64, None)).await.map_err(failed);
        drop(progress);
        client.shutdown().await;
        report.map(|report| (log, report, asked))
    })?;
    match wanted.json {
        true => print_json_beside(&report, &asked)?,
        false => print(&report_text(&report, &asked))?,
    }
    match left_text(&log, &report) {
        None => Ok(()),
        Some(left) => Err(CliError::Failed(left)),
    }
}

/// What is still in the log, and what can be done with it.
fn left_text(log: &KeptLog, report: &[Applied]) -> Option<String> {
    let left = report.iter().filter(|applied| !applied.outcome.is_done()).count() as u64;
    let name = &log.name;
    match (&log.damage, left) {
        (None, 0) => None,
        (None, left) => Some(format!(
            "{} not applied: kept as {name}, to be applied again or dropped",
            count(left, "change")
        )),
        (Some(damage), left) => Some(format!(
            "the log is damaged ({damage}): {} before the damage and {} behind it are left, those to be shown only \
             (`soda recover show {name}`, with --save DIR for the data); `soda recover drop {name}` deletes it",
            count(left, "change"),
            count(log.beyond_damage as u64, "change")
        )),
    }
}

/// What was not done, and how much was.
fn report_text(report: &[Applied], asked: &Asked) -> String {
    let mut table = Table::new(["change", "operation", "path", "why not"]);
    for Applied { record, outcome } in report {
        let why = match outcome {
            Outcome::Done | Outcome::Already => continue,
            Outcome::Conflict(why) => why.clone(),
            Outcome::Failed(error) => error.to_string(),
            Outcome::LeftOut => "rests on one that was not applied".into(),
        };
        table.row([record.lsn.0.to_string(), record.operation.clone(), record.path.clone(), why]);
    }
    let of = |wanted: Outcome| report.iter().filter(|applied| applied.outcome == wanted).count() as u64;
    let (done, already) = (of(Outcome::Done), of(Outcome::Already));
    let mut out = format!("{} applied", count(done, "change"));
    if already > 0 {
        out.push_str(&format!(", {already} had been done already"));
    }
    out.push('\n');
    if !table.is_empty() {
        out.push_str(&format!("\n{table}{}", asked.text()));
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use soda_protocol::{Lsn, Whereabouts};

    fn log(name: &str) -> KeptLog {
        KeptLog {
            name: name.into(),
            dir: format!("/c/oplog/kept/{name}").into(),
            state: LogState::Kept,
            kept_at: Duration::from_secs(100),
            client: "host:/mnt".into(),
            why: "the session has ended".into(),
            server: "127.0.0.1:2".into(),
            volume: "main".into(),
            records: 12,
            bytes: 1536,
            damage: None,
            beyond_damage: 0,
            disk_bytes: 2048,
        }
    }

    fn record(lsn: u64) -> KeptRecord {
        let (operation, path, detail) = ("write".into(), "/d/f".into(), "4 bytes at 0".into());
        KeptRecord { lsn: Lsn(lsn), at: Duration::ZERO, operation, path, detail, named: Named::Log }
    }

    #[test]
    fn what_is_kept_says_whose_it_is_and_why() {
        let waits =
            KeptLog { state: LogState::Waiting, client: String::new(), why: "it waits".into(), ..log("3") };
        let logs = [log("100"), KeptLog { beyond_damage: 1, ..log("101") }, waits.clone()];
        let expected = "\
LOG  STATE  FOR    VOLUME            MOUNT      CHANGES  SIZE
100  kept   1m01s  127.0.0.1:2/main  host:/mnt       12  1.5 KiB
101  kept   1m01s  127.0.0.1:2/main  host:/mnt       12  1.5 KiB
  3  waits  1m01s  127.0.0.1:2/main  -               12  1.5 KiB

100: the session has ended
  in /c/oplog/kept/100

101: the session has ended
  in /c/oplog/kept/101
  behind the damage: 1 change, to be shown and saved only

3: it waits
  in /c/oplog/kept/3
";
        assert!(
            waiting_text(&waits)
                .starts_with("/c/oplog/kept/3: 12 delayed changes of 127.0.0.1:2/main wait there")
        );
        assert_eq!(list_text(&logs, Duration::from_secs(161)), expected);
        assert!(list_text(&[], Duration::ZERO).starts_with("Nothing is kept"));
    }

    #[test]
    fn a_directory_that_is_named_has_to_be_there() {
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(kept(&[dir.path().to_owned()]).unwrap(), []);
        let missing = dir.path().join("no/such");
        let refused = kept(&[dir.path().to_owned(), missing.clone()]).unwrap_err();
        assert!(refused.to_string().starts_with(&missing.display().to_string()), "{refused}");
    }

    #[test]
    fn a_log_is_found_by_its_name() {
        let logs = [log("100"), log("101"), KeptLog { dir: "/other".into(), ..log("101") }];
        let named = |name: &str| RecoverOne { name: name.into(), json: false };
        assert_eq!(find(&logs, &named("100")).unwrap(), &logs[0]);
        assert!(find(&logs, &named("7")).unwrap_err().to_string().contains("soda recover ls"));
        assert!(find(&logs, &named("101")).unwrap_err().to_string().contains("/other"));
    }

    #[test]
    fn what_was_not_applied_is_named() {
        let failed = Outcome::Failed(soda_types::FsError::new(soda_types::Errno::Perm, "not the owner"));
        let conflict = Outcome::Conflict("it is gone".into());
        let outcomes = [Outcome::Done, Outcome::Already, conflict, Outcome::LeftOut, failed];
        let report: Vec<Applied> =
            (1..).zip(outcomes).map(|(lsn, outcome)| Applied { record: record(lsn), outcome }).collect();
        let expected = "\
1 change applied, 1 had been done already

CHANGE  OPERATION  PATH  WHY NOT
     3  write      /d/f  it is gone
     4  write      /d/f  rests on one that was not applied
     5  write      /d/f  EPERM (not the owner)
";
        assert_eq!(report_text(&report, &Asked::default()), expected);
        let left = |log: &KeptLog, report: &[Applied]| left_text(log, report).unwrap_or_default();
        assert_eq!(left(&log("100"), &report[..2]), "");
        assert!(left(&log("100"), &report).starts_with("3 changes not applied"));
        let damaged = KeptLog { damage: Some("1.log at byte 7".into()), beyond_damage: 3, ..log("100") };
        let text = left(&damaged, &report[..2]);
        assert!(text.contains("0 changes before the damage and 3 changes behind it are left"), "{text}");
        let saved = [Saved { file: "/s/d/f".into(), held: 2048, whole: Whole::No }];
        assert!(
            saved_text(&saved, &Asked::default()).contains("/s/d/f  2.0 KiB  what was there before is zeros")
        );
    }

    #[test]
    fn what_the_log_does_not_name_has_the_name_of_now_or_a_word_why_it_has_none() {
        let named = |lsn, path: &str, named| KeptRecord { path: path.into(), named, ..record(lsn) };
        let fid = soda_types::Fid::new(soda_types::VolumeId(1), soda_types::Ino(9));
        let at = Whereabouts::At(vec![soda_types::Name::try_from("old").unwrap()]);
        let asked = Asked { names: [(fid, at)].into_iter().collect(), why_not: None };
        let records = [
            named(1, "/d/f", Named::Log),
            named(2, "/old", Named::Server),
            named(3, "<inode 7>", Named::Gone),
            KeptRecord { detail: String::new(), ..named(4, "<inode 8>", Named::NotFound) },
        ];
        let expected = "\
CHANGE  OPERATION  PATH
     1  write      /d/f       4 bytes at 0
     2  write      /old       4 bytes at 0
     3  write      <inode 7>  4 bytes at 0; the server does not have the inode any more
     4  write      <inode 8>  the server has the inode, and found no name of it in time

What was there before the log is named as the server has it now.
";
        assert_eq!(records_text(&records, &asked), expected);
        let away = Asked { why_not: Some("it is away".into()), ..Asked::default() };
        let expected = "\
CHANGE  OPERATION  PATH
     1  write      <inode 9>  4 bytes at 0

What was there before the log has no names here: the server was not asked, or not for all (it is away)
";
        assert_eq!(records_text(&[named(1, "<inode 9>", Named::NotAsked)], &away), expected);
    }
}
