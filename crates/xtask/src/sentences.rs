//! docs/SEMANTICS.md numbers what Soda promises, and tests say which promise they hold Soda to: a comment
//! `SEMANTICS 14` or `SEMANTICS 1-4, 13` of its own, above the test. No promise without a test, no test of a promise that
//! nobody makes.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

const DOCUMENT: &str = "docs/SEMANTICS.md";
/// Where tests are.
const PLACES: [&str; 2] = ["crates", "tests"];
const LANGUAGES: [&str; 3] = ["rs", "py", "sh"];
const TAG: &str = "SEMANTICS ";

/// Sentences without a test, and tags that mean nothing.
pub(crate) fn check(root: &Path) -> Vec<String> {
    let document = match fs::read_to_string(root.join(DOCUMENT)) {
        Ok(text) => text,
        Err(error) => return vec![format!("{DOCUMENT}: {error}")],
    };
    let mut paths = Vec::new();
    for place in PLACES {
        collect(&root.join(place), &mut paths);
    }
    paths.sort();
    let mut tests = Vec::new();
    let mut failures = Vec::new();
    for path in paths {
        let name = path.strip_prefix(root).unwrap_or(&path).display().to_string();
        match fs::read_to_string(&path) {
            Ok(text) => tests.push((name, text)),
            Err(error) => failures.push(format!("{name}: {error}")),
        }
    }
    failures.extend(compare(&document, &tests));
    failures
}

fn compare(document: &str, tests: &[(String, String)]) -> Vec<String> {
    let (sentences, mut failures) = number(document);
    failures.extend(exceptions(document));
    let mut tested = BTreeSet::new();
    for (name, text) in tests {
        let lines: Vec<&str> = text.lines().collect();
        for (index, line) in lines.iter().enumerate() {
            let Some(list) = tag(line) else { continue };
            let place = format!("{name}:{}", index + 1);
            let following = &lines[index + 1..];
            let is_above_a_test = match Path::new(name).extension().and_then(|extension| extension.to_str()) {
                Some("rs") => is_above_a_rust_test(following),
                Some("py") => following.first().is_some_and(|line| *line == "@test"),
                // One script is one test.
                _ => true,
            };
            if !is_above_a_test {
                failures.push(format!("{place}: a tag of {DOCUMENT} that is not above a test that runs"));
                continue;
            }
            match numbers(list) {
                Some(numbers) => {
                    let unknown = numbers.iter().filter(|number| !sentences.contains_key(number));
                    failures.extend(
                        unknown.map(|number| format!("{place}: {DOCUMENT} has no sentence {number}")),
                    );
                    tested.extend(numbers);
                }
                None => {
                    failures.push(format!("{place}: `{list}` is no list of sentences, such as `1-4, 13`"))
                }
            }
        }
    }
    let untested = sentences.iter().filter(|(number, _)| !tested.contains(number));
    failures
        .extend(untested.map(|(number, line)| format!("{DOCUMENT}:{line}: sentence {number} has no test")));
    failures
}

/// The sentences with their lines; what is wrong with their numbers.
fn number(document: &str) -> (BTreeMap<u32, usize>, Vec<String>) {
    let (mut found, mut failures) = (BTreeMap::new(), Vec::new());
    for (index, line) in document.lines().enumerate() {
        let Some(number) = line.split_once(". ").and_then(|(number, _)| number.parse::<u32>().ok()) else {
            continue;
        };
        let expected = found.len() as u32 + 1;
        if number != expected {
            failures.push(format!("{DOCUMENT}:{}: sentence {number} where {expected} comes", index + 1));
        }
        found.insert(number, index + 1);
    }
    (found, failures)
}

/// What is wrong with the numbers of exceptions: `- <a id="e1"></a>**E1** ...`.
fn exceptions(document: &str) -> Vec<String> {
    let mut failures = Vec::new();
    let lines = document.lines().enumerate().filter(|(_, line)| line.starts_with("- <a id=\"e"));
    for (count, (index, line)) in lines.enumerate() {
        let number = count + 1;
        if !line.starts_with(&format!("- <a id=\"e{number}\"></a>**E{number}** ")) {
            failures
                .push(format!("{DOCUMENT}:{}: exception E{number} comes here, and is marked so", index + 1));
        }
    }
    failures
}

