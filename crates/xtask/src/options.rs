//! docs/OPTIONS.md names each option that the parsers of the program `soda` know, and no other.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

const DOCUMENT: &str = "docs/OPTIONS.md";
/// Has the list of what `-o` takes. (A test beside it compares that with the parser and the help.)
const MOUNT_OPTIONS: &str = "crates/cli/src/options.rs";
/// Has the command line.
const ARGUMENTS: &str = "crates/cli/src/args.rs";

/// A part of the document, and the structure that its options are fields of.
const COMMANDS: [(&str, &str); 3] =
    [("## `soda mount`", "MountArgs"), ("## `soda serve`", "ServeArgs"), ("## All commands", "LogArgs")];
const MOUNT: &str = "## Options of a mount";

/// Options without a line, and lines without an option.
pub(crate) fn check(root: &Path) -> Vec<String> {
    let [document, list, arguments] =
        [DOCUMENT, MOUNT_OPTIONS, ARGUMENTS].map(|name| match fs::read_to_string(root.join(name)) {
            Ok(text) => Ok(text),
            Err(error) => Err(vec![format!("{name}: {error}")]),
        });
    match (document, list, arguments) {
        (Ok(document), Ok(list), Ok(arguments)) => compare(&document, &list, &arguments),
        (Err(failures), ..) | (_, Err(failures), _) | (.., Err(failures)) => failures,
    }
}

fn compare(document: &str, list: &str, arguments: &str) -> Vec<String> {
    let mut failures = differences(MOUNT, &named(document, MOUNT), &of_mount(list));
    for (part, structure) in COMMANDS {
        failures.extend(differences(part, &named(document, part), &of_command(arguments, structure)));
    }
    failures
}

fn differences(part: &str, named: &BTreeSet<String>, known: &BTreeSet<String>) -> Vec<String> {
    if named.is_empty() || known.is_empty() {
        return vec![format!("{DOCUMENT}: \"{part}\": no options are found there, or in the program")];
    }
    let lacks = known.difference(named).map(|name| format!("{DOCUMENT}: \"{part}\" lacks `{name}`"));
    let is_no = named.difference(known).map(|name| format!("{DOCUMENT}: `{name}` is no option: \"{part}\""));
    lacks.chain(is_no).collect()
}

/// The names in the first cells of a part's tables.
fn named(document: &str, part: &str) -> BTreeSet<String> {
    let lines = document.lines().skip_while(|line| *line != part).skip(1);
    let rows = lines.take_while(|line| !line.starts_with("## ")).filter_map(|line| line.strip_prefix("| `"));
    let cells = rows.filter_map(|row| row.split(" | ").next());
    cells.flat_map(|cell| cell.split(", ")).filter_map(name).collect()
}

/// `soft` of `soft[=TIME]`, `--data` of `--data DIR`.
fn name(option: &str) -> Option<String> {
    let name = option.trim_matches('`').split(['=', '[', ' ', '`']).next()?;
    (!name.is_empty()).then(|| name.to_owned())
}

/// What `MOUNT_OPTIONS` has.
fn of_mount(source: &str) -> BTreeSet<String> {
    let text = source.split_once("MOUNT_OPTIONS: &str = \"").map_or("", |(_, rest)| rest);
    let text = text.split_once("\";").map_or("", |(list, _)| list);
    text.split(',')
        .map(|option| option.trim_start_matches(|c: char| c == '\\' || c.is_whitespace()))
        .filter_map(name)
        .collect()
}

/// The fields of a structure of clap's that are options and not hidden.
fn of_command(source: &str, structure: &str) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    let mut attributes = String::new();
    let lines = source.lines().skip_while(|line| !line.contains(&format!("struct {structure} "))).skip(1);
    for line in lines.take_while(|line| *line != "}").map(str::trim).filter(|line| !line.starts_with("///")) {
        let Some(field) =
            line.strip_prefix("pub ").and_then(|line| line.split_once(':')).map(|(name, _)| name)
        else {
            attributes.push_str(line);
            continue;
        };
        if !attributes.contains("hide = true") {
            let words = || attributes.split(['(', ',', ')']).map(str::trim);
            for word in words() {
                match word.split_once(" = ") {
                    None if word == "long" => found.insert(format!("--{}", field.replace('_', "-"))),
                    Some(("long", name)) => found.insert(format!("--{}", name.trim_matches('"'))),
                    None if word == "short" => {
                        found.insert(format!("-{}", field.chars().take(1).collect::<String>()))
                    }
                    Some(("short", letter)) => found.insert(format!("-{}", letter.trim_matches('\''))),
                    _ => false,
                };
            }
        }
        attributes.clear();
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    const DOCUMENT: &str = "## Options of a mount\n| option | meaning |\n| `soft[=TIME]`, `ro` | `x`, y |\n\
        ## `soda mount`\n| `-o OPTIONS` | a |\n## `soda serve`\n| `--data-cache SIZE` | a |\n\
        ## All commands\n| `--log FILTER`, `-l` | a |\n";
    const LIST: &str = "const MOUNT_OPTIONS: &str = \"soft[=TIME], \\\n    ro\";";
    const ARGUMENTS: &str = "struct MountArgs {\n    #[arg(\n        short = 'o',\n        value_name = \"O\"\n    )]\n    \
        pub options: Vec<String>,\n    /// Where\n    pub dir: PathBuf,\n    #[arg(long, hide = true)]\n    \
        pub daemon: bool,\n}\n\
        struct ServeArgs {\n    #[arg(long, value_name = \"SIZE\")]\n    pub data_cache: u64,\n}\n\
        struct LogArgs {\n    #[arg(long = \"log\", short)]\n    pub level: String,\n}\n";

    #[test]
    fn what_is_named_and_known_is_fine() {
        assert_eq!(compare(DOCUMENT, LIST, ARGUMENTS), Vec::<String>::new());
    }

    #[test]
    fn an_option_without_a_line_and_a_line_without_an_option_are_found() {
        let renamed = compare(&DOCUMENT.replace("--data-cache", "--data"), LIST, ARGUMENTS);
        assert!(renamed.len() == 2 && renamed[0].contains("lacks `--data-cache`"), "{renamed:?}");
        let more = compare(DOCUMENT, &LIST.replace("ro\"", "ro, rw\""), ARGUMENTS);
        assert!(more.len() == 1 && more[0].contains("lacks `rw`"), "{more:?}");
        let other = compare(&DOCUMENT.replace("## All commands", "## Others"), LIST, ARGUMENTS);
        assert!(other.iter().any(|failure| failure.contains("no options are found")), "{other:?}");
    }
}
