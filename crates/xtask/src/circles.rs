//! No modules of the top of a crate use each other in a circle: so that each can be read, and changed, with those in mind
//! that stand below it only.

use crate::modules::{Arrow, arrows, sources};
use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

/// A circle of each crate that has one, and where it cannot be seen whether there is one.
pub(crate) fn check(root: &Path) -> Vec<String> {
    let crates = root.join("crates");
    let entries = match fs::read_dir(&crates) {
        Ok(entries) => entries,
        Err(error) => return vec![format!("{}: {error}", crates.display())],
    };
    let mut names: Vec<String> =
        entries.flatten().map(|entry| entry.file_name().to_string_lossy().into_owned()).collect();
    names.sort();
    let check = |name: String| match sources(root, &name) {
        Ok(files) => failures(&name, &arrows(&files)),
        Err(error) => vec![format!("crates/{name}/src: {error}")],
    };
    names.into_iter().flat_map(check).collect()
}

fn failures(name: &str, arrows: &[Arrow]) -> Vec<String> {
    let everything = arrows.iter().filter(|arrow| arrow.to == "*");
    let vague = everything
        .map(|Arrow { file, line, .. }| format!("crates/{name}/src/{file}:{line}: name what is used"));
    vague.chain(circle(arrows).map(|circle| report(name, &circle))).collect()
}

fn report(name: &str, circle: &[Arrow]) -> String {
    let arrows =
        circle.iter().map(|Arrow { from, to, file, line }| format!("`{from}` uses `{to}` ({file}:{line})"));
    format!("crates/{name}/src: modules in a circle: {}", arrows.collect::<Vec<_>>().join(", "))
}

/// Arrows, each from where the one before it leads to, the first from where the last does. `None`: there are no such.
fn circle(arrows: &[Arrow]) -> Option<Vec<Arrow>> {
    let mut left: BTreeMap<&str, Vec<&Arrow>> = BTreeMap::new();
    for arrow in arrows {
        left.entry(&arrow.from).or_default().push(arrow);
    }
    // Who uses nobody that is left is in no circle.
    loop {
        let lowest = |uses: &Vec<&Arrow>| !uses.iter().any(|arrow| left.contains_key(arrow.to.as_str()));
        let Some(name) = left.iter().find(|(_, uses)| lowest(uses)).map(|(name, _)| *name) else { break };
        left.remove(name);
    }
    let mut way: Vec<&Arrow> = Vec::new();
    let mut at = *left.keys().next()?;
    loop {
        if let Some(begin) = way.iter().position(|arrow| arrow.from == at) {
            return Some(way[begin..].iter().map(|arrow| (*arrow).clone()).collect());
        }
        let next = left.get(at)?.iter().find(|arrow| left.contains_key(arrow.to.as_str()))?;
        way.push(next);
        at = &next.to;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn circle_of(arrows: &[(&str, &str)]) -> Option<Vec<String>> {
        let arrows: Vec<Arrow> = arrows
            .iter()
            .map(|(from, to)| Arrow {
                from: (*from).to_owned(),
                to: (*to).to_owned(),
                file: format!("{from}.rs"),
                line: 1,
            })
            .collect();
        Some(circle(&arrows)?.into_iter().map(|arrow| arrow.from).collect())
    }

    #[test]
    fn an_order_has_no_circle() {
        assert_eq!(circle_of(&[]), None);
        assert_eq!(circle_of(&[("a", "b"), ("a", "c"), ("b", "c"), ("d", "a")]), None);
    }

    #[test]
    fn a_circle_is_found_wherever_it_is_and_named_without_what_leads_there() {
        assert_eq!(circle_of(&[("b", "a"), ("a", "b")]).unwrap(), ["a", "b"]);
        let far = [("a", "b"), ("b", "d"), ("b", "c"), ("c", "e"), ("e", "f"), ("f", "c"), ("g", "f")];
        assert_eq!(circle_of(&far).unwrap(), ["c", "e", "f"]);
    }

    #[test]
    fn a_report_says_where() {
        let arrow = Arrow { from: "a".into(), to: "b".into(), file: "a/mod.rs".into(), line: 7 };
        assert_eq!(report("x", &[arrow]), "crates/x/src: modules in a circle: `a` uses `b` (a/mod.rs:7)");
        let all = Arrow { from: "a".into(), to: "*".into(), file: "a.rs".into(), line: 2 };
        assert_eq!(failures("x", &[all]), ["crates/x/src/a.rs:2: name what is used"]);
    }
}
