//! Which modules of its own crate a file names. Paths are seen (also what the crate's root hands on), methods are not; code of
//! tests, and names for documentation only, do not count.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

/// A file of a crate: its path below `src`, and what is in it.
pub(crate) type Source = (String, String);

/// A module of the top that names another one.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Arrow {
    pub(crate) from: String,
    /// `*`: everything that the root has.
    pub(crate) to: String,
    pub(crate) file: String,
    pub(crate) line: usize,
}

/// The files of a crate.
pub(crate) fn sources(root: &Path, name: &str) -> std::io::Result<Vec<Source>> {
    let dir = root.join("crates").join(name).join("src");
    let mut files = Vec::new();
    read(&dir, &dir, &mut files)?;
    files.sort();
    Ok(files)
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
    Ok(())
}

/// The top-level module that a file belongs to; none for the root.
pub(crate) fn top_of(file: &str) -> Option<&str> {
    let top = file.split('/').next()?;
    match top.strip_suffix(".rs") {
        Some("lib" | "main") => None,
        Some(name) => Some(name),
        None => Some(top),
    }
}

/// All arrows between different modules of the top, in the order of the files.
pub(crate) fn arrows(files: &[Source]) -> Vec<Arrow> {
    let modules: BTreeSet<&str> = files.iter().filter_map(|(file, _)| top_of(file)).collect();
    let mut handed_on = BTreeMap::new();
    for (_, text) in files.iter().filter(|(file, _)| top_of(file).is_none()) {
        handed_on.extend(names_handed_on(text, &modules, files));
    }
    let mut found = Vec::new();
    for (file, text) in files.iter().filter(|(file, _)| !file.ends_with("/tests.rs")) {
        let Some(from) = top_of(file) else { continue };
        let depth = file.trim_end_matches("/mod.rs").split('/').count();
        for (line, name) in names_of_root(text, depth) {
            let to = match handed_on.get(&name) {
                _ if name == "*" || modules.contains(name.as_str()) => name,
                Some(module) => module.clone(),
                // Of the root itself.
                None => continue,
            };
            if to != from {
                found.push(Arrow { from: from.to_owned(), to, file: file.clone(), line });
            }
        }
    }
    found
}

/// A word or a sign, with the number of its line.
type Token<'a> = (usize, &'a str);

fn tokens(text: &str) -> Vec<Token<'_>> {
    let mut found = Vec::new();
    let mut is_for_documentation = false;
    for (number, line) in without_tests(text).lines().enumerate() {
        let mut rest = line.split("//").next().unwrap_or_default();
        if rest.trim() == "#[cfg(doc)]" {
            is_for_documentation = true;
        }
        if is_for_documentation {
            is_for_documentation = !rest.contains(';');
            continue;
        }
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

/// Up to the module of tests, which stands last.
fn without_tests(text: &str) -> &str {
    const TESTS: &str = "#[cfg(test)]\n";
    let is_module = |start: &usize| {
        let is_line = *start == 0 || text[..*start].ends_with('\n');
        let mut after = text[start + TESTS.len()..].lines().skip_while(|line| line.starts_with("#["));
        is_line && after.next().is_some_and(|line| line.ends_with("mod tests {"))
    };
    let mut starts = text.match_indices(TESTS).map(|(start, _)| start);
    starts.find(is_module).map_or(text, |start| &text[..start])
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
fn names_handed_on(text: &str, modules: &BTreeSet<&str>, files: &[Source]) -> Vec<(String, String)> {
    let tokens = tokens(text);
    let mut found = Vec::new();
    for statement in tokens.split(|(_, token)| *token == ";") {
        let Some(at) = statement.iter().position(|(_, token)| *token == "use") else { continue };
        let names = statement[at + 1..].iter().map(|(_, token)| *token);
        let mut names = names.filter(|name| *name != "crate" && *name != "::");
        let Some(module) = names.next().filter(|name| modules.contains(name)) else { continue };
        for name in names {
            match name {
                "*" => found.extend(defined(module, files).map(|name| (name, module.to_owned()))),
                name => found.push((name.to_owned(), module.to_owned())),
            }
        }
    }
    found
}

/// What a module itself defines, for everybody.
fn defined<'f>(module: &'f str, files: &'f [Source]) -> impl Iterator<Item = String> + 'f {
    let own =
        move |file: &str| file.strip_prefix(module).is_some_and(|rest| matches!(rest, ".rs" | "/mod.rs"));
    let files = files.iter().filter(move |(file, _)| own(file));
    files.flat_map(|(_, text)| {
        let lines = text.lines().filter_map(|line| line.strip_prefix("pub "));
        lines.filter_map(|line| {
            let mut words = line.split(|c: char| !c.is_alphanumeric() && c != '_');
            const KINDS: [&str; 7] = ["const", "enum", "fn", "static", "struct", "trait", "type"];
            words.next().filter(|kind| KINDS.contains(kind))?;
            words.next().map(str::to_owned)
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The arrows of one file beside three modules.
    fn arrows_of(file: &str, text: &str) -> Vec<String> {
        let mut files = BTreeMap::from([
            ("lib.rs", "mod cache;\npub use cache::inode::{Inode, Xattrs};\npub use log::*;\nfn lock() {}\n"),
            ("hooks.rs", ""),
            ("log/mod.rs", "pub struct Log;\npub(crate) struct Own;\n    pub fn new() {}\n"),
            ("cache/mod.rs", ""),
        ]);
        files.insert(file, text);
        let files: Vec<Source> =
            files.into_iter().map(|(file, text)| (file.to_owned(), text.to_owned())).collect();
        arrows(&files).into_iter().map(|arrow| format!("{}:{}", arrow.to, arrow.line)).collect()
    }

    #[test]
    fn an_arrow_is_found_however_it_is_written() {
        let written = [
            "use crate::cache::State;",
            "use crate::{cache::{State, inode}, lock};",
            "use crate::{log::{self, Names}, cache};",
            "fn f(state: &mut crate::cache::State) {}",
            "use super::super::cache::State;",
            "use crate::Xattrs;",
            "fn f() -> super::super::Inode {}",
        ];
        for text in written {
            assert_eq!(arrows_of("log/disk.rs", text), ["cache:1"], "{text}");
        }
        assert_eq!(arrows_of("hooks.rs", "\nuse super::{\n    log::Log,\n    cache};"), ["log:3", "cache:4"]);
        assert_eq!(arrows_of("hooks.rs", "use crate::Log;\nuse crate::*;"), ["log:1", "*:2"]);
    }

    #[test]
    fn what_is_no_arrow_is_not_found() {
        let none = [
            "fn f() { crate::lock() } // crate::log",
            "use crate::{Own, new};",
            "#[cfg(doc)]\nuse crate::{\n    log,\n    cache,\n};",
            "#[cfg(test)]\nuse std::fmt;\n\n#[cfg(test)]\n#[allow(x)]\npub(crate) mod tests {\n    use crate::log::Log;\n",
            "use std::log;",
        ];
        for text in none {
            assert_eq!(arrows_of("hooks.rs", text), Vec::<String>::new(), "{text}");
        }
        assert_eq!(arrows_of("hooks/tests.rs", "use crate::log;"), Vec::<String>::new());
        assert_eq!(arrows_of("log/disk.rs", "use super::cache;"), Vec::<String>::new());
    }
}
