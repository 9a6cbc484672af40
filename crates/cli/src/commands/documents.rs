//! Completions and the manual page, made from the definition of the command line.

use crate::args::Cli;
use crate::commands::print;
use crate::error::CliError;
use clap::CommandFactory;
use clap_complete::Shell;
use std::path::Path;

pub(crate) fn completions(shell: Shell) -> Result<(), CliError> {
    print(&completion_script(shell))
}

fn completion_script(shell: Shell) -> String {
    let mut text = Vec::new();
    clap_complete::generate(shell, &mut Cli::command(), "soda", &mut text);
    String::from_utf8_lossy(&text).into_owned()
}

pub(crate) fn man(words: &[String]) -> Result<(), CliError> {
    print(&page(words)?)
}

/// Every command's page as a file, `soda-lease-why.1` among them.
pub(crate) fn all_pages(dir: &Path) -> Result<(), CliError> {
    let failed = || CliError::io(format!("the manual pages in {}", dir.display()));
    std::fs::create_dir_all(dir).map_err(failed())?;
    clap_mangen::generate_to(Cli::command(), dir).map_err(failed())
}

fn page(words: &[String]) -> Result<String, CliError> {
    let mut command = Cli::command();
    for word in words {
        let inner = command.find_subcommand(word).cloned();
        command = inner.ok_or_else(|| {
            CliError::Usage(format!("there is no subcommand `{}`; see `soda --help`", words.join(" ")))
        })?;
    }
    if !words.is_empty() {
        // clap wants names that live for ever; this program prints one page and ends.
        let name: &'static str = format!("soda-{}", words.join("-")).leak();
        command = command.name(name).bin_name(format!("soda {}", words.join(" ")));
    }
    let mut text = Vec::new();
    clap_mangen::Man::new(command).render(&mut text).map_err(CliError::io("the manual page"))?;
    Ok(String::from_utf8_lossy(&text).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_can_be_made() {
        let words = |text: &str| text.split_whitespace().map(str::to_owned).collect::<Vec<_>>();
        assert!(page(&[]).unwrap().contains(".TH soda 1"));
        assert!(page(&words("lease why")).unwrap().contains(".TH soda-lease-why 1"));
        assert!(page(&words("mout")).is_err());
        assert!(completion_script(Shell::Bash).contains("_soda()"));
        let dir = tempfile::tempdir().unwrap();
        all_pages(&dir.path().join("man1")).unwrap();
        for page in ["soda.1", "soda-serve.1", "soda-lease-why.1"] {
            let text = std::fs::read_to_string(dir.path().join("man1").join(page)).unwrap();
            let name = page.trim_end_matches(".1");
            assert!(text.contains(&format!(".TH {name} 1")), "{page}: {text}");
            assert!(!text.contains("cleaner"), "{page} shows what is hidden");
        }
    }
}
