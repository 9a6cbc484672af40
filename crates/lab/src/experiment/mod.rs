//! The experiments of the papers, by name: what is asked, what was found, what the paper has, and why they differ.

mod afs_latency;
mod andrew;
mod build;
mod cached;
mod cold;
mod crashes;
mod dead;
mod distance;
mod foreign;
mod latency;
mod openssh;
mod papers;
mod protocols;
mod sharing;
mod spread;
mod stale;
mod terms;
mod test_auth;
mod timeouts;
mod traces;

use crate::cell::{Cell, Counters};
use crate::check::Check;
use crate::figure::{Figure, Table};
use crate::machine::{Machine, Stretch};
use crate::setup::{Extent, Lab};
use crate::{LabError, plot};
use serde::{Deserialize, Serialize};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// What came of it.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Findings {
    pub name: String,
    pub title: String,
    /// What is asked, in a sentence for who has not read the paper.
    pub question: String,
    /// What the paper found.
    pub paper: String,
    /// Why ours differs.
    pub why: String,
    pub figures: Vec<Figure>,
    pub tables: Vec<Table>,
    /// What it is held to.
    #[serde(default)]
    pub checks: Vec<Check>,
    /// Why there is nothing of all that; `None`: it did not fail.
    #[serde(default)]
    pub error: Option<String>,
    /// Written beside them, not part of the page: the end of each name, and what is in it.
    #[serde(skip)]
    pub files: Vec<(String, String)>,
    pub extent: String,
    /// Seconds that it took.
    pub took: f64,
    /// When and where; `None`: of a lab that did not say.
    #[serde(default)]
    pub machine: Option<Machine>,
}

