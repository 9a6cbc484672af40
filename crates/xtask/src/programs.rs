//! Test files that no program of a crate has: where `autotests = false` cargo does not look for them, so one that is forgotten
//! would never run.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

/// Files and directories in `tests` of the crates below `root` that are neither programs nor modules of one.
pub(crate) fn check(root: &Path) -> Vec<String> {
    let mut failures = Vec::new();
    for entry in fs::read_dir(root.join("crates")).into_iter().flatten().flatten() {
        let krate = entry.path();
        let tests = krate.join("tests");
        let programs = fs::read_to_string(krate.join("Cargo.toml")).ok().and_then(|text| programs(&text));
        let Some(programs) = programs else { continue };
        let modules = modules_in(&tests);
        let files =
            children(&tests).into_iter().filter(|name| !programs.contains(name) && !modules.contains(name));
        let shown = tests.strip_prefix(root).unwrap_or(&tests).display();
        failures.extend(
            files.map(|name| format!("{shown}/{name} is in no program: it needs a `mod` in {shown}/main.rs")),
        );
        for directory in children(&tests).into_iter().filter(|name| tests.join(name).is_dir()) {
            let modules = modules_in(&tests.join(&directory));
            let files = children(&tests.join(&directory)).into_iter();
            let files = files.filter(|name| name != "mod" && !modules.contains(name));
            failures.extend(
                files.map(|name| format!("{shown}/{directory}/{name}.rs is in no program: it needs a `mod`")),
            );
        }
    }
    failures
}

/// What a manifest names as programs of tests; `None`: cargo finds them by itself.
fn programs(manifest: &str) -> Option<BTreeSet<String>> {
    if !manifest.lines().any(|line| line == "autotests = false") {
        return None;
    }
    let sections = manifest.split("[[test]]").skip(1);
    let names = sections.filter_map(|section| section.split('"').nth(1));
    Some(names.map(str::to_owned).collect())
}

/// The modules that the files of a directory declare.
fn modules_in(directory: &Path) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    for name in children(directory) {
        let text = fs::read_to_string(directory.join(format!("{name}.rs"))).unwrap_or_default();
        found.extend(modules(&text).map(str::to_owned));
    }
    found
}

fn modules(text: &str) -> impl Iterator<Item = &str> {
    text.lines().filter_map(|line| {
        let declared =
            ["", "pub ", "pub(crate) "].iter().find_map(|word| line.strip_prefix(word)?.strip_prefix("mod "));
        declared?.strip_suffix(';')
    })
}

/// Rust files, without their ending, and directories.
fn children(directory: &Path) -> Vec<String> {
    let mut names = Vec::new();
    for entry in fs::read_dir(directory).into_iter().flatten().flatten() {
        let path = entry.path();
        if path.is_dir() || path.extension().is_some_and(|extension| extension == "rs") {
            names.extend(path.file_stem().and_then(|name| name.to_str()).map(str::to_owned));
        }
    }
    names.sort();
    names
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn programs_are_those_of_the_manifest_if_cargo_does_not_look() {
        let manifest =
            "[package]\nautotests = false\n\n[[test]]\nname = \"main\"\n\n[[test]]\nname = \"crash\"\n";
        assert_eq!(programs(manifest), Some(["main", "crash"].map(str::to_owned).into()));
        assert_eq!(programs("[package]\nname = \"x\"\n"), None);
    }

    #[test]
    fn modules_are_those_that_are_declared() {
        let text =
            "mod one;\npub mod two;\npub(crate) mod three;\nmod tests {\n// mod four;\nuse mod_five;\n";
        assert_eq!(modules(text).collect::<Vec<_>>(), ["one", "two", "three"]);
    }

    #[test]
    fn a_forgotten_file_is_found() {
        let root = std::env::temp_dir().join(format!("soda-xtask-programs-{}", std::process::id()));
        let krate = root.join("crates/x");
        fs::create_dir_all(krate.join("tests/deep")).expect("a temporary directory");
        let write = |name: &str, text: &str| fs::write(krate.join(name), text).expect("a temporary file");
        write("Cargo.toml", "[package]\nautotests = false\n[[test]]\nname = \"main\"\n");
        write("tests/main.rs", "mod known;\nmod deep;\n");
        write("tests/known.rs", "");
        write("tests/deep/mod.rs", "mod known;\n");
        write("tests/deep/known.rs", "");
        assert_eq!(check(&root), Vec::<String>::new());
        write("tests/forgotten.rs", "");
        write("tests/deep/forgotten.rs", "");
        let found = check(&root);
        fs::remove_dir_all(&root).expect("its own directory");
        assert_eq!(found.len(), 2, "{found:?}");
    }
}
