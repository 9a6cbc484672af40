//! Links of documents lead somewhere: to a file that is there, and to a heading or a mark (`<a id="…">`) in it. What is on the
//! web is not asked for.

use crate::sources::documents;
use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

/// Links that lead nowhere.
pub(crate) fn check(root: &Path) -> Vec<String> {
    let mut failures = Vec::new();
    for path in documents(root) {
        let name = path.strip_prefix(root).unwrap_or(&path).display().to_string();
        match fs::read_to_string(&path) {
            Ok(text) => failures.extend(targets(&text).into_iter().filter_map(|target| {
                let why = broken(&path, &text, &target)?;
                Some(format!("{name}: the link to `{target}`: {why}"))
            })),
            Err(error) => failures.push(format!("{name}: {error}")),
        }
    }
    failures
}

/// What `[text](target)` name, once each. A link's text may be on two lines.
fn targets(text: &str) -> BTreeSet<String> {
    let is_in_code = |before: &str| before.matches("```").count() % 2 == 1;
    let ends = text.match_indices("](").filter(|(at, _)| !is_in_code(&text[..*at]));
    ends.filter_map(|(at, mark)| text[at + mark.len()..].split_once(')'))
        .map(|(target, _)| target.to_owned())
        .collect()
}

/// Why a link of the document at `path` leads nowhere.
fn broken(path: &Path, text: &str, target: &str) -> Option<String> {
    if target.contains("://") {
        return None;
    }
    let (file, place) = target.split_once('#').unwrap_or((target, ""));
    let there = match file {
        "" => Ok(text.to_owned()),
        // A folder has no places.
        file => match path.parent().map(|dir| dir.join(file)) {
            Some(path) if path.is_dir() => Ok(String::new()),
            path => fs::read_to_string(path.unwrap_or_default()),
        },
    };
    match there {
        Err(error) => Some(error.to_string()),
        Ok(there) if place.is_empty() || places(&there).contains(place) => None,
        Ok(_) => Some("no heading is called so".to_owned()),
    }
}

/// The names of headings, as GitHub makes them, and of marks.
fn places(text: &str) -> BTreeSet<String> {
    let headings = text
        .lines()
        .filter(|line| line.starts_with('#'))
        .map(|line| slug(line.trim_start_matches('#').trim()));
    let marks = text.split("<a id=\"").skip(1).filter_map(|rest| rest.split('"').next()).map(str::to_owned);
    headings.chain(marks).collect()
}

fn slug(heading: &str) -> String {
    let kept = heading.chars().filter(|c| c.is_alphanumeric() || matches!(c, ' ' | '-' | '_'));
    kept.flat_map(char::to_lowercase).map(|c| if c == ' ' { '-' } else { c }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headings_are_called_as_their_links_call_them() {
        assert_eq!(slug("/dev/fuse and io_uring"), "devfuse-and-io_uring");
        assert_eq!(
            slug("Exceptions, and what is true of some kernels only"),
            "exceptions-and-what-is-true-of-some-kernels-only"
        );
        assert_eq!(
            slug("Delayed writes (`write=behind`, the default)"),
            "delayed-writes-writebehind-the-default"
        );
    }

    #[test]
    fn a_link_that_leads_nowhere_is_found() {
        let text = "# One copy\n- <a id=\"e1\"></a>**E1** see [1](#one-copy), [E1](#e1), [E2](#e2), [a\nb](no-such-file.md)\n\
            ```\n[x](#nothing)\n```\n[web](https://localhost/#x)";
        let broken: Vec<String> = targets(text)
            .into_iter()
            .filter(|target| broken(Path::new("docs/A.md"), text, target).is_some())
            .collect();
        assert_eq!(broken, ["#e2", "no-such-file.md"]);
    }
}
