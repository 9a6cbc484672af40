//! In which order the modules of a crate build upon one another: the lists "Rooms of ..." in ARCHITECTURE.md, as a test. A module
//! names only what stands before it, so no two of them need each other. Paths are seen (also what the crate's root hands on),
//! methods are not; code of tests may name what it likes.

use crate::arrows::DOCUMENT;
use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

/// A crate's name follows, then a table: the second column has modules, from below to above.
const HEADING: &str = "## Rooms of `";

/// The modules of a crate, the lowest first.
#[derive(PartialEq, Eq, Debug)]
struct Rooms {
    name: String,
    modules: Vec<String>,
}

/// A file of a crate by its path below `src`.
type Source = (String, String);

/// What in the sources below `root` goes against the lists of the document.
pub(crate) fn check(document: &str, root: &Path) -> Vec<String> {
    let mut failures = Vec::new();
    for rooms in lists(document) {
        let dir = root.join("crates").join(&rooms.name).join("src");
        let mut files = Vec::new();
        match read(&dir, &dir, &mut files) {
            Ok(()) => failures.extend(check_crate(&rooms, &files)),
            Err(error) => failures.push(format!("{}: {error}", dir.display())),
        }
    }
    failures
}

fn lists(document: &str) -> Vec<Rooms> {
    let mut found: Vec<Rooms> = Vec::new();
    let mut inside = false;
    for line in document.lines() {
        if line.starts_with('#') {
            let name = line.strip_prefix(HEADING).and_then(|rest| rest.strip_suffix('`'));
            inside = name.is_some();
            found.extend(name.map(|name| Rooms { name: name.to_owned(), modules: Vec::new() }));
        } else if inside
            && line.starts_with('|')
            && let (Some(rooms), Some(cell)) = (found.last_mut(), line.split('|').nth(2))
        {
            rooms.modules.extend(cell.split('`').skip(1).step_by(2).map(str::to_owned));
        }
    }
    found
}

fn read(dir: &Path, top: &Path, files: &mut Vec<Source>) -> std::io::Result<()> {
    for entry in fs::read_dir(dir)? {
        let path = entry?.path();
        if path.is_dir() {
            read(&path, top, files)?;
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            let name = path.strip_prefix(top).unwrap_or(&path).display().to_string();
            files.push((name, fs::read_to_string(&path)?));
        }
    }
    files.sort();
    Ok(())
}

fn check_crate(rooms: &Rooms, files: &[Source]) -> Vec<String> {
    let mut failures = Vec::new();
    let list = format!("Rooms of `{}` in {DOCUMENT}", rooms.name);
    let mut places: BTreeMap<&str, usize> = BTreeMap::new();
    for (place, module) in rooms.modules.iter().enumerate() {
        if places.insert(module, place).is_some() {
            failures.push(format!("{list}: `{module}` stands there twice"));
        }
        if !files.iter().any(|(file, _)| top_of(file) == Some(module)) {
            failures.push(format!("{list}: `{module}` is no module"));
        }
    }
    let (roots, inside): (Vec<&Source>, _) = files.iter().partition(|(file, _)| top_of(file).is_none());
    let handed_on: BTreeMap<String, String> =
        roots.iter().flat_map(|(_, text)| handed_on(text, &places)).collect();
    for (file, text) in inside {
        let Some(module) = top_of(file) else { continue };
        let Some(own) = places.get(module) else {
            failures.push(format!("{list}: `{module}` ({file}) is missing"));
            continue;
        };
        if file.ends_with("/tests.rs") {
            continue;
        }
        let depth = file.trim_end_matches("/mod.rs").split('/').count();
        for (line, name) in names_of_root(text, depth) {
            if name == "*" {
                failures.push(format!("crates/{}/src/{file}:{line}: name what is used", rooms.name));
            }
            let module_of = handed_on.get(&name).filter(|_| !places.contains_key(name.as_str()));
            let used = module_of.map_or(name.as_str(), String::as_str);
            if places.get(used).is_some_and(|place| place > own) {
                failures.push(format!(
                    "crates/{}/src/{file}:{line}: `{module}` must not use `{used}`, which stands after it ({list})",
                    rooms.name
                ));
            }
        }
    }
    failures
}

/// The top-level module that a file belongs to; none for the root.
fn top_of(file: &str) -> Option<&str> {
    let top = file.split('/').next()?;
    match top.strip_suffix(".rs") {
        Some("lib" | "main") => None,
        Some(name) => Some(name),
        None => Some(top),
    }
}

/// A word or a sign, with the number of its line.
type Token<'a> = (usize, &'a str);

fn tokens(text: &str) -> Vec<Token<'_>> {
    let text = text.split("#[cfg(test)]\nmod tests {").next().unwrap_or_default();
    let mut found = Vec::new();
    for (number, line) in text.lines().enumerate() {
        let mut rest = line.split("//").next().unwrap_or_default();
        while let Some(first) = rest.chars().next() {
            let is_word = |c: char| c.is_alphanumeric() || c == '_';
            let length = match rest.find(|c| !is_word(c)) {
                _ if rest.starts_with("::") => 2,
                Some(0) => first.len_utf8(),
                end => end.unwrap_or(rest.len()),
            };
            let (token, after) = rest.split_at(length);
            rest = after;
            if !token.trim().is_empty() {
                found.push((number + 1, token));
            }
        }
    }
    found
}

