//! The project's chores: `cargo xtask check` is the gate (it changes nothing), `cargo xtask fix` repairs what a tool can.

mod arrows;
mod audited;
mod circles;
mod links;
mod modules;
mod options;
mod programs;
mod rooms;
mod sentences;
mod sources;

use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

const USAGE: &str = "usage: cargo xtask check [--quick] | fix

check          everything CI asks for but the tests: format, lints, documentation, arrows of crates and modules,
               rules on sources, unsafe code, tests that no program has, a test for each number of docs/SEMANTICS.md,
               docs/OPTIONS.md against the parsers, links of documents
check --quick  without compiling anything
fix            formats, and applies what the lints can mend by themselves";

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let root = root();
    let failures = match words[..] {
        ["check"] => check(&root, Depth::Full),
        ["check", "--quick"] => check(&root, Depth::Quick),
        ["fix"] => fix(&root),
        _ => {
            eprintln!("{USAGE}");
            return ExitCode::from(2);
        }
    };
    for failure in &failures {
        eprintln!("xtask: {failure}");
    }
    if failures.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Depth {
    /// Reads sources and manifests only.
    Quick,
    Full,
}

/// Everything that is wrong, a line each.
fn check(root: &Path, depth: Depth) -> Vec<String> {
    let mut failures = sources::check(root);
    failures.extend(audited::check(root));
    failures.extend(programs::check(root));
    failures.extend(sentences::check(root));
    failures.extend(options::check(root));
    failures.extend(links::check(root));
    failures.extend(check_arrows(root));
    failures.extend(cargo(root, "format (cargo xtask fix)", &[], &["fmt", "--all", "--check"]));
    if depth == Depth::Full {
        let lints = ["clippy", "-q", "--workspace", "--all-targets", "--locked", "--", "-D", "warnings"];
        failures.extend(cargo(root, "lints", &[], &lints));
        let docs = ["doc", "-q", "--workspace", "--no-deps", "--locked", "--document-private-items"];
        let strict = [("RUSTDOCFLAGS", "-D warnings -A rustdoc::private_intra_doc_links")];
        failures.extend(cargo(root, "documentation", &strict, &docs));
    }
    failures
}

fn check_arrows(root: &Path) -> Vec<String> {
    let arguments = ["metadata", "--no-deps", "--format-version", "1"];
    match std::fs::read_to_string(root.join(arrows::DOCUMENT)) {
        Ok(document) => {
            let mut failures =
                run(root, "cargo metadata", &[], &arguments, |json| arrows::check(&document, json));
            failures.extend(rooms::check(&document, root));
            failures.extend(circles::check(root));
            failures
        }
        Err(error) => vec![format!("{}: {error}", arrows::DOCUMENT)],
    }
}

fn fix(root: &Path) -> Vec<String> {
    let lints = ["clippy", "-q", "--fix", "--allow-dirty", "--allow-staged", "--workspace", "--all-targets"];
    let mut failures = cargo(root, "lints", &[], &lints);
    failures.extend(cargo(root, "format", &[], &["fmt", "--all"]));
    failures
}

/// Runs cargo with its output shown; one line if it fails.
fn cargo(root: &Path, what: &str, environment: &[(&str, &str)], arguments: &[&str]) -> Vec<String> {
    let status = command(root, environment, arguments).status();
    match status {
        Ok(status) if status.success() => Vec::new(),
        Ok(_) => vec![format!("{what}: see above")],
        Err(error) => vec![format!("{what}: cargo cannot be run: {error}")],
    }
}

/// Runs cargo and judges its output.
fn run(
    root: &Path,
    what: &str,
    environment: &[(&str, &str)],
    arguments: &[&str],
    judge: impl FnOnce(&[u8]) -> Vec<String>,
) -> Vec<String> {
    match command(root, environment, arguments).output() {
        Ok(output) if output.status.success() => judge(&output.stdout),
        Ok(output) => vec![format!("{what}: {}", String::from_utf8_lossy(&output.stderr))],
        Err(error) => vec![format!("{what}: cargo cannot be run: {error}")],
    }
}

fn command(root: &Path, environment: &[(&str, &str)], arguments: &[&str]) -> Command {
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command.current_dir(root).envs(environment.iter().copied()).args(arguments);
    command
}

/// The workspace, two levels above this crate.
fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}
