//! `soda lab`: what leases cost and save.

mod ground;
mod place;

use crate::admin::{Admin, server_or_default};
use crate::commands::stats::{Counters, since};
use crate::commands::{print, print_json};
use crate::error::CliError;
use crate::lab_args::{
    AdviseArgs, LabCommand, ModelArgs, RecordArgs, ReplayArgs, ReportArgs, RunArgs, SimulateArgs,
};
use crate::progress::Waiting;
use crate::units::count;
use ground::Ground;
use indicatif::ProgressBar;
use place::Place;
use serde_json::json;
use soda_lab::LabError;
use soda_lab::advise::{self, Contended, Observed};
use soda_lab::experiment::{self, Experiment, Findings};
use soda_lab::figure::{Figure, Scale};
use soda_lab::model::{self, Parameters, Sweep};
use soda_lab::setup::{Extent, Lab};
use soda_lab::sim::beside::Runs;
use soda_lab::trace::{Recorded, Trace};
use std::io::IsTerminal;
use std::path::Path;
use std::time::{Duration, Instant};

pub(crate) fn run(command: &LabCommand) -> Result<(), CliError> {
    match command {
        LabCommand::Model(arguments) => run_model(arguments),
        LabCommand::Simulate(arguments) => simulate(arguments),
        LabCommand::Run(arguments) => run_experiments(arguments),
        LabCommand::Report(arguments) => report(arguments),
        LabCommand::Record(arguments) => record(arguments),
        LabCommand::Replay(arguments) => replay(arguments),
        LabCommand::Advise(arguments) => advise(arguments),
    }
}

fn run_experiments(arguments: &RunArgs) -> Result<(), CliError> {
    let chosen = match arguments.name.as_str() {
        "list" => return list(arguments),
        "all" => experiment::ALL.to_vec(),
        name => vec![Experiment::named(name)?],
    };
    let program = std::env::current_exe().map_err(CliError::io("this program's own path"))?;
    let extent = if arguments.quick { Extent::Quick } else { Extent::Full };
    // Nobody wants to hear after half an hour that it was in vain.
    chosen.iter().try_for_each(Experiment::check)?;
    Findings::check_writable(&arguments.out)?;
    let ground = Ground::prepare()?;
    let steps = Steps::new();
    let (mut done, mut failed) = (Vec::new(), Vec::new());
    for (number, experiment) in chosen.iter().enumerate() {
        let head = format!("{} ({} of {})", experiment.name, number + 1, chosen.len());
        let progress = |step: &str| steps.say(&format!("{head}: {step}"));
        progress(experiment.title);
        let lab = Lab { program: &program, scratch: ground.scratch(), extent, progress: &progress };
        Findings::forget(&arguments.out, experiment.name)?;
        // What comes next may be well, and has been waited for.
        let (found, error) = match experiment.run(&lab) {
            Ok(found) => (found, None),
            Err(error) => (experiment.failed(&lab, &error), Some(error)),
        };
        let written = found.write(&arguments.out).err();
        let broken = found.broken();
        steps.clear();
        let mut line = match error.as_ref().or(written.as_ref()) {
            None => format!("{}: {:.1} s\n", experiment.name, found.took),
            Some(error) => format!("{}: failed: {error}\n", experiment.name),
        };
        line.extend(found.checks.iter().map(|check| format!("  {check}\n")));
        let error = error.or(written).or(broken);
        let mut entry = json!({ "name": experiment.name, "took": found.took, "checks": found.checks });
        if let (Some(error), Some(entry)) = (&error, entry.as_object_mut()) {
            entry.insert("error".to_owned(), json!(error.to_string()));
        }
        failed.extend(error.map(|error| (experiment.name, error)));
        match arguments.json {
            true => done.push(entry),
            false => print(&line)?,
        }
    }
    match arguments.json {
        true => print_json(&json!({ "out": arguments.out, "experiments": done }))?,
        false => print(&format!(
            "results are in {}; `soda lab report` makes a page of them\n",
            arguments.out.display()
        ))?,
    }
    ended(chosen.len(), failed)
}

