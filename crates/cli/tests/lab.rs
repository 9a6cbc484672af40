//! `soda lab run` as a process: what is wrong is said before anything is measured, and nothing stays however it ends.

// The helpers of tests are tests.
#![allow(clippy::unwrap_used)]

mod common;

use common::left_behind;
use rustix::process::{Pid, Signal, kill_process};
use soda_protocol::CallKind;
use soda_system_tests::cell::{Cell, Network, PATIENCE, prerequisites, skip, skip_not_allowed};
use soda_system_tests::wait;
use std::collections::BTreeMap;
use std::path::Path;
use std::process::{Command, Stdio};

fn lab(scratch: &Path, arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_soda"));
    command.args(["lab", "run", "--quick"]).args(arguments);
    command.env("TMPDIR", scratch).env("SODA_RUNTIME_DIR", scratch.join("run"));
    command
}

/// Ends an experiment of some machines, on either side of a proxy, while they are at work. Its exit code.
fn ended_by(signal: Signal, experiment: &str) {
    let (scratch, out) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let mut command = lab(scratch.path(), &[experiment, "--out", out.path().to_str().unwrap()]);
    let mut lab = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    let mounts = || left_behind(scratch.path()).iter().filter(|left| left.contains("fuse.soda")).count();
    wait::in_time(PATIENCE, "nothing is mounted", || mounts() > 0);
    kill_process(Pid::from_child(&lab), signal).unwrap();
    let mut ended = None;
    wait::in_time(PATIENCE * 3, "the lab goes on", || {
        ended = lab.try_wait().unwrap();
        ended.is_some()
    });
    let code = ended.unwrap().code();
    if signal == Signal::KILL {
        wait::in_time(PATIENCE, "something stays", || left_behind(scratch.path()).is_empty());
    } else {
        assert_eq!(code, Some(128 + signal.as_raw()));
    }
    assert_eq!(left_behind(scratch.path()), Vec::<String>::new(), "after {signal:?}");
}

#[test]
fn a_lab_that_is_ended_or_killed_leaves_nothing_behind() {
    if !prerequisites() {
        return;
    }
    for signal in [Signal::TERM, Signal::INT, Signal::KILL] {
        ended_by(signal, "hierarchical");
    }
    ended_by(Signal::KILL, "strata-fig5");
    // Some of its mounts do not hear a request to end.
    ended_by(Signal::KILL, "dead-readers");
}

#[test]
fn what_is_wrong_is_said_before_anything_is_measured() {
    let scratch = tempfile::tempdir().unwrap();
    let file = scratch.path().join("file");
    std::fs::write(&file, "in the way").unwrap();
    let in_the_way = file.join("results");
    let refused = |arguments: &[&str], code: i32, words: &str| {
        let output = wait::run(&mut lab(scratch.path(), arguments), PATIENCE).output("it measures");
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.code() == Some(code) && said.contains(words), "{arguments:?}: {said}");
        assert!(!said.contains("1 of"), "{arguments:?} has begun: {said}");
    };
    refused(&["soda-fig9"], 2, "there is no experiment `soda-fig9`; there are: all, soda-fig2");
    // Rights apart, which come first, this is for who cannot mount, too.
    refused(&["soda-fig2", "--out", in_the_way.to_str().unwrap()], 1, "file/results: Not a directory");
}

#[test]
fn rates_of_ones_own_are_simulated_beside_the_formulas() {
    let simulate = |arguments: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_soda"));
        command.args(["lab", "simulate", "--seeds", "3", "--operations", "5000"]).args(arguments);
        let output = wait::run(&mut command, PATIENCE).output("soda lab simulate");
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        (output.status.success(), text(&output.stdout), text(&output.stderr))
    };
    // The SODA paper's figure 2 at ten seconds.
    let papers = ["--n", "5", "--r", "2", "--w", "0.1", "--t", "10"];
    let (_, json, said) = simulate(&[&papers[..], &["--json"]].concat());
    let json: serde_json::Value = serde_json::from_str(&json).unwrap_or_else(|_| panic!("{said}"));
    let leases = &json["protocols"][0]["consistency"];
    let (mean, formula) = (leases["mean"].as_f64().unwrap(), leases["formula"].as_f64().unwrap());
    assert!((formula - 7.22).abs() < 0.01 && (mean / formula - 1.0).abs() < 0.2, "{leases}");
    assert_eq!(leases["seeds"].as_array().unwrap().len(), 3, "{leases}");
    let (_, text, said) = simulate(&papers);
    assert!(text.contains("N = 5, R = 2/s, W = 0.1/s, t = 10 s"), "{text}{said}");
    assert!(text.contains("\nSoda, write=through "), "{text}");
    let (_, csv, _) = simulate(&["--csv"]);
    assert!(csv.starts_with("messages/s,consistency,+-,formula,"), "{csv}");
    for (wrong, words) in [(["--n", "0"], "N is 0"), (["--t", "-1"], "t is -1"), (["--w", "NaN"], "W is NaN")]
    {
        let (is_well, _, said) = simulate(&wrong);
        assert!(!is_well && said.contains(words), "{wrong:?}: {said}");
    }
}

