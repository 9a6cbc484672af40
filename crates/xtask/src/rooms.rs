//! In which order the modules of a crate build upon one another: the lists "Rooms of ..." in ARCHITECTURE.md, as a test. A module
//! names only what stands before it.

use crate::arrows::DOCUMENT;
use crate::modules::{Arrow, Source, arrows, sources, top_of};
use std::collections::BTreeMap;
use std::path::Path;

/// A crate's name follows, then a table: the second column has modules, from below to above.
const HEADING: &str = "## Rooms of `";

/// The modules of a crate, the lowest first.
#[derive(PartialEq, Eq, Debug)]
struct Rooms {
    name: String,
    modules: Vec<String>,
}

/// What in the sources below `root` goes against the lists of the document.
pub(crate) fn check(document: &str, root: &Path) -> Vec<String> {
    let mut failures = Vec::new();
    for rooms in lists(document) {
        match sources(root, &rooms.name) {
            Ok(files) => failures.extend(check_crate(&rooms, &files)),
            Err(error) => failures.push(format!("crates/{}/src: {error}", rooms.name)),
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
    for (file, _) in files {
        if let Some(module) = top_of(file).filter(|module| !places.contains_key(module)) {
            failures.push(format!("{list}: `{module}` ({file}) is missing"));
        }
    }
    for arrow in arrows(files) {
        let at = format!("crates/{}/src/{}:{}", rooms.name, arrow.file, arrow.line);
        let (from, to) = (places.get(arrow.from.as_str()), places.get(arrow.to.as_str()));
        if from.is_some() && from < to {
            let Arrow { from, to, .. } = arrow;
            failures.push(format!("{at}: `{from}` must not use `{to}`, which stands after it ({list})"));
        }
    }
    failures
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