/// Whether all went well; where one was asked for, its own error.
fn ended(asked: usize, mut failed: Vec<(&str, LabError)>) -> Result<(), CliError> {
    if asked == 1
        && let Some((_, error)) = failed.pop()
    {
        return Err(error.into());
    }
    if failed.is_empty() {
        return Ok(());
    }
    let names: Vec<&str> = failed.iter().map(|(name, _)| *name).collect();
    Err(CliError::Failed(format!("{} of {asked} experiments failed: {}", names.len(), names.join(", "))))
}

fn list(arguments: &RunArgs) -> Result<(), CliError> {
    let all = experiment::ALL.iter();
    if arguments.json {
        let entry = |of: &Experiment| json!({ "name": of.name, "title": of.title, "question": of.question });
        return print_json(&all.map(entry).collect::<Vec<_>>());
    }
    let lines = all.map(|of| format!("{:<18} {}\n{:<18} {}\n", of.name, of.title, "", of.question));
    print(&lines.collect::<String>())
}

fn report(arguments: &ReportArgs) -> Result<(), CliError> {
    let page = soda_lab::report::html(&Findings::read(&arguments.out)?)?;
    let path = arguments.out.join("report.html");
    std::fs::write(&path, page).map_err(LabError::io(&path))?;
    print(&format!("{}\n", path.display()))
}

fn record(arguments: &RecordArgs) -> Result<(), CliError> {
    // Nobody wants to hear after a long build that there is no place for what it did.
    let place = Place::of(&arguments.out).map_err(LabError::io(&arguments.out))?;
    let Recorded { trace, status } = soda_lab::trace::record(&arguments.dir, &arguments.command)?;
    place.put(trace.csv().as_bytes()).map_err(LabError::io(&arguments.out))?;
    let (steps, out) = (trace.steps.len() as u64, arguments.out.display());
    let kinds: Vec<String> = trace.counts().iter().map(|(word, count)| format!("{count} {word}")).collect();
    // The command may have an output that somebody reads.
    eprintln!(
        "soda: {} in {:.1} s ({}) are in {out}; `soda lab replay {out}` says what they would have cost",
        count(steps, "call"),
        trace.length(),
        kinds.join(", ")
    );
    if status.success() {
        return Ok(());
    }
    Err(CliError::Failed(format!("the command has failed ({status}); what it did is recorded")))
}

fn replay(arguments: &ReplayArgs) -> Result<(), CliError> {
    if !(arguments.rtt.is_finite() && arguments.rtt >= 0.0) {
        return Err(CliError::Usage(format!(
            "--rtt {}: milliseconds, not negative, are expected",
            arguments.rtt
        )));
    }
    let trace = Trace::read(&arguments.trace)?;
    let compared = soda_lab::sim::compare::under_trace(
        &arguments.trace.display().to_string(),
        &trace,
        arguments.rtt / 1e3,
        &arguments.nfs,
    );
    if arguments.json {
        return print_json(&compared.whole());
    }
    if arguments.csv {
        return print(&compared.whole().csv());
    }
    let [sums, kinds] = compared.totals();
    print(&format!("{sums}\nmessages by kind\n{kinds}"))
}

fn simulate(arguments: &SimulateArgs) -> Result<(), CliError> {
    let runs = Runs {
        clients: arguments.n,
        reads: arguments.r,
        writes: arguments.w,
        term: arguments.t,
        age: arguments.age,
        operations: arguments.operations,
        seeds: arguments.seeds,
    };
    let found = runs.run()?;
    match arguments {
        SimulateArgs { json: true, .. } => print_json(&found),
        SimulateArgs { csv: true, .. } => print(&found.table().csv()),
        _ => print(&found.to_string()),
    }
}

