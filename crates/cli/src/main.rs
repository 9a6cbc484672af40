//! The program `soda`: every part of the system behind one command line. See [`args`] for the syntax.

mod admin;
mod answer;
mod args;
mod backlog;
mod binds;
mod cache_dirs;
mod commands;
mod control;
mod ending;
mod error;
mod json;
mod lab_args;
mod log;
mod log_file;
mod log_queue;
mod options;
mod panics;
mod plan;
mod progress;
mod remount;
mod scratch;
mod spec;
mod table;
mod takeover;
mod units;
mod user;
mod within;

use args::{Cli, Command};
use clap::Parser;
use error::CliError;
use log::Writing;
use std::ffi::OsString;
use std::process::ExitCode;

/// What a mount's daemon logs: warnings; and how it answers the kernel, with the reason if not as it could.
const DAEMON_LOG: &str = "warn,soda_fuse::mount=info,soda_fuse::wire::connection=info";

fn main() -> ExitCode {
    let arguments: Vec<OsString> = std::env::args_os().collect();
    if let Some(ended) = commands::beside::run(&arguments) {
        return ended;
    }
    if commands::cleaner::is_meant(&arguments) {
        return commands::cleaner::run(&arguments);
    }
    let cli = match commands::helper::rewrite(arguments) {
        Ok(arguments) => Cli::parse_from(arguments),
        Err(error) => return fail(&error),
    };
    let ended = run(cli);
    log::finish();
    match ended {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => fail(&error),
    }
}

fn fail(error: &CliError) -> ExitCode {
    eprintln!("soda: {error}");
    ExitCode::from(error.code())
}

fn run(cli: Cli) -> Result<(), CliError> {
    let default_filter = match &cli.command {
        Command::Serve(_) => "info,fjall=warn,lsm_tree=warn",
        Command::Mount(arguments) if arguments.foreground && !arguments.daemon => "info",
        Command::Mount(arguments) if arguments.daemon => DAEMON_LOG,
        _ => "warn",
    };
    let writing = match &cli.command {
        Command::Serve(_) => Writing::Aside,
        Command::Mount(arguments) if arguments.foreground => Writing::Aside,
        _ => Writing::AtOnce,
    };
    log::start(&cli.log, default_filter, writing)?;
    panics::end_the_process();
    match cli.command {
        Command::Serve(arguments) => commands::serve::run(arguments),
        Command::Mount(arguments) => commands::mount::run(arguments, &cli.log),
        Command::Umount(arguments) => commands::umount::run(&arguments),
        Command::Sync(arguments) => commands::sync::run(&arguments),
        Command::Recover(arguments) => commands::recover::run(&arguments),
        Command::Status(arguments) => commands::status::run(&arguments),
        Command::Doctor(arguments) => commands::doctor::run(&arguments),
        Command::Lease(arguments) => commands::lease::run(&arguments),
        Command::Stats(arguments) => commands::stats::run(&arguments),
        Command::Fsck(arguments) => commands::fsck::run(&arguments),
        Command::Lab(command) => commands::lab::run(&command),
        Command::Demo(arguments) => commands::demo::run(arguments),
        Command::Completions { shell } => commands::documents::completions(shell),
        Command::Man { all: Some(dir), .. } => commands::documents::all_pages(&dir),
        Command::Man { subcommand, .. } => commands::documents::man(&subcommand),
    }
}
