//! Rules on sources and documents that no lint knows.

use std::fs;
use std::path::{Path, PathBuf};

/// A file that a newcomer cannot hold in the head is split by meaning.
const MAX_LINES: usize = 600;
/// Columns, of documents, too: rustfmt keeps code to 110, comments and strings it leaves alone.
const MAX_WIDTH: usize = 130;
/// Characters of a cell of a document's table: what is longer is a paragraph.
const MAX_CELL: usize = 400;

/// The crates that take time, numbers and bytes as arguments and have no source of their own.
const SANS_IO: [&str; 3] = ["types", "lease", "model"];
/// What these must not contain, and what they have instead.
const FORBIDDEN: [(&str, &str); 10] = [
    ("Instant::now", "take `now: Monotonic` as an argument"),
    ("SystemTime::now", "take a `Timestamp` as an argument"),
    ("clock_gettime", "take `now: Monotonic` as an argument"),
    ("std::net", "take bytes as an argument"),
    ("std::thread", "let the driver have the threads"),
    ("thread::spawn", "let the driver have the threads"),
    ("tokio", "let the driver have the runtime"),
    ("rand::", "take a seed as an argument"),
    ("std::fs", "take bytes as an argument"),
    ("std::process", "let the driver have the processes"),
];
/// Hash maps are forbidden there too, since their order differs from run to run, but for this file, which only looks up.
const HASH_MAPS: [&str; 2] = ["HashMap", "HashSet"];
const HASH_MAP_ALLOWED: &str = "crates/lease/src/table/index.rs";
/// Words that mark unfinished work.
const UNFINISHED: [&str; 4] = ["todo!(", "unimplemented!(", "FIXME", "XXX"];

/// What the sources below `root` do that they must not.
pub(crate) fn check(root: &Path) -> Vec<String> {
    let mut failures = Vec::new();
    for path in rust_files(&root.join("crates")) {
        let name = path.strip_prefix(root).unwrap_or(&path).display().to_string();
        match fs::read_to_string(&path) {
            Ok(text) => failures.extend(check_text(&name, &text)),
            Err(error) => failures.push(format!("{name}: {error}")),
        }
    }
    for path in documents(root) {
        let name = path.strip_prefix(root).unwrap_or(&path).display().to_string();
        match fs::read_to_string(&path) {
            Ok(text) => failures.extend(check_document(&name, &text)),
            Err(error) => failures.push(format!("{name}: {error}")),
        }
    }
    failures
}

/// Rows of tables cannot be broken, so what counts there are cells.
fn check_document(name: &str, text: &str) -> Vec<String> {
    let mut failures = Vec::new();
    let lines = text.lines().count();
    if lines > MAX_LINES {
        failures.push(format!("{name}: {lines} lines; split it by meaning, the limit is {MAX_LINES}"));
    }
    for (number, line) in text.lines().enumerate() {
        let place = format!("{name}:{}", number + 1);
        if !line.starts_with('|') {
            if line.chars().count() > MAX_WIDTH {
                failures.push(format!("{place}: wider than {MAX_WIDTH}"));
            }
        } else if line.split(" | ").any(|cell| cell.chars().count() > MAX_CELL) {
            failures.push(format!(
                "{place}: a cell of more than {MAX_CELL} characters; say the rest below the table"
            ));
        }
    }
    failures
}

