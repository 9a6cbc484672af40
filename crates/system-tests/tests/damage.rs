//! A data directory that has lost something, and what the tools do about it.

use soda_system_tests::cell::{Cell, Network, PATIENCE, free_port, prerequisites, soda_binary};
use soda_system_tests::wait;
use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::Write;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

fn soda(arguments: &[&str]) -> Output {
    wait::run(Command::new(soda_binary()).args(arguments), PATIENCE).output(&format!("soda {arguments:?}"))
}

#[track_caller]
fn refused(arguments: &[&str], code: i32, words: &[&str]) {
    let output = soda(arguments);
    let message = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(code), "{message}");
    words.iter().for_each(|word| assert!(message.contains(word), "no `{word}` in: {message}"));
}

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

/// All that can be seen of a directory: names, contents, sizes, modes, and when each was last changed.
fn all_of(path: &Path) -> BTreeMap<PathBuf, (Vec<u64>, Vec<u8>)> {
    let mut all = BTreeMap::new();
    let mut paths = vec![path.to_owned()];
    while let Some(path) = paths.pop() {
        let metadata = fs::symlink_metadata(&path).unwrap();
        let mut content = Vec::new();
        match metadata.is_dir() {
            true => paths.extend(fs::read_dir(&path).unwrap().map(|entry| entry.unwrap().path())),
            false => content = fs::read(&path).unwrap(),
        }
        let times = [metadata.mtime(), metadata.mtime_nsec(), metadata.ctime(), metadata.ctime_nsec()];
        let mut figures = vec![metadata.size(), metadata.ino(), metadata.mode().into()];
        figures.extend(times.map(|time| time as u64));
        all.insert(path, (figures, content));
    }
    all
}

/// A server's directory in which each kind of file is, after kill -9: nothing was told it that it would end.
fn killed() -> Cell {
    let mut cell = Cell::writing_through(1);
    let root = cell.root(0).to_owned();
    for number in 0..200 {
        fs::write(root.join(format!("small{number}")), format!("content {number}")).unwrap();
    }
    fs::write(root.join("large"), vec![7; 3 << 20]).unwrap();
    fs::write(root.join("removed"), vec![7; 3 << 20]).unwrap();
    fs::remove_file(root.join("removed")).unwrap();
    fs::File::open(&root).unwrap().sync_all().unwrap();
    drop(root);
    cell.mounts[0].unmount();
    cell.server.kill();
    cell
}

#[track_caller]
fn assert_whole(file: &Path, byte: u8) {
    let content = fs::read(file).unwrap();
    let wrong = content.iter().position(|found| *found != byte);
    assert_eq!((content.len(), wrong.map(|at| (at, content[at]))), (3 << 20, None));
}

#[test]
fn fsck_without_repair_changes_nothing() {
    if !prerequisites() {
        return;
    }
    let cell = killed();
    let data = cell.server.data();
    let unchanged = |what: &str, expected: Option<i32>| {
        let before = all_of(data);
        for arguments in [&["fsck", text(data)][..], &["fsck", "--json", text(data)]] {
            let output = soda(arguments);
            let said = String::from_utf8_lossy(&output.stderr).into_owned();
            assert_eq!(output.status.code(), expected, "{what}: {said}");
            let mut errors = said.lines().filter(|line| line.starts_with("soda: "));
            assert!(!errors.any(|line| line.contains("soda-look.")), "{what}: where nothing is now: {said}");
        }
        let after = all_of(data);
        let differs = |path: &&PathBuf| before.get(*path) != after.get(*path);
        let changed: Vec<_> = before.keys().chain(after.keys()).filter(differs).collect();
        assert!(changed.is_empty(), "{what}: {changed:?}");
    };
    unchanged("after kill -9", Some(0));
    let segments = fs::read_dir(data.join("data")).unwrap().map(|entry| entry.unwrap().path());
    let segment = segments.max_by_key(|path| path.metadata().unwrap().len()).unwrap();
    let good = fs::read(&segment).unwrap();
    let mut bytes = good.clone();
    bytes[..1 << 20].fill(9);
    fs::write(&segment, bytes).unwrap();
    unchanged("with lost data", Some(8));
    fs::write(&segment, good).unwrap();
    // As a power cut leaves it: a batch that is not whole.
    let journals = fs::read_dir(data.join("meta")).unwrap().map(|entry| entry.unwrap().path());
    let journal = journals.filter(|path| path.extension().is_some_and(|it| it == "jnl")).max().unwrap();
    let mut torn = fs::read(&journal).unwrap();
    let value = torn.windows(9).rposition(|bytes| bytes == b"content 1").unwrap();
    torn[value] = 0;
    fs::write(&journal, torn).unwrap();
    unchanged("with a journal that rotted after a sync", Some(8));
    fs::remove_file(data.join("meta/synced")).unwrap();
    unchanged("with a torn journal", Some(0));
    fs::remove_dir_all(data.join("data")).unwrap();
    unchanged("without data", Some(8));
}