/// What an experiment itself says.
#[derive(Debug)]
pub(crate) struct Found {
    pub(crate) paper: &'static str,
    /// Figures in it are of this run.
    pub(crate) why: String,
    pub(crate) figures: Vec<Figure>,
    pub(crate) tables: Vec<Table>,
    pub(crate) checks: Vec<Check>,
    /// Files beside these: the ends of their names, and what is in them.
    pub(crate) files: Vec<(&'static str, String)>,
}

/// One of the experiments.
#[derive(Clone, Copy, Debug)]
pub struct Experiment {
    pub name: &'static str,
    pub title: &'static str,
    pub question: &'static str,
    pub needs: Needs,
    run: fn(&Lab<'_>) -> Result<Found, LabError>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Needs {
    Nothing,
    /// Root and /dev/fuse.
    Mounts,
}

/// All experiments, in the order of the report.
pub const ALL: [Experiment; 18] = [
    Experiment {
        name: "soda-fig2",
        title: "SODA, figure 2: messages against the term",
        question: "How long should a lease last?",
        needs: Needs::Nothing,
        run: papers::figure_2,
    },
    Experiment {
        name: "soda-fig3",
        title: "SODA, figure 3: leases against asking, by number of clients",
        question: "With how many clients do leases stop to pay?",
        needs: Needs::Nothing,
        run: papers::figure_3,
    },
    Experiment {
        name: "protocols",
        title: "Leases beside Sprite, AFS and NFS, simulated",
        question: "What does each protocol cost under the same work, and what does it get wrong?",
        needs: Needs::Nothing,
        run: protocols::run,
    },
    Experiment {
        name: "soda-fig5",
        title: "SODA, figure 5: the server's load against the term",
        question: "What does the term do to a real server?",
        needs: Needs::Mounts,
        run: terms::figure_5,
    },
    Experiment {
        name: "soda-fig6-7",
        title: "SODA, figures 6 and 7: time to read and to write 1 KiB",
        question: "Who writes much: are leases still faster than asking at each read?",
        needs: Needs::Mounts,
        run: terms::figures_6_and_7,
    },
    Experiment {
        name: "stale-reads",
        title: "SODA, introduction: mounts that believe for a time what they have, as NFS",
        question: "What does it cost to be right, and how often is who only believes wrong?",
        needs: Needs::Mounts,
        run: stale::run,
    },
    Experiment {
        name: "dead-readers",
        title: "SODA, section 2.3: writes that wait for readers who are gone",
        question: "A machine with a lease is cut off: how long does who writes wait, by the lease's term?",
        needs: Needs::Mounts,
        run: dead::run,
    },
    Experiment {
        name: "cached-reads",
        title: "Cached against server reads, and the price of a lease",
        question: "What is a cache worth, and what does its lease add to a read that misses?",
        needs: Needs::Mounts,
        run: cached::run,
    },
    Experiment {
        name: "strata-fig5",
        title: "Strata with leases, figure 5: processes that share one file",
        question: "How long do many machines take with one large file: all read, half, all write?",
        needs: Needs::Mounts,
        run: sharing::run,
    },
    Experiment {
        name: "strata-fig6",
        title: "Strata with leases, figure 6: polling against notification",
        question: "What does it cost to ask for a lease again and again instead of being told?",
        needs: Needs::Mounts,
        run: sharing::polling,
    },
    Experiment {
        name: "andrew",
        title: "The Andrew benchmark against load",
        question: "How much slower does the same work get when more machines do it?",
        needs: Needs::Mounts,
        run: andrew::run,
    },
    Experiment {
        name: "afs-latency",
        title: "AFS, tables XIV and III: the first byte of a file, and the time of a TestAuth call",
        question: "How long until a program has the first byte, of small and large files, cold and warm?",
        needs: Needs::Mounts,
        run: afs_latency::run,
    },
    Experiment {
        name: "cs739-latency",
        title: "CS739: open, read, write and close by size of the file",
        question: "What does the first access cost, and what the next?",
        needs: Needs::Mounts,
        run: latency::run,
    },
    Experiment {
        name: "cs739-scalability",
        title: "CS739: small jobs by number of clients",
        question: "Do clients that share nothing disturb each other?",
        needs: Needs::Mounts,
        run: latency::scalability,
    },
    Experiment {
        name: "cs739-crashes",
        title: "CS739: crash points",
        question: "The server or a client dies in the middle of something: what is lost, and who waits how long?",
        needs: Needs::Mounts,
        run: crashes::run,
    },
    Experiment {
        name: "hierarchical",
        title: "Hierarchical control, figure 3: a build against distance",
        question: "What do leases on whole trees save when the server is far away?",
        needs: Needs::Mounts,
        run: distance::run,
    },
    Experiment {
        name: "hierarchical-timeouts",
        title: "Hierarchical control, figure 4: when to give a deep lease back",
        question: "For how long should an idle machine keep a lease on a whole tree?",
        needs: Needs::Mounts,
        run: timeouts::run,
    },
    Experiment {
        name: "traces",
        title: "An Andrew run and a build, recorded and simulated",
        question: "What would each protocol have cost for what real programs did?",
        needs: Needs::Mounts,
        run: traces::run,
    },
];

impl Experiment {
    /// # Errors
    /// If there is none of that name.
    pub fn named(name: &str) -> Result<Experiment, LabError> {
        let found = ALL.iter().find(|experiment| experiment.name == name).copied();
        found.ok_or_else(|| {
            let names: Vec<&str> = ALL.iter().map(|experiment| experiment.name).collect();
            LabError::Usage(format!("there is no experiment `{name}`; there are: all, {}", names.join(", ")))
        })
    }

    /// Whether this machine can do it.
    ///
    /// # Errors
    /// What is missing.
    pub fn check(&self) -> Result<(), LabError> {
        let has_rights = rustix::process::geteuid().is_root();
        match self.needs {
            Needs::Mounts if !(has_rights && Path::new("/dev/fuse").exists()) => {
                Err(LabError::Failed(format!("{} mounts: it needs root and /dev/fuse", self.name)))
            }
            Needs::Mounts | Needs::Nothing => Ok(()),
        }
    }

    /// # Errors
    /// If this machine cannot do it, or something fails on the way.
    pub fn run(&self, lab: &Lab<'_>) -> Result<Findings, LabError> {
        self.check()?;
        let (began, machine, stretch) = (Instant::now(), Machine::now(), Stretch::begin());
        let found = (self.run)(lab)?;
        Ok(Findings {
            paper: found.paper.to_owned(),
            why: found.why,
            figures: found.figures,
            tables: found.tables,
            checks: found.checks,
            files: found.files.into_iter().map(|(name, text)| (name.to_owned(), text)).collect(),
            took: began.elapsed().as_secs_f64(),
            machine: Some(Machine { others: stretch.others(), ..machine }),
            ..self.nothing(lab)
        })
    }

    /// What the report shows of one that failed, in place of an earlier result.
    pub fn failed(&self, lab: &Lab<'_>, error: &LabError) -> Findings {
        let machine = Some(Machine::now());
        Findings { error: Some(error.to_string()), machine, ..self.nothing(lab) }
    }

