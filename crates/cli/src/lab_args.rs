//! The command line of `soda lab`.

use crate::spec::ServerArg;
use crate::units::parse_duration;
use clap::{Args, Subcommand};
use soda_lab::advise::Waiting;
use soda_lab::sim::beside::Runs;
use soda_lab::sim::compare::Believed;
use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

const MODEL_HELP: &str = "N clients share a file; each reads it R times and writes it W times a second; a lease lasts t. \
Without options: figure 2 of the SODA paper. docs/LAB.md has the formula of each quantity. A sweep prints those that are usual \
for its parameter, with --csv or --json all, or what --show names.";

const SIMULATE_HELP: &str = "N clients share a file; each reads it R times and writes it W times a second, independently, each \
read or write with an open and a close. Counted are messages a second of all clients: those that only consistency needs, and \
all, beside the formulas of `soda lab model` where there is one; the first twentieth of a run is not counted. Without options: \
figure 2 of the SODA paper, at ten seconds.";

#[derive(Subcommand, Debug)]
pub(crate) enum LabCommand {
    /// What the formulas say: messages per second, delays, break-even points
    Model(ModelArgs),
    /// What protocols cost under rates of your own: the lease core and others, simulated with several seeds, beside the formulas
    Simulate(SimulateArgs),
    /// Run an experiment, or all: simulations, and measurements of servers and mounts that it starts and ends
    Run(RunArgs),
    /// One page (HTML) of all results, beside what the papers say
    Report(ReportArgs),
    /// Run a command, and record what it asks of the files below a directory, for `soda lab replay`
    Record(RecordArgs),
    /// What each protocol would have cost for a recorded trace (such as traces-build.csv of `soda lab run traces`)
    Replay(ReplayArgs),
    /// What a running server's counters recommend: term, mode, granularity
    Advise(AdviseArgs),
}

#[derive(Args, Debug)]
pub(crate) struct RunArgs {
    /// `all`, or one of those that `soda lab run list` names
    #[arg(value_name = "NAME", default_value = "list")]
    pub name: String,
    /// Less of everything: all in about two minutes
    #[arg(long)]
    pub quick: bool,
    /// Where results go: JSON, CSV, SVG and PNG of each
    #[arg(long, value_name = "DIR", default_value = "lab-results")]
    pub out: PathBuf,
    /// Print JSON: the list, or what was run and how long it took
    #[arg(long)]
    pub json: bool,
}

#[derive(Args, Debug)]
pub(crate) struct ReportArgs {
    /// Where `soda lab run` put its results; the page goes there as report.html
    #[arg(long, value_name = "DIR", default_value = "lab-results")]
    pub out: PathBuf,
}

#[derive(Args, Debug)]
pub(crate) struct RecordArgs {
    /// What is asked of files below this directory is recorded, whatever file system they are on
    #[arg(long, value_name = "DIR", default_value = ".")]
    pub dir: PathBuf,
    /// Where the trace goes
    #[arg(long, value_name = "FILE", default_value = "trace.csv")]
    pub out: PathBuf,
    /// The command, such as `make -j4`; it runs under strace, which makes its system calls slower
    #[arg(value_name = "COMMAND", required = true, trailing_var_arg = true, allow_hyphen_values = true)]
    pub command: Vec<OsString>,
}

#[derive(Args, Debug)]
pub(crate) struct ReplayArgs {
    /// CSV: seconds,client,call,bytes,path with that line first, or without bytes; calls are read, write, stat,
    /// miss, list, make, remove, and rename and link with `OLD -> NEW` for path
    #[arg(value_name = "FILE")]
    pub trace: PathBuf,
    /// Milliseconds of a round trip to the server
    #[arg(long, default_value_t = 0.5, value_name = "MS", allow_negative_numbers = true)]
    pub rtt: f64,
    /// For how many seconds NFS believes attributes of files and of directories (`actimeo` is both, `inf` for good); one row for
    /// each pair, in place of 3,30 and 6,60
    #[arg(long, value_name = "FILES,DIRS", value_parser = parse_believed, allow_hyphen_values = true)]
    pub nfs: Vec<Believed>,
    /// Print JSON
    #[arg(long, conflicts_with = "csv")]
    pub json: bool,
    /// Print CSV
    #[arg(long)]
    pub csv: bool,
}

