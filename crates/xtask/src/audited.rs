//! Unsafe code stays where it is looked after. The compiler refuses it everywhere (`unsafe_code = "deny"`, the lints of the
//! workspace) but where a file allows it: here is which may, and that every crate has these lints.

use crate::sources::rust_files;
use std::fs;
use std::path::Path;

/// In two pieces, so that this file does not have it.
const LINT: &str = concat!("unsafe", "_code");
const MANIFEST: &str = "Cargo.toml";

/// Of what is shipped, one module. The others are for tests: an allocator that counts, and stores to mapped files.
const ALLOWED: [&str; 3] =
    ["crates/fuse/src/wire/audited.rs", "crates/lease/tests/scale.rs", "crates/system-tests/src/mapping.rs"];

/// What the sources and manifests below `root` allow that they must not.
pub(crate) fn check(root: &Path) -> Vec<String> {
    let read = |name: &str| fs::read_to_string(root.join(name)).unwrap_or_default();
    let mut failures = Vec::from_iter(check_workspace(&read(MANIFEST)));
    for entry in fs::read_dir(root.join("crates")).into_iter().flatten().flatten() {
        let name = format!("crates/{}/{MANIFEST}", entry.file_name().display());
        failures.extend(check_manifest(&name, &read(&name)));
    }
    for path in rust_files(&root.join("crates")) {
        let name = path.strip_prefix(root).unwrap_or(&path).display().to_string();
        failures.extend(check_source(&name, &read(&name)));
    }
    failures.sort();
    failures
}

fn check_workspace(manifest: &str) -> Option<String> {
    let denied = format!("{LINT} = \"deny\"");
    let lints = manifest.split("[workspace.lints.rust]").nth(1).and_then(|rest| rest.split("\n[").next());
    let is_denied = lints.is_some_and(|lints| lints.lines().any(|line| line == denied));
    (!is_denied).then(|| format!("{MANIFEST}: the workspace's lints lack `{denied}`"))
}

fn check_manifest(name: &str, manifest: &str) -> Option<String> {
    let inherits = manifest.contains("[lints]\nworkspace = true\n");
    (!inherits).then(|| format!("{name}: its lints are not the workspace's"))
}

fn check_source(name: &str, text: &str) -> Vec<String> {
    let allows = |line: &str| line.split("//").next().is_some_and(|code| code.contains(LINT));
    let allowing = text.lines().enumerate().filter(|(_, line)| allows(line));
    let mut numbers = allowing.map(|(number, _)| number + 1);
    match ALLOWED.contains(&name) {
        false => numbers
            .map(|number| format!("{name}:{number}: unsafe code belongs into {}", ALLOWED[0]))
            .collect(),
        true if numbers.next().is_none() => {
            vec![format!("{name}: it has no unsafe code any more, strike it off the list")]
        }
        true => Vec::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_module_and_two_tests_may_allow_it() {
        for word in ["allow", "expect", "warn"] {
            let text = format!("//! Text.\n\n#![{word}({LINT})]\n");
            assert_eq!(check_source("crates/client/src/lib.rs", &text).len(), 1, "{word}");
            assert!(check_source("crates/client/src/lib.rs", &text)[0].contains("lib.rs:3: "));
            ALLOWED.iter().for_each(|name| assert_eq!(check_source(name, &text), Vec::<String>::new()));
        }
        let comment = format!("// as `{LINT}` is denied\n");
        assert_eq!(check_source("crates/client/src/lib.rs", &comment), Vec::<String>::new());
        assert_eq!(check_source(ALLOWED[0], "").len(), 1, "a list that is out of date");
    }

    #[test]
    fn a_crate_with_lints_of_its_own_is_found() {
        assert_eq!(check_manifest("a", "[package]\n\n[lints]\nworkspace = true\n"), None);
        assert!(check_manifest("a", "[package]\n").is_some());
        assert!(check_manifest("a", "[package]\n\n[lints.rust]\nunused = \"allow\"\n").is_some());
        let workspace = |how: &str| format!("[workspace.lints.rust]\n{LINT} = \"{how}\"\n\n[profile.dev]\n");
        assert_eq!(check_workspace(&workspace("deny")), None);
        assert!(check_workspace(&workspace("warn")).is_some());
        assert!(check_workspace(&format!("[profile.dev]\n{LINT} = \"deny\"\n")).is_some());
    }

    #[test]
    fn nothing_of_this_workspace_is_left_out() {
        assert_eq!(check(&crate::root()), Vec::<String>::new());
        assert!(check(Path::new("/no/such/dir")).len() == 1, "only the workspace's lints are missing there");
    }
}