/// What a comment of this form lists.
fn tag(line: &str) -> Option<&str> {
    let line = line.trim_start();
    let comment = line.strip_prefix("// ").or_else(|| line.strip_prefix("# "))?;
    comment.strip_prefix(TAG).map(str::trim_end)
}

/// Attributes follow, one of them makes it a test, and none keeps it from running.
fn is_above_a_rust_test(following: &[&str]) -> bool {
    let attributes = following
        .iter()
        .map(|line| line.trim())
        .filter(|line| !line.is_empty() && !line.starts_with("//"))
        .take_while(|line| line.starts_with("#["));
    let attributes: Vec<&str> = attributes.collect();
    let is_test = |line: &&str| line.starts_with("#[test]") || line.starts_with("#[tokio::test");
    attributes.iter().any(is_test) && !attributes.iter().any(|line| line.starts_with("#[ignore"))
}

/// `1-4, 13` as numbers.
fn numbers(list: &str) -> Option<Vec<u32>> {
    let mut all = Vec::new();
    for part in list.split(", ") {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let (first, last) = (first.parse::<u32>().ok()?, last.parse::<u32>().ok()?);
        if first > last {
            return None;
        }
        all.extend(first..=last);
    }
    Some(all)
}

fn collect(dir: &Path, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(dir).into_iter().flatten().flatten() {
        let path = entry.path();
        if path.is_dir() {
            collect(&path, found);
        } else if path.extension().is_some_and(|extension| LANGUAGES.iter().any(|of| extension == *of))
            && !path.ends_with("xtask/src/sentences.rs")
        {
            found.push(path);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DOCUMENT: &str = "# What\n\n1. One\n   copy.\n2. Names.\n3. Data.\n";

    fn compared(name: &str, text: &str) -> Vec<String> {
        compare(DOCUMENT, &[(name.to_owned(), text.to_owned())])
    }

    #[test]
    fn every_sentence_with_a_test_is_fine() {
        let rust = "// SEMANTICS 1-2, 3\n/// Says why.\n#[test]\nfn t() {}\n";
        assert_eq!(compared("a.rs", rust), Vec::<String>::new());
        assert_eq!(compared("a.py", "# SEMANTICS 1-3\n@test\ndef t():\n"), Vec::<String>::new());
    }

    #[test]
    fn a_sentence_without_a_test_and_a_test_without_a_sentence_are_found() {
        let failures = compared("a.sh", "# SEMANTICS 1\n# SEMANTICS 3-4\n");
        assert_eq!(failures.len(), 2, "{failures:?}");
        assert!(failures[0].contains("no sentence 4") && failures[1].contains("sentence 2 has no test"));
    }

    #[test]
    fn a_tag_counts_only_above_a_test_that_runs() {
        for text in [
            "// SEMANTICS 1-3\nfn helper() {}\n",
            "// SEMANTICS 1-3\n#[test]\n#[ignore]\nfn t() {}\n",
            "let x = 1; // SEMANTICS 1-3\n",
        ] {
            assert!(compared("a.rs", text).len() >= 3, "{text}");
        }
        assert!(compared("a.py", "# SEMANTICS 1-3\ndef helper():\n").len() >= 3);
        assert!(compared("a.sh", "# SEMANTICS one\n")[0].contains("no list"));
    }

    #[test]
    fn sentences_are_numbered_without_gaps() {
        assert_eq!(number("1. A\n3. B\n").1.len(), 1);
    }

    #[test]
    fn exceptions_are_numbered_without_gaps_and_marked_as_they_are_called() {
        let line = |mark: u32, number: u32| format!("- <a id=\"e{mark}\"></a>**E{number}** So it is.\n");
        assert_eq!(exceptions(&format!("{}{}", line(1, 1), line(2, 2))), Vec::<String>::new());
        assert_eq!(exceptions(&format!("{}{}", line(1, 1), line(3, 3))).len(), 1);
        assert_eq!(exceptions(&line(1, 2)).len(), 1);
    }
}