fn check_text(name: &str, text: &str) -> Vec<String> {
    let mut failures = Vec::new();
    let lines = text.lines().count();
    if lines > MAX_LINES {
        failures.push(format!("{name}: {lines} lines; split it by meaning, the limit is {MAX_LINES}"));
    }
    let is_sans_io = SANS_IO.iter().any(|of| name.contains(&format!("crates/{of}/src/")));
    // The rules are written down here.
    let is_rules = name.ends_with("xtask/src/sources.rs");
    for (number, line) in text.lines().enumerate() {
        let place = format!("{name}:{}", number + 1);
        // A row of a table in a comment cannot be broken.
        let is_table = line.trim_start().starts_with("//") && line.ends_with('|');
        if line.chars().count() > MAX_WIDTH && !is_table {
            failures.push(format!("{place}: wider than {MAX_WIDTH}"));
        }
        if is_rules {
            continue;
        }
        let code = line.split("//").next().unwrap_or_default();
        if is_sans_io {
            let found = FORBIDDEN.iter().filter(|(word, _)| code.contains(word));
            failures.extend(
                found.map(|(word, instead)| format!("{place}: `{word}` in a sans-IO crate; {instead}")),
            );
            if !name.ends_with(HASH_MAP_ALLOWED) {
                let found = HASH_MAPS.iter().filter(|word| code.contains(**word));
                failures.extend(found.map(|word| {
                    format!(
                        "{place}: `{word}` in a sans-IO crate; the order of a BTree collection is no surprise"
                    )
                }));
            }
        }
        let found = UNFINISHED.iter().filter(|word| line.contains(**word));
        failures.extend(found.map(|word| format!("{place}: `{word}`: finish it or file it")));
    }
    failures
}

/// Those at the top and those in `docs`.
pub(crate) fn documents(root: &Path) -> Vec<PathBuf> {
    let entries = [root.to_owned(), root.join("docs")].map(fs::read_dir).into_iter().flatten().flatten();
    let paths = entries.flatten().map(|entry| entry.path());
    let mut found: Vec<PathBuf> =
        paths.filter(|path| path.extension().is_some_and(|extension| extension == "md")).collect();
    found.sort();
    found
}

pub(crate) fn rust_files(dir: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in fs::read_dir(dir).into_iter().flatten().flatten() {
        let path = entry.path();
        if path.is_dir() {
            found.extend(rust_files(&path));
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            found.push(path);
        }
    }
    found.sort();
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_clock_in_the_core_is_found_and_a_comment_about_it_is_not() {
        let read = "let now = Instant::now();";
        assert_eq!(check_text("crates/lease/src/table.rs", read).len(), 1);
        assert_eq!(check_text("crates/lease/src/table.rs", &format!("// {read}")), Vec::<String>::new());
        assert_eq!(check_text("crates/server/src/clock.rs", read), Vec::<String>::new());
    }

    #[test]
    fn a_hash_map_in_the_core_is_found() {
        let map = "use std::collections::HashMap;";
        assert_eq!(check_text("crates/lease/src/holder/mod.rs", map).len(), 1);
        assert_eq!(check_text(HASH_MAP_ALLOWED, map), Vec::<String>::new());
        assert_eq!(check_text("crates/client/src/lib.rs", map), Vec::<String>::new());
    }

    #[test]
    fn a_long_line_of_a_document_is_found_and_a_row_of_a_table_is_left() {
        let long = "x".repeat(MAX_WIDTH + 1);
        assert_eq!(check_document("README.md", &long).len(), 1);
        assert_eq!(check_document("README.md", &format!("| {long} |\n")), Vec::<String>::new());
    }

    #[test]
    fn a_long_document_and_a_long_cell_are_found() {
        assert_eq!(check_document("README.md", &"x\n".repeat(MAX_LINES + 1)).len(), 1);
        let row = format!("| {} | y |\n", "x".repeat(MAX_CELL + 1));
        assert_eq!(check_document("README.md", &row).len(), 1);
        let cells = format!("| {0} | {0} |\n", "x".repeat(MAX_CELL - 10));
        assert_eq!(check_document("README.md", &cells), Vec::<String>::new());
    }

    #[test]
    fn long_files_long_lines_and_unfinished_work_are_found() {
        assert_eq!(check_text("a.rs", &"x\n".repeat(MAX_LINES + 1)).len(), 1);
        assert_eq!(check_text("a.rs", &"x".repeat(MAX_WIDTH + 1)).len(), 1);
        assert_eq!(check_text("a.rs", "fn f() { todo!() }").len(), 1);
        assert_eq!(check_text("a.rs", "fn f() {}\n"), Vec::<String>::new());
    }
}