    fn nothing(&self, lab: &Lab<'_>) -> Findings {
        Findings {
            name: self.name.to_owned(),
            title: self.title.to_owned(),
            question: self.question.to_owned(),
            paper: String::new(),
            why: String::new(),
            figures: Vec::new(),
            tables: Vec::new(),
            checks: Vec::new(),
            error: None,
            files: Vec::new(),
            extent: match lab.extent {
                Extent::Quick => "quick".to_owned(),
                Extent::Full => "full".to_owned(),
            },
            took: 0.0,
            machine: None,
        }
    }
}

impl Findings {
    /// Makes the directory, and tries whether a file can be made there.
    ///
    /// # Errors
    /// If not.
    pub fn check_writable(dir: &Path) -> Result<(), LabError> {
        std::fs::create_dir_all(dir).map_err(LabError::io(dir))?;
        tempfile::tempfile_in(dir).map(drop).map_err(LabError::io(dir))
    }

    /// Takes away what an earlier run of this experiment has written there: who reads the results would take it for today's.
    ///
    /// # Errors
    /// If the directory cannot be read or a file of these not be removed.
    pub fn forget(dir: &Path, name: &str) -> Result<(), LabError> {
        for entry in std::fs::read_dir(dir).map_err(LabError::io(dir))? {
            let entry = entry.map_err(LabError::io(dir))?;
            if writer_of(&entry.file_name().to_string_lossy()) == Some(name) {
                std::fs::remove_file(entry.path()).map_err(LabError::io(entry.path()))?;
            }
        }
        Ok(())
    }

    /// What does not hold though it does not depend on the machine.
    pub fn broken(&self) -> Option<LabError> {
        Check::broken(&self.checks)
    }

    /// Writes NAME.json, and for each figure and table CSV, SVG and PNG. Returns what was written.
    ///
    /// # Errors
    /// If that cannot be.
    pub fn write(&self, dir: &Path) -> Result<Vec<PathBuf>, LabError> {
        std::fs::create_dir_all(dir).map_err(LabError::io(dir))?;
        let json = serde_json::to_string_pretty(self).map_err(|error| LabError::Failed(error.to_string()))?;
        let mut files = vec![(format!("{}.json", self.name), json)];
        for (number, table) in self.tables.iter().enumerate() {
            files.push((format!("{}-table{}.csv", self.name, number + 1), table.csv()));
        }
        for (name, text) in &self.files {
            files.push((format!("{}-{name}", self.name), text.clone()));
        }
        let mut written = Vec::new();
        for figure in &self.figures {
            let name = format!("{}-{}", self.name, figure.name);
            files.push((format!("{name}.csv"), figure.csv()));
            files.push((format!("{name}.svg"), plot::svg(figure)?));
            let path = dir.join(format!("{name}.png"));
            plot::png(figure, &path)?;
            written.push(path);
        }
        for (name, text) in files {
            let path = dir.join(name);
            std::fs::write(&path, text).map_err(LabError::io(&path))?;
            written.push(path);
        }
        Ok(written)
    }