/// What was synced and has rotted in the journal is not given up unasked.
#[test]
fn a_journal_that_rots_is_cut_only_when_its_loss_is_accepted() {
    if !prerequisites() {
        return;
    }
    let mut cell = killed();
    let data = cell.server.data().to_owned();
    let journals = fs::read_dir(data.join("meta")).unwrap().map(|entry| entry.unwrap().path());
    let journal = journals.filter(|path| path.extension().is_some_and(|it| it == "jnl")).max().unwrap();
    let mut rotten = fs::read(&journal).unwrap();
    let value = rotten.windows(11).position(|bytes| bytes == b"content 150").unwrap();
    rotten[value] ^= 1;
    fs::write(&journal, &rotten).unwrap();
    let says = ["the journal", "is damaged", "from a copy", "--repair --discard-lost"];
    let listen = format!("127.0.0.1:{}", free_port());
    refused(&["serve", "--data", text(&data), "--listen", &listen], 1, &says);
    refused(&["fsck", text(&data)], 8, &says);
    refused(&["fsck", "--repair", text(&data)], 8, &says);
    assert_eq!(fs::read(&journal).unwrap(), rotten);

    let output = soda(&["fsck", "--repair", "--discard-lost", text(&data)]);
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{said}{}", String::from_utf8_lossy(&output.stderr));
    assert!(said.contains("the journal was damaged"), "{said}");
    assert!(soda(&["fsck", text(&data)]).status.success());
    cell.server.restart();
    cell.mounts[0].start();
    let root = cell.root(0).to_owned();
    assert_eq!(fs::read_to_string(root.join("small100")).unwrap(), "content 100");
    assert!(!root.join("small199").exists(), "what came after it is lost");
}

/// Names and small files are in the metadata: they need not be given up with the rest.
#[test]
fn a_directory_that_has_lost_all_its_data_keeps_what_the_metadata_have() {
    if !prerequisites() {
        return;
    }
    let mut cell = killed();
    let data = cell.server.data().to_owned();
    let stored = data.join("data");
    let highest =
        |stored: &Path| fs::read_dir(stored).unwrap().map(|entry| entry.unwrap().file_name()).max().unwrap();
    let before = highest(&stored);
    fs::remove_dir_all(&stored).unwrap();
    let says = ["the data of", "are missing", "from a copy", "--repair --discard-lost"];
    let listen = format!("127.0.0.1:{}", free_port());
    refused(&["serve", "--data", text(&data), "--listen", &listen], 1, &says);
    refused(&["fsck", text(&data)], 8, &says);
    refused(&["fsck", "--repair", text(&data)], 8, &says);
    assert!(!stored.exists());

    let output = soda(&["fsck", "--repair", "--discard-lost", text(&data)]);
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{said}{}", String::from_utf8_lossy(&output.stderr));
    assert!(said.contains("/large: ") && said.contains("lost: 3.0 MiB of 1 file,"), "{said}");
    assert!(highest(&stored) > before, "a number of a segment is used twice: {before:?}");
    assert!(soda(&["fsck", text(&data)]).status.success());

    cell.server.restart();
    cell.mounts[0].start();
    let root = cell.root(0).to_owned();
    for number in 0..200 {
        let content = fs::read_to_string(root.join(format!("small{number}"))).unwrap();
        assert_eq!(content, format!("content {number}"));
    }
    // Small ends of large files are in the metadata, too.
    let large = fs::read(root.join("large")).unwrap();
    let lost = large.iter().take_while(|byte| **byte == 0).count();
    assert!(
        large.len() == 3 << 20 && lost > 2 << 20 && large[lost..].iter().all(|byte| *byte == 7),
        "{lost}"
    );
    fs::write(root.join("new"), vec![8; 3 << 20]).unwrap();
    fs::remove_file(root.join("large")).unwrap();
    cell.mounts[0].unmount();
    cell.server.stop();
    cell.server.restart();
    cell.mounts[0].start();
    assert_whole(&root.join("new"), 8);
    cell.mounts[0].unmount();
    cell.server.stop();
    assert!(soda(&["fsck", text(&data)]).status.success());
}

