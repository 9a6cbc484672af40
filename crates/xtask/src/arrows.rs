//! Which crate may depend on which: the code map of ARCHITECTURE.md, as a test. What the map does not allow is refused, and
//! so is what it allows and nobody uses.

use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};

/// Where the map is: a table whose rows are a crate, what it is, what it uses, what its tests use besides.
pub(crate) const DOCUMENT: &str = "ARCHITECTURE.md";
/// Every crate may know it without a word.
const EVERYBODYS: &str = "types";

/// The crates of the workspace that one of them may know.
#[derive(Debug, Default)]
struct Row {
    uses: BTreeSet<String>,
    tests_use: BTreeSet<String>,
}

/// Crates of others that only one of ours may know: the wire, the store and the kernel each have one door.
const DOORS: &[(&str, &[&str])] =
    &[("fjall", &["storage"]), ("postcard", &["protocol", "oplog", "volume", "server", "client"])];

/// What in the output of `cargo metadata` the map does not allow, and what of the map is idle.
pub(crate) fn check(document: &str, metadata: &[u8]) -> Vec<String> {
    let Ok(metadata) = serde_json::from_slice::<Value>(metadata) else {
        return vec!["cargo metadata printed no JSON".to_owned()];
    };
    let mut rows = rows(document);
    let mut failures = Vec::new();
    for package in array(&metadata["packages"]) {
        let name = own_name(&package["name"]).unwrap_or_default();
        match rows.remove(name) {
            Some(row) => failures.extend(compare(name, &row, array(&package["dependencies"]))),
            None => failures.push(format!("crate `{name}` has no row in the code map of {DOCUMENT}")),
        }
    }
    failures.extend(rows.keys().map(|name| format!("{DOCUMENT} has a row for `{name}`, which is no crate")));
    failures
}

/// The rows of the code map by crate.
fn rows(document: &str) -> BTreeMap<String, Row> {
    let names = |cell: &str| cell.split('`').skip(1).step_by(2).map(str::to_owned).collect::<BTreeSet<_>>();
    let mut found = BTreeMap::new();
    for line in document.lines().filter(|line| line.starts_with("| `")) {
        let cells: Vec<&str> = line.split('|').collect();
        let [_, name, _, uses, tests_use, ..] = cells[..] else { continue };
        let row = Row { uses: names(uses), tests_use: names(tests_use) };
        found.extend(names(name).pop_first().map(|name| (name, row)));
    }
    found
}

fn compare(name: &str, row: &Row, dependencies: &[Value]) -> Vec<String> {
    let mut failures = Vec::new();
    let (mut used, mut used_by_tests) = (BTreeSet::new(), BTreeSet::new());
    for dependency in dependencies {
        let is_test = dependency["kind"] == "dev";
        match own_name(&dependency["name"]) {
            Some(EVERYBODYS) => {}
            Some(other) if is_test => _ = used_by_tests.insert(other.to_owned()),
            Some(other) => _ = used.insert(other.to_owned()),
            None if is_test => {}
            None => failures.extend(wrong_door(name, dependency["name"].as_str().unwrap_or_default())),
        }
    }
    for other in used.difference(&row.uses) {
        failures.push(format!("`{name}` must not depend on `{other}` (the code map of {DOCUMENT})"));
    }
    for other in used_by_tests.difference(&row.tests_use).filter(|other| !row.uses.contains(*other)) {
        failures.push(format!("tests of `{name}` must not depend on `{other}` (the code map of {DOCUMENT})"));
    }
    let idle = row.uses.difference(&used).chain(row.tests_use.difference(&used_by_tests));
    failures.extend(idle.map(|other| format!("{DOCUMENT}: `{name}` may use `{other}` and does not")));
    failures
}

fn wrong_door(name: &str, foreign: &str) -> Option<String> {
    let (_, doors) = DOORS.iter().find(|(behind, _)| *behind == foreign)?;
    (!doors.contains(&name)).then(|| format!("`{name}` must not depend on {foreign}: only {doors:?} may"))
}

/// The name of one of our crates without its prefix.
fn own_name(name: &Value) -> Option<&str> {
    name.as_str()?.strip_prefix("soda-")
}

fn array(value: &Value) -> &[Value] {
    value.as_array().map_or(&[], Vec::as_slice)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    const MAP: &str = "| crate | what | uses | tests use |\n|---|---|---|---|\n| `types` | | | |\n\
                       | `lease` | not `sim` | | |\n| `client` | | `lease` | `server` |\n\
                       | `server` | | `lease` | |\n";

    /// Three crates as the map wants them, with one more dependency of one of them.
    fn failures_with(name: &str, dependency: &str, kind: Value) -> Vec<String> {
        let arrow = |on: &str, kind: Value| json!({ "name": on, "kind": kind });
        let mut packages = BTreeMap::from([
            ("types", vec![]),
            ("lease", vec![arrow("soda-types", Value::Null)]),
            ("client", vec![arrow("soda-lease", Value::Null), arrow("soda-server", json!("dev"))]),
            ("server", vec![arrow("soda-lease", Value::Null)]),
        ]);
        packages.get_mut(name).unwrap().push(arrow(dependency, kind));
        let packages = packages
            .into_iter()
            .map(|(name, arrows)| json!({ "name": format!("soda-{name}"), "dependencies": arrows }));
        check(MAP, json!({ "packages": packages.collect::<Vec<_>>() }).to_string().as_bytes())
    }

    #[test]
    fn what_the_map_allows_is_allowed() {
        assert_eq!(failures_with("types", "bytes", Value::Null), Vec::<String>::new());
        assert_eq!(failures_with("client", "soda-lease", json!("dev")), Vec::<String>::new());
    }

    #[test]
    fn a_forbidden_arrow_is_found() {
        assert_eq!(failures_with("lease", "soda-client", Value::Null).len(), 1);
        assert_eq!(failures_with("lease", "soda-server", json!("dev")).len(), 1);
        assert_eq!(failures_with("client", "soda-server", Value::Null).len(), 1);
        assert_eq!(failures_with("client", "fjall", Value::Null).len(), 1);
    }

    #[test]
    fn a_permission_that_nobody_uses_is_found() {
        let client = json!({ "name": "soda-client", "dependencies": [] });
        let failures = check(MAP, json!({ "packages": [client] }).to_string().as_bytes());
        let idle = failures.iter().filter(|failure| failure.contains("and does not"));
        assert_eq!(idle.count(), 2, "{failures:?}");
    }

    #[test]
    fn an_unknown_or_missing_crate_is_found() {
        let metadata = json!({ "packages": [{ "name": "soda-new", "dependencies": [] }] });
        assert_eq!(check(MAP, metadata.to_string().as_bytes()).len(), 1 + 4);
        assert_eq!(check(MAP, b"nonsense").len(), 1);
    }
}
