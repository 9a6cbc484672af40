//! Completions and the manual page, made from the definition of the command line.

use crate::args::Cli;
use crate::commands::print;
use crate::error::CliError;
use clap::CommandFactory;
use clap_complete::Shell;

pub(crate) fn completions(shell: Shell) -> Result<(), CliError> {
    let mut text = Vec::new();
    clap_complete::generate(shell, &mut Cli::command(), "soda", &mut text);
    print(&String::from_utf8_lossy(&text))
}

pub(crate) fn man(words: &[String]) -> Result<(), CliError> {
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
    print(&String::from_utf8_lossy(&text))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_can_be_made() {
        let words = |text: &str| text.split_whitespace().map(str::to_owned).collect::<Vec<_>>();
        man(&[]).unwrap();
        man(&words("lease why")).unwrap();
        assert!(man(&words("mout")).is_err());
        completions(Shell::Bash).unwrap();
    }
}