#[test]
fn fsck_looks_at_a_directory_on_a_read_only_disk() {
    if !prerequisites() {
        return;
    }
    let mut cell = Cell::start(Network::Loopback, 1);
    fs::write(cell.root(0).join("large"), vec![7; 3 << 20]).unwrap();
    cell.mounts[0].unmount();
    cell.server.stop();
    // Begins a segment, and writes nothing to it.
    cell.server.restart();
    cell.server.kill();
    let script = "mount --bind \"$1\" \"$1\" && mount -o remount,bind,ro \"$1\" && exec \"$0\" fsck \"$1\"";
    let mut command = Command::new("unshare");
    command.args(["--mount", "sh", "-c", script]).arg(soda_binary()).arg(cell.server.data());
    wait::run(&mut command, PATIENCE).expect_success("soda fsck");
}

fn copy(from: &Path, to: &Path) {
    wait::run(Command::new("cp").arg("-a").args([from, to]), PATIENCE).expect_success("cp");
}

/// The server goes on from a backup while a mount has seen what came after that: what is made then must not be taken for that.
// SEMANTICS 1
#[test]
fn a_backup_that_is_put_back_is_not_taken_for_what_came_after_it() {
    if !prerequisites() {
        return;
    }
    let mut cell = Cell::writing_through(2);
    let (mine, other) = (cell.root(0).to_owned(), cell.root(1).to_owned());
    fs::write(mine.join("file"), "in the backup").unwrap();
    // The backup does not know the session to come: nobody waits for it.
    cell.mounts[1].unmount();
    cell.server.stop();
    let (data, backup) = (cell.server.data().to_owned(), cell.scratch().join("backup"));
    copy(&data, &backup);
    cell.server.restart();
    cell.mounts[1].start();
    fs::write(other.join("file"), "lost").unwrap();
    fs::write(other.join("new"), "lost, too").unwrap();
    assert_eq!(fs::read_to_string(other.join("file")).unwrap(), "lost");
    let mut lost = File::options().read(true).append(true).open(other.join("new")).unwrap();
    assert_eq!(std::io::read_to_string(&lost).unwrap(), "lost, too");
    cell.server.stop();
    fs::remove_dir_all(&data).unwrap();
    copy(&backup, &data);
    cell.server.restart();
    fs::write(mine.join("file"), "good").unwrap();
    fs::write(mine.join("another"), "innocent").unwrap();
    // Until it hears of the server it may serve, under its lease, what was; this name it has to ask for.
    assert_eq!(fs::read_to_string(other.join("another")).unwrap(), "innocent");
    assert_eq!(fs::read_to_string(other.join("file")).unwrap(), "good");
    // The one that is open was not in the backup, and is none of those that were made since.
    lost.write_all(b"stray").unwrap_err();
    assert_eq!(fs::read_to_string(mine.join("another")).unwrap(), "innocent");
    assert!(!mine.join("new").exists() && !other.join("new").exists());
}

/// What goes wrong for good is not for the server's log alone.
#[test]
fn a_server_whose_disk_fails_says_so() {
    if !prerequisites() {
        return;
    }
    let cell = Cell::writing_through(1);
    let file = cell.root(0).join("file");
    fs::write(&file, "content").unwrap();
    let status = || String::from_utf8(soda(&["status", &cell.server.address()]).stdout).unwrap();
    assert!(!status().contains("refused"), "{}", status());

    // Where the next journal would be is something that cannot be synced.
    let meta = cell.server.data().join("meta");
    let numbers = fs::read_dir(&meta)
        .unwrap()
        .filter_map(|entry| entry.unwrap().file_name().to_str()?.strip_suffix(".jnl")?.parse::<u64>().ok());
    let newest = numbers.max().unwrap();
    std::os::unix::fs::symlink("/proc/version", meta.join(format!("{}.jnl", newest + 1))).unwrap();
    // The server's own sync, once a second, may be there first.
    let mut opened = File::options().write(true).open(&file).unwrap();
    let error = opened.write_all(b"CONTENT").and_then(|()| opened.sync_all()).unwrap_err();
    assert_eq!(error.raw_os_error(), Some(5), "{error}");

    let told = status();
    assert!(told.contains("changes are refused (EIO)") && told.contains("start the server anew"), "{told}");
    assert_eq!(fs::write(cell.root(0).join("other"), "").unwrap_err().raw_os_error(), Some(5));
    assert_eq!(fs::read_to_string(&file).unwrap().to_lowercase(), "content");
}