#[test]
fn what_any_program_asks_of_a_directory_is_recorded_and_can_be_replayed() {
    if Command::new("strace").arg("-V").stdout(Stdio::null()).status().is_err() {
        return skip("no strace");
    }
    let traced = Command::new("strace").args(["-o", "/dev/null", "true"]).stderr(Stdio::null()).status();
    if !traced.is_ok_and(|status| status.success()) {
        return skip_not_allowed("programs may not be traced");
    }
    let scratch = tempfile::tempdir().unwrap();
    let (work, out) = (scratch.path().join("work"), scratch.path().join("trace.csv"));
    std::fs::create_dir(&work).unwrap();
    std::fs::write(work.join("source"), vec![b's'; 5000]).unwrap();
    let soda = |arguments: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_soda"));
        command.arg("lab").args(arguments);
        wait::run(&mut command, PATIENCE).output("soda lab")
    };
    let (dir, file) = (work.to_str().unwrap(), out.to_str().unwrap());
    let script = "cd $0 && mkdir made && cat source >made/copy && mv made/copy made/result && ls made && \
                  test ! -e missing && rm source && exit 3";
    let output = soda(&["record", "--dir", dir, "--out", file, "--", "sh", "-c", script, dir]);
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(String::from_utf8_lossy(&output.stdout), "result\n", "{said}");
    assert!(!output.status.success() && said.contains("exit status: 3"), "{said}");
    assert!(said.contains("soda lab replay"), "{said}");
    let trace = std::fs::read_to_string(&out).unwrap();
    let steps: Vec<String> =
        trace.lines().skip(1).filter_map(|line| Some(line.splitn(3, ',').nth(2)?.to_owned())).collect();
    let in_order = [
        "make,,made",
        "make,,made/copy",
        "read,5000,source",
        "rename,,made/copy -> made/result",
        "list,,made",
        "miss,,missing",
        "remove,,source",
    ];
    let mut places = in_order.map(|step| steps.iter().position(|found| found == step));
    assert!(places.iter().all(Option::is_some), "{places:?}: {trace}");
    let sorted = places.is_sorted();
    places.sort_unstable();
    assert!(sorted, "{places:?}: {trace}");
    assert!(steps.contains(&"write,5000,made/copy".to_owned()), "{trace}");
    let replayed = soda(&["replay", file, "--csv"]);
    assert!(replayed.status.success(), "{replayed:?}");
    let rows = |arguments: &[&str]| {
        let output = soda(&[&["replay", file, "--csv"], arguments].concat());
        let said = String::from_utf8_lossy(&output.stdout).into_owned();
        (output.status.code(), said.lines().filter(|line| line.starts_with("\"NFS")).count(), said)
    };
    let (code, count, said) = rows(&["--nfs", "1,60", "--nfs", "0.5", "--nfs", "inf"]);
    assert!(code == Some(0) && count == 3 && said.contains("\"NFS, 1 s, names 60 s\","), "{said}");
    assert_eq!(rows(&[]).1, 2);
    assert_eq!(rows(&["--nfs", "-1,30"]).0, Some(2));
    // What is missing is said before the command runs, or where it has done nothing there.
    let none = work.join("none");
    for (arguments, words) in [
        (["--dir", none.to_str().unwrap(), "--out", file, "true"], "none: No such file or directory"),
        (["--dir", dir, "--out", none.join("trace").to_str().unwrap(), "true"], "none/trace: No such file"),
        (["--dir", dir, "--out", file, "true"], "has asked for nothing below"),
    ] {
        let output = soda(&[&["record"], &arguments[..]].concat());
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(!output.status.success() && said.contains(words), "{arguments:?}: {said}");
        assert_eq!(
            std::fs::read_to_string(&out).unwrap(),
            trace,
            "{arguments:?}: the trace there was is gone"
        );
    }
}