fn advise(arguments: &AdviseArgs) -> Result<(), CliError> {
    let mut admin = Admin::connect(&server_or_default(arguments.server.server.as_deref())?)?;
    let (counters, seconds) = counted(&mut admin, arguments.interval)?;
    let status = admin.status()?;
    let observed = Observed::of(&counters, status.sessions.len(), seconds)?;
    let waiting = advise::Waiting {
        price: arguments.waiting_price,
        dead: arguments.dead,
        session: status.term.as_secs_f64(),
    };
    let mut report = observed.advise(&waiting)?;
    if arguments.objects > 0 {
        let busiest = admin.busiest(arguments.objects)?;
        let writers = admin.writers(busiest.iter().map(|found| found.fid).collect())?;
        for (at, found) in busiest.into_iter().enumerate() {
            let object = Contended {
                object: found.path.unwrap_or_else(|| found.fid.to_string()),
                clients: f64::from(found.clients),
                writers: writers.as_ref().and_then(|writers| writers.get(at)).map(|count| f64::from(*count)),
                reads: found.reads_per_s,
                writes: found.writes_per_s,
                leased: found.is_leased,
            };
            report.objects.extend(object.advise(&waiting, observed.chance_of_dead())?);
        }
    }
    if arguments.json {
        return print_json(&report);
    }
    let digits = soda_lab::figure::digits;
    let volumes: Vec<&str> = status.volumes.iter().map(|(name, _)| name.as_str()).collect();
    let mut text = format!(
        "volume {}, {} clients, {} s; per second: {} reads at the server, {} opens and locks, {} reads from caches that \
         holders told of, {} changes, {} recalls\n\n",
        volumes.join(", "),
        digits(observed.clients),
        digits(observed.seconds),
        digits(observed.misses),
        digits(observed.kept),
        digits(observed.hits),
        digits(observed.changes),
        digits(observed.recalls),
    );
    for advice in &report.advice {
        let saved = digits(advice.saved_messages_per_s);
        text.push_str(&format!("{}: {}\n    {}\n", advice.about, advice.recommended, advice.because));
        text.push_str(&format!("    saves {saved} messages/s against the other choice, by the model\n"));
    }
    if !report.objects.is_empty() {
        let table = report.objects_table();
        text.push_str(&format!("\n{}\n{table}", table.title));
    }
    print(&text)
}

/// The counter that is a level.
const LEASES: &str = "leases";

/// By how much the server's counters have grown, and in how many seconds: since its start, or from now on for a while.
fn counted(admin: &mut Admin, interval: Option<Duration>) -> Result<(Counters, f64), CliError> {
    let Some(interval) = interval else {
        return Ok((admin.stats()?, admin.status()?.uptime.as_secs_f64()));
    };
    let (begin, before) = (Instant::now(), admin.stats()?);
    {
        let _waiting = Waiting::new("what clients ask of the server");
        std::thread::sleep(interval);
    }
    let (after, seconds) = (admin.stats()?, begin.elapsed().as_secs_f64());
    let mut grown = since(&before, &after);
    // How many there are, not how many more.
    grown.extend(after.get_key_value(LEASES).map(|(name, held)| (name.clone(), *held)));
    Ok((grown, seconds))
}

/// What is being done: a line that changes on a terminal, a line each elsewhere.
struct Steps(Option<ProgressBar>);

impl Steps {
    fn new() -> Steps {
        let bar = std::io::stderr().is_terminal().then(ProgressBar::new_spinner);
        if let Some(bar) = &bar {
            bar.enable_steady_tick(Duration::from_millis(120));
        }
        Steps(bar)
    }

    fn say(&self, step: &str) {
        match &self.0 {
            Some(bar) => bar.set_message(step.to_owned()),
            None => eprintln!("soda: {step}"),
        }
    }

    fn clear(&self) {
        if let Some(bar) = &self.0 {
            bar.set_message("");
        }
    }
}

