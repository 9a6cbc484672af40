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

pub(crate) fn man(subcommand: Option<&str>) -> Result<(), CliError> {
    let command = match subcommand {
        None => Cli::command(),
        Some(name) => {
            let all = Cli::command();
            let found = all.get_subcommands().find(|command| command.get_name() == name).cloned();
            let found = found.ok_or_else(|| {
                CliError::Usage(format!("there is no subcommand `{name}`; see `soda --help`"))
            })?;
            found.name(format!("soda-{name}").leak() as &'static str).bin_name(format!("soda {name}"))
        }
    };
    let mut text = Vec::new();
    clap_mangen::Man::new(command).render(&mut text).map_err(CliError::io("the manual page"))?;
    print(&String::from_utf8_lossy(&text))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_can_be_made() {
        man(None).unwrap();
        man(Some("mount")).unwrap();
        assert!(man(Some("mout")).is_err());
        completions(Shell::Bash).unwrap();
    }
}