#[test]
fn advice_names_the_files_that_machines_contend_for() {
    if !prerequisites() {
        return;
    }
    let cell = Cell::writing_through(2);
    let file = |number: usize, name: &str| cell.root(number).join(name);
    std::fs::write(file(0, "calm"), "read only").unwrap();
    for round in 0..100 {
        for number in 0..2 {
            std::fs::write(file(number, "busy"), format!("{round} of {number}")).unwrap();
            assert_eq!(std::fs::read(file(number, "calm")).unwrap(), b"read only");
        }
    }
    let advise = |more: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_soda"));
        command.args(["lab", "advise", "--server", &cell.server.address()]).args(more);
        let output = wait::run(&mut command, PATIENCE).expect_success("soda lab advise");
        String::from_utf8(output.stdout).unwrap()
    };
    let json: serde_json::Value = serde_json::from_str(&advise(&["--json"])).unwrap();
    let busiest = &json["objects"][0];
    assert_eq!(busiest["object"], "/busy", "{json}");
    assert_eq!(busiest["clients"], 2.0, "{json}");
    assert_eq!(busiest["writers"], 2.0, "{json}");
    assert!(busiest["writes_per_s"].as_f64().unwrap() > 0.0, "{json}");
    assert!(["none", "session"].contains(&busiest["term"].as_str().unwrap()), "{json}");
    assert!(advise(&[]).contains("/busy"));
    assert!(!advise(&["--objects", "0"]).contains("/busy"));
}

#[test]
fn advice_knows_of_clients_that_died_while_others_waited_for_them() {
    if !prerequisites() {
        return;
    }
    let mut cell = Cell::writing_through(3);
    let file = |cell: &Cell, number: usize| cell.root(number).join("file");
    for round in 0..100 {
        for number in 0..2 {
            std::fs::write(file(&cell, 0), format!("{round}")).unwrap();
            std::fs::read(file(&cell, number)).unwrap();
        }
    }
    let server = cell.server.address();
    let advise = |more: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_soda"));
        command.args(["lab", "advise", "--server", &server]).args(more);
        wait::run(&mut command, PATIENCE).output("soda lab advise")
    };
    let waits = |more: &[&str]| -> serde_json::Value {
        let output = advise(&[&["--json"], more].concat());
        let said = String::from_utf8_lossy(&output.stdout).into_owned();
        let report: serde_json::Value = serde_json::from_str(&said).unwrap_or_else(|_| panic!("{output:?}"));
        report["waits"].clone()
    };
    // Who has read it dies; whoever writes next waits for its session.
    std::fs::read(file(&cell, 2)).unwrap();
    cell.mounts[2].crash();
    std::fs::write(file(&cell, 0), "after it has died").unwrap();
    let found = waits(&[]);
    assert!(found["dead"].as_f64().unwrap() > 0.0 && found["session_s"].as_f64().unwrap() > 0.0, "{found}");
    assert_eq!(found["price"], 1000.0);
    let told = waits(&["--dead", "0.25", "--waiting-price", "0"]);
    assert_eq!((&told["dead"], &told["price"]), (&0.25.into(), &0.0.into()), "{told}");
    for wrong in [["--dead", "2"], ["--waiting-price", "-1"], ["--waiting-price", "NaN"]] {
        let output = advise(&wrong);
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(!output.status.success() && said.contains(" is "), "{wrong:?}: {said}");
    }
}