fn run_model(arguments: &ModelArgs) -> Result<(), CliError> {
    let parameters = Parameters {
        clients: arguments.n,
        reads: arguments.r,
        writes: arguments.w,
        term: arguments.t,
        session: arguments.session,
        writers: arguments.writers,
        sharers: arguments.sharers,
        propagation: arguments.m_prop,
        processing: arguments.m_proc,
        uncertainty: arguments.epsilon,
        files: arguments.files,
        uses: arguments.uses,
        conflicts: arguments.conflicts,
        dead: arguments.dead,
        price: arguments.price,
        age: arguments.age,
    };
    let show = &arguments.show;
    let for_people = !arguments.json && !arguments.csv;
    let Some(sweep) = &arguments.sweep else {
        let answer = model::answer(&parameters)?;
        let answer = if show.is_empty() { answer } else { answer.only(show)? };
        return match arguments.json {
            true => print_json(&answer),
            false => print(&if for_people { answer.to_string() } else { answer.table().csv() }),
        };
    };
    let scale = if arguments.log_scale { Scale::Logarithmic } else { Scale::Linear };
    let sweep = Sweep::parse(sweep, scale)?;
    for path in &arguments.plot {
        draw(&sweep.figure(&parameters, show)?, path)?;
    }
    if for_people {
        return print(&sweep.short_table(&parameters, show)?.to_string());
    }
    let table = sweep.table(&parameters, show)?;
    if arguments.json { print_json(&table) } else { print(&table.csv()) }
}

fn draw(figure: &Figure, path: &Path) -> Result<(), CliError> {
    match path.extension().and_then(|extension| extension.to_str()) {
        Some("svg") => Ok(std::fs::write(path, soda_lab::plot::svg(figure)?).map_err(LabError::io(path))?),
        Some("png") => Ok(soda_lab::plot::png(figure, path)?),
        _ => Err(CliError::Usage(format!("--plot {}: the name has to end in .svg or .png", path.display()))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn experiments_that_fail_are_named_in_the_end() {
        let failed = |name| (name, LabError::Failed(format!("{name} broke")));
        assert!(ended(3, Vec::new()).is_ok());
        let said = |asked, failed| ended(asked, failed).unwrap_err().to_string();
        assert_eq!(said(3, vec![failed("a"), failed("b")]), "2 of 3 experiments failed: a, b");
        assert_eq!(said(1, vec![failed("a")]), "a broke");
    }

    #[test]
    fn rates_that_cannot_be_simulated_are_refused_in_words() {
        let usual = Runs::default();
        let said = |n: f64, r: f64, t: f64, seeds: u32| {
            let (w, age, operations) = (usual.writes, usual.age, 100);
            let arguments = SimulateArgs { n, r, w, t, age, seeds, operations, json: true, csv: false };
            simulate(&arguments).unwrap_err().to_string()
        };
        assert!(said(0.0, 2.0, 10.0, 2).starts_with("N is 0: "));
        assert!(said(5.0, f64::NAN, 10.0, 2).starts_with("R is NaN: "));
        assert!(said(5.0, 2.0, -1.0, 2).starts_with("t is -1: "));
        assert!(said(5.0, 2.0, 10.0, 1).contains("2 to 30 are expected"));
    }

    #[test]
    fn a_trace_that_cannot_be_replayed_is_refused_in_words() {
        let dir = tempfile::tempdir().unwrap();
        let said = |name: &str, rtt: f64| {
            let arguments =
                ReplayArgs { trace: dir.path().join(name), rtt, nfs: Vec::new(), json: false, csv: true };
            replay(&arguments).unwrap_err().to_string()
        };
        assert!(said("none.csv", 1.0).contains("none.csv: No such file"));
        std::fs::write(dir.path().join("bad.csv"), "0,0,read,a\n0,0,eat,a\n").unwrap();
        assert!(said("bad.csv", 1.0).contains("bad.csv: line 2 of the trace: `eat` is none of read, write"));
        for rtt in [-1.0, f64::NAN, f64::INFINITY] {
            assert!(said("bad.csv", rtt).contains("--rtt"), "{rtt}");
        }
    }
}