    /// All that a directory has, in the order of the report.
    ///
    /// # Errors
    /// If there is none, or one cannot be read.
    pub fn read(dir: &Path) -> Result<Vec<Findings>, LabError> {
        let mut all = Vec::new();
        for experiment in ALL {
            let path = dir.join(format!("{}.json", experiment.name));
            match std::fs::read(&path) {
                Ok(bytes) => all.push(serde_json::from_slice(&bytes).map_err(|error| {
                    LabError::Failed(format!("{} is not of soda lab: {error}", path.display()))
                })?),
                Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
                Err(cause) => return Err(LabError::Io { path, cause }),
            }
        }
        if all.is_empty() {
            let hint = "run experiments first: soda lab run all --quick";
            return Err(LabError::Failed(format!("{} has no results; {hint}", dir.display())));
        }
        Ok(all)
    }
}

/// The experiment that writes files of this name, if one does. Of two whose names begin it, the longer one.
fn writer_of(file: &str) -> Option<&'static str> {
    let (stem, extension) = file.rsplit_once('.')?;
    let writes = |name: &&str| {
        stem.strip_prefix(name).is_some_and(|rest| match extension {
            "json" => rest.is_empty(),
            "csv" | "svg" | "png" => rest.starts_with('-'),
            _ => false,
        })
    };
    // Tables of `hierarchical-timeouts` are none of `hierarchical`.
    ALL.iter().map(|experiment| experiment.name).filter(writes).max_by_key(|name| name.len())
}

/// How many times as much, for a sentence.
pub(crate) fn times(more: f64, less: f64) -> String {
    let ratio = more / less;
    match ratio {
        10.0.. => format!("{ratio:.0} times"),
        1.0.. => format!("{ratio:.1} times"),
        _ => format!("{ratio:.2} times"),
    }
}

/// All machines of an experiment at once: of each, and its number, `work` makes what its thread does. What they have found, in
/// order.
pub(crate) fn at_once<M, T, F>(machines: &[M], work: impl Fn(usize, &M) -> F) -> Result<Vec<T>, LabError>
where
    T: Send + 'static,
    F: FnOnce() -> Result<T, LabError> + Send + 'static,
{
    in_threads(machines.iter().enumerate().map(|(number, machine)| work(number, machine)))
}

/// Each of these in a thread of its own.
pub(crate) fn in_threads<T, F>(work: impl IntoIterator<Item = F>) -> Result<Vec<T>, LabError>
where
    T: Send + 'static,
    F: FnOnce() -> Result<T, LabError> + Send + 'static,
{
    let threads: Vec<_> = work.into_iter().map(std::thread::spawn).collect();
    // Nobody goes on while another is still at work.
    let found: Vec<_> = threads.into_iter().map(joined).collect();
    found.into_iter().collect()
}

/// Of each mount.
pub(crate) fn counters(cell: &Cell) -> Result<Vec<Counters>, LabError> {
    cell.mounts.iter().map(crate::cell::Mount::counters).collect()
}

/// What a thread of an experiment has found.
pub(crate) fn joined<T>(thread: std::thread::JoinHandle<Result<T, LabError>>) -> Result<T, LabError> {
    thread.join().map_err(|_| LabError::Failed("a machine of the experiment broke down".into()))?
}

/// The middle one of several times, microseconds.
pub(crate) fn median_micros(mut times: Vec<Duration>) -> f64 {
    times.sort_unstable();
    times.get(times.len() / 2).map_or(f64::NAN, |time| micros(*time))
}

pub(crate) fn micros(time: Duration) -> f64 {
    time.as_secs_f64() * 1e6
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ratios_have_no_digits_that_say_nothing() {
        assert_eq!(
            [times(115.3, 1.0), times(1.534, 1.0), times(0.5793, 1.0)],
            ["115 times", "1.5 times", "0.58 times"]
        );
    }

    #[test]
    fn an_earlier_result_goes_and_those_of_others_stay() {
        let dir = tempfile::tempdir().expect("a directory");
        let mine = ["hierarchical.json", "hierarchical-table3.csv", "hierarchical-distance.png"];
        let others = [
            "hierarchical-timeouts.json",
            "hierarchical-timeouts-table1.csv",
            "traces.json",
            "hierarchical.txt",
            "report.html",
        ];
        mine.iter()
            .chain(&others)
            .for_each(|name| std::fs::write(dir.path().join(name), "x").expect("written"));
        Findings::forget(dir.path(), "hierarchical").expect("forgotten");
        let there = |name: &&&str| dir.path().join(name).exists();
        assert_eq!(mine.iter().filter(there).count(), 0);
        assert_eq!(others.iter().filter(there).count(), others.len());
    }

    #[test]
    fn fixed_texts_have_no_figures_of_some_day() {
        let fixed = [
            afs_latency::WHY,
            andrew::WHY,
            cached::WHY,
            crashes::WHY,
            dead::WHY,
            distance::WHY,
            latency::WHY,
            latency::WHY_SCALABILITY,
            papers::WHY_2,
            papers::WHY_3,
            protocols::WHY,
            sharing::WHY,
            sharing::WHY_POLLING,
            stale::WHY,
            terms::WHY_5,
            terms::WHY_6_7,
            timeouts::WHY,
            traces::WHY,
        ];
        for why in fixed {
            // Versions and formulas are none.
            let said = ["v1", "v2", "CS739", "equation 8", "equation (8)"]
                .into_iter()
                .fold(why.to_owned(), |said, name| said.replace(name, ""));
            assert!(!said.contains(|letter: char| letter.is_ascii_digit()), "{why}");
        }
    }
}