/// The tables of a tree of the metadata, by the engine's number of it; the largest last.
fn tables(data: &Path, tree: u32) -> Vec<PathBuf> {
    let tables = fs::read_dir(data.join(format!("meta/keyspaces/{tree}/tables"))).unwrap();
    let mut tables: Vec<_> = tables.map(|table| table.unwrap().path()).collect();
    tables.sort_by_key(|table| fs::metadata(table).unwrap().len());
    tables
}

fn spoil(file: &Path, part: u64) {
    let mut bytes = fs::read(file).unwrap();
    let at = bytes.len() as u64 * part / 100;
    bytes[at as usize] ^= 0xa5;
    fs::write(file, bytes).unwrap();
}

/// One wrong byte in a table of the metadata, as a tester found it: what is lost is named, and all else is there.
// SEMANTICS 41
#[test]
fn damaged_metadata_lose_what_is_named_and_nothing_else() {
    if !prerequisites() {
        return;
    }
    let mut cell = Cell::writing_through(1);
    let root = cell.root(0).to_owned();
    for number in 0..300 {
        fs::write(root.join(format!("small{number}")), format!("content {number}")).unwrap();
    }
    fs::write(root.join("large"), vec![7; 3 << 20]).unwrap();
    cell.mounts[0].unmount();
    cell.server.stop();
    let data = cell.server.data().to_owned();
    for tree in 0..=5 {
        for (number, table) in tables(&data, tree).into_iter().enumerate() {
            let copied = cell.scratch().join(format!("copy{tree}-{number}"));
            copy(&data, &copied);
            spoil(&copied.join(table.strip_prefix(&data).unwrap()), 50);
            let before = all_of(&copied);
            refused(
                &["fsck", text(&copied)],
                8,
                &["are damaged", "nothing was changed", "--repair", "from a copy"],
            );
            let output = soda(&["fsck", text(&copied)]);
            let said = String::from_utf8_lossy(&output.stdout).into_owned();
            assert!(said.contains(&format!("damaged: keyspaces/{tree}/tables/")), "{said}");
            assert!(all_of(&copied) == before);
            let output = soda(&["fsck", "--repair", "--discard-lost", text(&copied)]);
            let said = String::from_utf8_lossy(&output.stdout).into_owned();
            assert!(output.status.success(), "{said}{}", String::from_utf8_lossy(&output.stderr));
            assert!(said.contains("are kept as ") && said.contains("meta.damaged-2"), "{said}");
            assert!(soda(&["fsck", text(&copied)]).status.success());
        }
    }

    // Behind what the root directory's inode was at any time, which is first, and may be a half of it.
    spoil(tables(&data, 1).last().unwrap(), 75);
    cell.server.restart();
    cell.mounts[0].start();
    let read = |number: i32| fs::read_to_string(root.join(format!("small{number}")));
    let failed: Vec<i32> = (0..300).filter(|number| read(*number).is_err()).collect();
    assert!(!failed.is_empty() && failed.len() < 150, "{failed:?}");
    let log = fs::read_to_string(cell.server.log()).unwrap();
    let mut lines = log.lines();
    assert!(
        lines.any(|line| line.contains("table") && line.contains("inode") && line.contains("soda fsck")),
        "{log}"
    );
    cell.mounts[0].unmount();
    cell.server.stop();

    refused(&["fsck", "--repair", text(&data)], 8, &["nothing was changed"]);
    let output = soda(&["fsck", "--repair", "--discard-lost", text(&data)]);
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{said}{}", String::from_utf8_lossy(&output.stderr));
    let named = |number: i32| said.contains(&format!("lost: /small{number}: "));
    cell.server.restart();
    cell.mounts[0].start();
    for number in 0..300 {
        // Root reads also what is for root only. What is left of an inode may be of when it had nothing in it: that is named.
        match read(number) {
            Ok(content) if content.is_empty() => assert!(named(number), "{number} is empty\n{said}"),
            Ok(content) => assert!(content == format!("content {number}"), "{number}: {content}"),
            Err(error) => assert!(named(number), "{number} is lost in silence: {error}"),
        }
        assert!(named(number) || !failed.contains(&number), "{number} was lost in silence");
    }
    assert_whole(&root.join("large"), 7);
}