#[derive(Args, Debug)]
pub(crate) struct AdviseArgs {
    #[command(flatten)]
    pub server: ServerArg,
    /// Advice for so many of the busiest files and directories that machines contend for, too
    #[arg(long, value_name = "N", default_value_t = 10)]
    pub objects: u32,
    /// Go by what happens in the next TIME, such as 30s, in place of all since the server's start, idle nights included
    #[arg(long, value_name = "TIME", value_parser = parse_duration)]
    pub interval: Option<Duration>,
    /// What a second is worth for which a writer waits for a client that is gone (switched off, cut off), in messages. With
    /// 0 nobody minds to wait, and leases may last as long as the session; the more it is, the shorter they should be
    #[arg(long, default_value_t = Waiting::default().price, value_name = "MESSAGES", allow_negative_numbers = true)]
    pub waiting_price: f64,
    /// The chance, 0 to 1, that a client that is asked for its lease is gone [default: as often as this server has found one]
    #[arg(long, value_name = "F", allow_negative_numbers = true)]
    pub dead: Option<f64>,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

#[derive(Args, Debug)]
#[command(after_long_help = MODEL_HELP)]
pub(crate) struct ModelArgs {
    /// N: clients that share the file
    #[arg(long, default_value_t = 5.0, allow_negative_numbers = true)]
    pub n: f64,
    /// R: reads per second of each client
    #[arg(long, default_value_t = 2.0, allow_negative_numbers = true)]
    pub r: f64,
    /// W: writes per second of each client
    #[arg(long, default_value_t = 0.1, allow_negative_numbers = true)]
    pub w: f64,
    /// t: the lease's term in seconds; `inf` is a callback
    #[arg(long, default_value_t = 10.0, allow_negative_numbers = true)]
    pub t: f64,
    /// T: a session's term in seconds, for leases that last as long as a session
    #[arg(long, default_value_t = 10.0, value_name = "T", allow_negative_numbers = true)]
    pub session: f64,
    /// How many of the clients write [default: all]
    #[arg(long, value_name = "M", allow_negative_numbers = true)]
    pub writers: Option<f64>,
    /// S of Gray and Cheriton: caches that have the file when it is written [default: all]
    #[arg(long, value_name = "S", allow_negative_numbers = true)]
    pub sharers: Option<f64>,
    /// m_prop of Gray and Cheriton: seconds of a message on the wire
    #[arg(long, default_value_t = 0.0, value_name = "SECONDS", allow_negative_numbers = true)]
    pub m_prop: f64,
    /// m_proc of Gray and Cheriton: seconds to send or receive a message
    #[arg(long, default_value_t = 0.0, value_name = "SECONDS", allow_negative_numbers = true)]
    pub m_proc: f64,
    /// epsilon of Gray and Cheriton: seconds by which clocks may differ
    #[arg(long, default_value_t = 0.0, value_name = "SECONDS", allow_negative_numbers = true)]
    pub epsilon: f64,
    /// k: files like this one, or objects in a directory
    #[arg(long, default_value_t = 1.0, value_name = "K", allow_negative_numbers = true)]
    pub files: f64,
    /// u: uses per second of each object by the one client at work in a directory [default: R]
    #[arg(long, value_name = "U", allow_negative_numbers = true)]
    pub uses: Option<f64>,
    /// c: how often a second others need an object of that directory [default: (N-1)W]
    #[arg(long, value_name = "C", allow_negative_numbers = true)]
    pub conflicts: Option<f64>,
    /// f: the chance that a holder that is asked is dead, 0 to 1
    #[arg(long, default_value_t = 0.0, value_name = "F", allow_negative_numbers = true)]
    pub dead: f64,
    /// Messages that a second is worth for which a write waits for the dead
    #[arg(long, default_value_t = 0.0, value_name = "MESSAGES", allow_negative_numbers = true)]
    pub price: f64,
    /// Seconds after which delayed writes are told
    #[arg(long, default_value_t = 1.0, value_name = "SECONDS", allow_negative_numbers = true)]
    pub age: f64,
    /// A row for each value: PARAM is one of n, r, w, t, session, writers, sharers, k, u, c, f, price, age
    #[arg(long, value_name = "PARAM=FROM..TO")]
    pub sweep: Option<String>,
    /// Each value of the sweep so many times the one before, and both axes drawn so
    #[arg(long, requires = "sweep")]
    pub log_scale: bool,
    /// Only these quantities, by the names that are printed: NAME,NAME
    #[arg(long, value_name = "NAME", value_delimiter = ',')]
    pub show: Vec<String>,
    /// Draw the sweep: FILE.svg or FILE.png
    #[arg(long, value_name = "FILE", requires = "sweep")]
    pub plot: Vec<PathBuf>,
    /// Print JSON
    #[arg(long, conflicts_with = "csv")]
    pub json: bool,
    /// Print CSV
    #[arg(long)]
    pub csv: bool,
}

#[derive(Args, Debug)]
#[command(after_long_help = SIMULATE_HELP)]
pub(crate) struct SimulateArgs {
    /// N: clients that share the file
    #[arg(long, default_value_t = Runs::default().clients, allow_negative_numbers = true)]
    pub n: f64,
    /// R: reads per second of each client
    #[arg(long, default_value_t = Runs::default().reads, allow_negative_numbers = true)]
    pub r: f64,
    /// W: writes per second of each client
    #[arg(long, default_value_t = Runs::default().writes, allow_negative_numbers = true)]
    pub w: f64,
    /// t: the lease's term in seconds; `inf` is a callback
    #[arg(long, default_value_t = Runs::default().term, allow_negative_numbers = true)]
    pub t: f64,
    /// Seconds after which delayed writes are told
    #[arg(long, default_value_t = Runs::default().age, value_name = "SECONDS", allow_negative_numbers = true)]
    pub age: f64,
    /// Runs, 2 to 30, each with a seed of its own: 1, 2, 3, ...
    #[arg(long, default_value_t = Runs::default().seeds, value_name = "RUNS")]
    pub seeds: u32,
    /// Reads and writes of each run, of all clients together
    #[arg(long, default_value_t = Runs::default().operations, value_name = "COUNT")]
    pub operations: u32,
    /// Print JSON
    #[arg(long, conflicts_with = "csv")]
    pub json: bool,
    /// Print CSV
    #[arg(long)]
    pub csv: bool,
}

/// `3,30`, or one number for both.
fn parse_believed(text: &str) -> Result<Believed, String> {
    let (files, directories) = text.split_once(',').unwrap_or((text, text));
    let seconds = |text: &str| text.trim().parse().ok();
    let times = seconds(files).zip(seconds(directories));
    let times = times.and_then(|(files, directories)| Believed::new(files, directories));
    times.ok_or_else(|| "expected seconds of files and of directories, such as 3,30; not negative".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_of_nfs_are_two_numbers_or_one_for_both() {
        let believed = |files, directories| Believed::new(files, directories).ok_or_else(String::new);
        assert_eq!(parse_believed("3,30"), believed(3.0, 30.0));
        assert_eq!(parse_believed("0.5"), believed(0.5, 0.5));
        assert_eq!(parse_believed("0, inf"), believed(0.0, f64::INFINITY));
        for wrong in ["", "3,", "3,30,60", "-1,30", "3,-1", "NaN,3", "3s", "3;30"] {
            let said = parse_believed(wrong).unwrap_err();
            assert!(said.contains("such as 3,30"), "{wrong}: {said}");
        }
    }
}