#[test]
fn advice_and_stats_know_changes_that_are_told_later() {
    if !prerequisites() {
        return;
    }
    let cell = Cell::start_with(Network::Loopback, 2, &["-o", "write=behind"]);
    let server = cell.server.address();
    let soda = |arguments: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_soda"));
        command.args(arguments);
        wait::run(&mut command, PATIENCE).output("soda")
    };
    let text = |arguments: &[&str]| {
        let output = soda(arguments);
        assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap()
    };
    for number in 0..200 {
        std::fs::write(cell.root(0).join(format!("file{number}")), "made here").unwrap();
    }
    text(&["sync", cell.root(0).to_str().unwrap()]);
    for number in 0..200 {
        std::fs::metadata(cell.root(1).join(format!("file{number}"))).unwrap();
    }
    let json = |arguments: &[&str]| -> serde_json::Value { serde_json::from_str(&text(arguments)).unwrap() };
    let counted = json(&["stats", "--once", "--json", "--server", &server]);
    let counted = |name: &str| counted[format!("server {server}")][name].as_f64().unwrap_or(0.0);
    let advice = json(&["lab", "advise", "--json", "--server", &server]);
    let observed = &advice["observed"];
    let seen =
        |name: &str| (observed[name].as_f64().unwrap() * observed["seconds"].as_f64().unwrap()).round();
    // A mount makes its files by itself, and asks for names with their attributes.
    assert!(counted("digest_records") >= 200.0 && counted("calls.lookupstat") > 0.0, "{advice}");
    assert_eq!(seen("told"), counted("digest_records"), "{advice}");
    assert!(seen("misses") >= counted("calls.lookupstat"), "{advice}");
    let mode = &advice["advice"][1];
    assert!(mode["recommended"].as_str().unwrap().starts_with("write=behind"), "{advice}");
    assert!(mode["saved_messages_per_s"].as_f64().unwrap() > 0.0, "{advice}");
    let stats = text(&["stats", "--once", "--server", &server]);
    assert!(stats.contains("MESSAGES FOR CONSISTENCY"), "{stats}");
    // Nobody does anything now.
    let idle = soda(&["lab", "advise", "--interval", "50ms", "--server", &server]);
    let said = String::from_utf8_lossy(&idle.stderr);
    assert!(!idle.status.success() && said.contains("too little to advise on"), "{said}");
}

#[test]
fn an_experiment_says_what_it_is_held_to_and_leaves_no_earlier_result() {
    if !prerequisites() {
        return;
    }
    let (scratch, out) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let earlier = ["cached-reads.json", "cached-reads-table9.csv"].map(|name| out.path().join(name));
    earlier.iter().for_each(|path| std::fs::write(path, "of last week").unwrap());
    let arguments = ["cached-reads", "--json", "--out", out.path().to_str().unwrap()];
    let output = wait::run(&mut lab(scratch.path(), &arguments), PATIENCE * 5).expect_success("soda lab run");
    let json: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let checks = json["experiments"][0]["checks"].as_array().unwrap().clone();
    let counted: Vec<_> = checks.iter().filter(|check| check["basis"] == "Counted").collect();
    // A cold read is one message, with a lease and without.
    let cold = |check: &&&serde_json::Value| check["claim"].as_str().unwrap().contains("once");
    assert_eq!(counted.iter().filter(cold).count(), 2, "{json}");
    assert!(counted.iter().all(|check| check["holds"] == true), "{json}");
    assert!(!earlier[1].exists(), "an earlier table stays");
    let written = std::fs::read_to_string(&earlier[0]).unwrap();
    assert!(written.contains("\"checks\"") && !written.contains("of last week"), "{written}");
}

#[test]
fn stats_measure_what_mounts_with_short_leases_have_sent() {
    if !prerequisites() {
        return;
    }
    let cell = Cell::start_with(Network::Loopback, 2, &["-o", "write=through,lease-term=1s"]);
    for number in 0..50 {
        let path = |mount: usize| cell.root(mount).join(format!("file{number}"));
        std::fs::write(path(0), "made here").unwrap();
        assert_eq!(std::fs::read(path(1)).unwrap(), b"made here");
    }
    let counters = |who: &[&str], name: &str| -> BTreeMap<String, u64> {
        let mut command = Command::new(env!("CARGO_BIN_EXE_soda"));
        command.args(["stats", "--once", "--json"]).args(who);
        let output = wait::run(&mut command, PATIENCE).expect_success("soda stats");
        let json: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
        let of = json[name].as_object().unwrap();
        of.iter().filter_map(|(name, value)| Some((name.clone(), value.as_u64()?))).collect()
    };
    let mounts = [0, 1].map(|mount| cell.root(mount).display().to_string());
    let mounts = mounts.map(|root| counters(&[&root], &root));
    let server = cell.server.address();
    let server = counters(&["--server", &server], &format!("server {server}"));
    let sent = |name: &str| -> u64 { mounts.iter().filter_map(|mount| mount.get(name)).sum() };
    let calls = CallKind::ALL.iter().filter(|kind| kind.purpose().is_for_consistency());
    let calls: u64 = calls.map(|kind| sent(&format!("msg_{}", kind.name()))).sum();
    let expected = (2 * (calls + sent("recalls")) + sent("msg_release")) as f64;
    let measured = soda_lab::advise::Consistency::of(&server, 2).unwrap().measured;
    assert!(sent("msg_opened") > 0, "a file under a lease that may run out is registered: {mounts:?}");
    assert!(
        (measured - expected).abs() <= 0.1 * expected,
        "{measured} at the server, {expected} by the mounts"
    );
}