/// What a file names of its crate's root, with lines. `depth`: so many `super` lead there.
fn names_of_root(text: &str, depth: usize) -> Vec<(usize, String)> {
    let tokens = tokens(text);
    let mut found = Vec::new();
    let mut at = 0;
    while at < tokens.len() {
        let mut supers = 0;
        let begin = at;
        while matches!(tokens.get(at..at + 2), Some([(_, "super"), (_, "::")])) {
            supers += 1;
            at += 2;
        }
        let is_root = matches!(tokens.get(at..at + 2), Some([(_, "crate"), (_, "::")]));
        if is_root {
            at += 2;
        }
        if is_root || supers >= depth {
            found.extend(firsts(&tokens[at..]).map(|(line, name)| (*line, (*name).to_owned())));
        }
        at = at.max(begin + 1);
    }
    found
}

/// The first names of what follows `::`: of one path, or of each in braces.
fn firsts<'a>(tokens: &'a [Token<'a>]) -> impl Iterator<Item = &'a Token<'a>> {
    let mut open = 0usize;
    let mut is_first = true;
    let mut is_over = false;
    tokens.iter().filter(move |(_, token)| {
        if is_over {
            return false;
        }
        match *token {
            "{" => open += 1,
            "}" => open = open.saturating_sub(1),
            "," if open == 1 => is_first = true,
            _ if is_first => {
                is_first = false;
                is_over = open == 0;
                return true;
            }
            _ => {}
        }
        is_over = open == 0;
        false
    })
}

/// What the root of a crate hands on from its modules: the name, and the module.
fn handed_on(text: &str, places: &BTreeMap<&str, usize>) -> Vec<(String, String)> {
    let tokens = tokens(text);
    let mut found = Vec::new();
    let statements = tokens.split(|(_, token)| *token == ";");
    for statement in statements {
        let Some(at) = statement.iter().position(|(_, token)| *token == "use") else { continue };
        let mut names = statement[at + 1..].iter().map(|(_, token)| *token).filter(|name| *name != "crate");
        let Some(module) = names.find(|name| *name != "::").filter(|name| places.contains_key(name)) else {
            continue;
        };
        found.extend(names.map(|name| (name.to_owned(), module.to_owned())));
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIST: &str = "# A\n| `not` | `this` |\n## Rooms of `client`\n\nWords.\n\n| room | modules | what |\n\
                        | --- | --- | --- |\n| low | `hooks`, `log` | `x` |\n| high | `cache` | |\n\n## B\n| a | `b` |\n";

    /// Three modules that name one another, with the text of one file replaced or added.
    fn failures_with(file: &str, text: &str) -> Vec<String> {
        let mut files = BTreeMap::from([
            ("lib.rs", "mod cache;\npub use cache::inode::{Inode, Xattrs};\nfn lock() {}\n"),
            ("hooks.rs", "use std::time;\n"),
            ("log/mod.rs", "use crate::hooks::Names;\n"),
            ("cache/mod.rs", "use crate::{hooks, log::{Log, disk}};\n"),
            ("cache/inode.rs", "use super::super::hooks;\n"),
        ]);
        files.insert(file, text);
        let files: Vec<Source> =
            files.into_iter().map(|(file, text)| (file.to_owned(), text.to_owned())).collect();
        check_crate(&lists(LIST)[0], &files)
    }

    #[test]
    fn the_list_is_read_from_below_to_above() {
        let modules = ["hooks", "log", "cache"].map(str::to_owned).to_vec();
        assert_eq!(lists(LIST), [Rooms { name: "client".to_owned(), modules }]);
    }

    #[test]
    fn what_stands_before_may_be_used_and_the_root_by_all() {
        assert_eq!(failures_with("hooks.rs", "fn f() { crate::lock() } // crate::log"), Vec::<String>::new());
        let tests = "#[cfg(test)]\nmod tests {\n    use crate::cache::State;\n}\n";
        assert_eq!(failures_with("hooks.rs", tests), Vec::<String>::new());
        assert_eq!(failures_with("log/tests.rs", "use crate::cache::State;"), Vec::<String>::new());
        assert_eq!(
            failures_with("log/disk.rs", "use super::super::hooks;\nuse super::cache;"),
            Vec::<String>::new()
        );
    }

    #[test]
    fn an_arrow_upwards_is_found_however_it_is_written() {
        let upwards = [
            "use crate::cache::State;",
            "use crate::{\n    cache::{State, inode},\n    hooks,\n};",
            "use crate::{hooks::{self, Names}, cache};",
            "fn f(state: &mut crate::cache::State) {}",
            "use super::super::cache::State;",
            "use crate::Xattrs;",
            "fn f() -> super::super::Inode {}",
            "use crate::*;",
        ];
        for text in upwards {
            assert_eq!(failures_with("log/disk.rs", text).len(), 1, "{text}");
        }
        let failures = failures_with("hooks.rs", "\nuse super::{log::Log, cache::State};\n");
        let lines = failures.iter().filter(|failure| failure.starts_with("crates/client/src/hooks.rs:2: "));
        assert_eq!(lines.count(), 2, "{failures:?}");
    }

    #[test]
    fn a_module_that_is_missing_in_the_list_or_in_the_crate_is_found() {
        assert_eq!(failures_with("new.rs", "").len(), 1);
        let twice = Rooms { name: "a".to_owned(), modules: vec!["b".to_owned(), "b".to_owned()] };
        assert_eq!(check_crate(&twice, &[("b.rs".to_owned(), String::new())]).len(), 1);
        assert_eq!(check_crate(&twice, &[]).len(), 1 + 2);
    }
}
