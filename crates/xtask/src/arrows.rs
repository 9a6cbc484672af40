//! Which crate may depend on which: the architecture, as a test.

use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};

/// One crate and the crates of the workspace that it may know. Every crate may know `types`.
struct Row {
    name: &'static str,
    depends_on: &'static [&'static str],
    /// What its tests may know beyond that.
    tests_use: &'static [&'static str],
}

const TABLE: &[Row] = &[
    Row { name: "types", depends_on: &[], tests_use: &[] },
    Row { name: "lease", depends_on: &[], tests_use: &[] },
    Row { name: "model", depends_on: &[], tests_use: &[] },
    Row { name: "protocol", depends_on: &[], tests_use: &[] },
    Row { name: "storage", depends_on: &[], tests_use: &[] },
    Row { name: "oplog", depends_on: &["protocol"], tests_use: &[] },
    Row { name: "volume", depends_on: &["storage"], tests_use: &["model", "system-tests"] },
    Row { name: "server", depends_on: &["lease", "protocol", "storage", "volume"], tests_use: &["model"] },
    Row {
        name: "client",
        depends_on: &["lease", "protocol"],
        tests_use: &["server", "storage", "volume", "model"],
    },
    Row { name: "fuse", depends_on: &["client"], tests_use: &["server"] },
    Row {
        name: "cli",
        depends_on: &["server", "client", "fuse", "volume", "storage", "protocol"],
        tests_use: &["system-tests"],
    },
    Row { name: "sim", depends_on: &["lease", "storage", "model", "volume"], tests_use: &[] },
    Row { name: "system-tests", depends_on: &["model"], tests_use: &[] },
    Row { name: "xtask", depends_on: &[], tests_use: &[] },
];

/// Crates of others that only one of ours may know: the wire, the store and the kernel each have one door.
const DOORS: &[(&str, &[&str])] = &[
    ("fuser", &["fuse"]),
    ("fjall", &["storage"]),
    ("postcard", &["protocol", "oplog", "volume", "server", "client"]),
];

/// What in the output of `cargo metadata` the table does not allow.
pub(crate) fn check(metadata: &[u8]) -> Vec<String> {
    let Ok(metadata) = serde_json::from_slice::<Value>(metadata) else {
        return vec!["cargo metadata printed no JSON".to_owned()];
    };
    let rows: BTreeMap<&str, &Row> = TABLE.iter().map(|row| (row.name, row)).collect();
    let mut failures = Vec::new();
    let mut seen = BTreeSet::new();
    for package in array(&metadata["packages"]) {
        let name = own_name(&package["name"]).unwrap_or_default();
        let Some(row) = rows.get(name) else {
            failures.push(format!(
                "crate `{name}` has no row in the table of arrows (crates/xtask/src/arrows.rs)"
            ));
            continue;
        };
        seen.insert(row.name);
        for dependency in array(&package["dependencies"]) {
            failures.extend(forbidden(row, dependency));
        }
    }
    let gone = rows.keys().filter(|name| !seen.contains(*name));
    failures
        .extend(gone.map(|name| format!("the table of arrows has a row for `{name}`, which is no crate")));
    failures
}

fn forbidden(row: &Row, dependency: &Value) -> Option<String> {
    let is_test = dependency["kind"] == "dev";
    match own_name(&dependency["name"]) {
        Some("types") => None,
        Some(other) => {
            let allowed = row.depends_on.contains(&other) || is_test && row.tests_use.contains(&other);
            (!allowed).then(|| {
                format!("`{}` must not depend on `{other}` (the arrows of ARCHITECTURE.md)", row.name)
            })
        }
        None => {
            let name = dependency["name"].as_str().unwrap_or_default();
            let (_, doors) = DOORS.iter().find(|(foreign, _)| *foreign == name)?;
            let allowed = is_test || doors.contains(&row.name);
            (!allowed).then(|| format!("`{}` must not depend on {name}: only {doors:?} may", row.name))
        }
    }
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

    /// A workspace as the table wants it, with one more dependency of one crate.
    fn failures_with(name: &str, dependency: &str, kind: Value) -> Vec<String> {
        let package = |row: &Row| {
            let mut dependencies = vec![json!({ "name": "soda-types", "kind": null })];
            dependencies.extend(
                row.depends_on.iter().map(|on| json!({ "name": format!("soda-{on}"), "kind": null })),
            );
            if row.name == name {
                dependencies.push(json!({ "name": dependency, "kind": kind }));
            }
            json!({ "name": format!("soda-{}", row.name), "dependencies": dependencies })
        };
        let packages: Vec<Value> = TABLE.iter().map(package).collect();
        check(json!({ "packages": packages }).to_string().as_bytes())
    }

    #[test]
    fn the_table_allows_itself() {
        assert_eq!(failures_with("types", "bytes", Value::Null), Vec::<String>::new());
    }

    #[test]
    fn a_forbidden_arrow_is_found() {
        assert_eq!(failures_with("lease", "soda-protocol", Value::Null).len(), 1);
        assert_eq!(failures_with("lease", "soda-server", json!("dev")).len(), 1);
        assert_eq!(failures_with("client", "fuser", Value::Null).len(), 1);
        assert_eq!(failures_with("client", "soda-server", json!("dev")), Vec::<String>::new());
    }

    #[test]
    fn an_unknown_or_missing_crate_is_found() {
        let metadata = json!({ "packages": [{ "name": "soda-new", "dependencies": [] }] });
        assert_eq!(check(metadata.to_string().as_bytes()).len(), 1 + TABLE.len());
        assert_eq!(check(b"nonsense").len(), 1);
    }
}
