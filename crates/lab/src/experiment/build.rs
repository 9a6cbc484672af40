//! A build in the shape of SSH-Build (unpack, configure, build), which needs no source from anywhere: what tar, a configure
//! script, a compiler and a linker ask of the file system. The compiler computes nothing unless it is told to take some time.

use crate::LabError;
use crate::trace::Files;
use std::time::{Duration, Instant};

/// How large it is.
#[derive(Clone, Copy, Debug)]
pub(super) struct Build {
    pub(super) sources: usize,
    pub(super) headers: usize,
    /// Questions of the configure script.
    pub(super) probes: usize,
    /// Of the compiler's computing, for each source and probe, on average.
    pub(super) thinks: Duration,
}

/// Sources are in as many directories.
const DIRS: usize = 4;
/// Headers that each source reads.
const INCLUDED: usize = 6;
pub(super) const PHASES: [&str; 3] = ["unpack", "configure", "build"];

impl Build {
    /// In a new directory `tree`: the time of each phase.
    pub(super) fn run(&self, files: &Files) -> Result<[Duration; 3], LabError> {
        let mut times = [Duration::ZERO; 3];
        let phases: [&dyn Fn() -> Result<(), LabError>; 3] =
            [&|| self.unpack(files), &|| self.configure(files), &|| self.make(files)];
        for (time, phase) in times.iter_mut().zip(phases) {
            let start = Instant::now();
            phase()?;
            *time = start.elapsed();
        }
        Ok(times)
    }

    fn source(number: usize) -> String {
        format!("tree/dir{}/source{number}", number % DIRS)
    }

    /// tar: directories, then files of 1 to 32 KiB, most of them small.
    pub(super) fn unpack(&self, files: &Files) -> Result<(), LabError> {
        files.make_dir("tree")?;
        for dir in 0..DIRS {
            files.make_dir(&format!("tree/dir{dir}"))?;
        }
        files.make_dir("tree/include")?;
        for header in 0..self.headers {
            files.create(&format!("tree/include/header{header}.h"), &[b'h'; 2048])?;
        }
        for source in 0..self.sources {
            let size = 1024 << (source % 16).trailing_zeros().min(5);
            files.create(&format!("{}.c", Build::source(source)), &vec![b'c'; size])?;
        }
        files.create("tree/configure", &[b's'; 64 << 10])
    }

    /// Each question is a small program: written, compiled, linked, removed; the answer goes to a log and a header.
    pub(super) fn configure(&self, files: &Files) -> Result<(), LabError> {
        files.read("tree/configure")?;
        let mut log = Vec::new();
        files.create("tree/config.log", &log)?;
        for probe in 0..self.probes {
            files.create("tree/conftest.c", &[b'p'; 512])?;
            files.read("tree/conftest.c")?;
            self.compute(files, probe);
            files.create("tree/conftest.o", &[b'o'; 1024])?;
            files.read("tree/conftest.o")?;
            files.create("tree/conftest", &[b'x'; 8192])?;
            files.exists("tree/conftest.exe");
            for made in ["tree/conftest.c", "tree/conftest.o", "tree/conftest"] {
                files.remove(made)?;
            }
            log.extend_from_slice(&[b'l'; 256]);
            files.write("tree/config.log", &log)?;
        }
        files.create("tree/config.h.new", &[b'd'; 4096])?;
        files.rename("tree/config.h.new", "tree/config.h")?;
        files.create("tree/Makefile", &[b'm'; 16 << 10])
    }

    /// make looks at everything, the compiler reads source and headers (and looks for each beside the source first), the linker
    /// reads the objects. In the end the program has a second name.
    pub(super) fn make(&self, files: &Files) -> Result<(), LabError> {
        files.read("tree/Makefile")?;
        for source in 0..self.sources {
            let name = Build::source(source);
            files.exists(&format!("{name}.c"));
            files.exists(&format!("{name}.o"));
            files.read(&format!("{name}.c"))?;
            files.read("tree/config.h")?;
            for include in 0..INCLUDED.min(self.headers) {
                let header = format!("header{}.h", (source + include) % self.headers);
                files.exists(&format!("tree/dir{}/{header}", source % DIRS));
                files.read(&format!("tree/include/{header}"))?;
            }
            self.compute(files, source);
            files.create(&format!("{name}.o"), &[b'o'; 12 << 10])?;
        }
        let mut program = Vec::new();
        for source in 0..self.sources {
            program.extend(files.read(&format!("{}.o", Build::source(source)))?);
        }
        files.create("tree/program", &program)?;
        files.link("tree/program", "tree/program-1.0")
    }

    /// The same where it has been done before: objects and program are written anew, as `make -B` does.
    pub(super) fn make_again(&self, files: &Files) -> Result<(), LabError> {
        files.remove("tree/program-1.0")?;
        self.make(files)
    }

    /// Exponentially distributed, as sources are short and long: 16 quantiles by turns.
    fn compute(&self, files: &Files, number: usize) {
        if !self.thinks.is_zero() {
            files.compute(self.quantile(number * 7 % 16));
        }
    }

    fn quantile(&self, number: usize) -> Duration {
        self.thinks.mul_f64(-(1.0 - (number as f64 + 0.5) / 16.0).ln())
    }

    /// The longest that the compiler computes at a time.
    pub(super) fn longest(&self) -> Duration {
        self.quantile(15)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::trace::{Does, Recording};

    #[test]
    fn compilations_take_on_average_what_they_should() {
        let thinks = Duration::from_millis(500);
        let build = Build { sources: 1, headers: 1, probes: 0, thinks };
        let mean = (0..16).map(|number| build.quantile(number).as_secs_f64()).sum::<f64>() / 16.0;
        assert!((0.48..0.5).contains(&mean), "{mean}");
        assert!(build.longest() > 3 * thinks && build.longest() < 4 * thinks);
    }

    #[test]
    fn a_build_makes_an_object_for_each_source_and_a_program_of_all() {
        let dir = tempfile::tempdir().expect("a directory");
        let recording = Recording::start();
        let build = Build { sources: 9, headers: 3, probes: 2, thinks: Duration::ZERO };
        build.run(&Files::recorded(dir.path(), &recording, 0)).expect("built");
        let program = std::fs::metadata(dir.path().join("tree/program")).expect("linked");
        assert_eq!(program.len(), 9 * (12 << 10));
        build.make_again(&Files::of(dir.path())).expect("built again");
        assert!(!dir.path().join("tree/conftest.c").exists(), "configure leaves nothing behind");
        let count = |does: Does| recording.end().steps.iter().filter(|step| step.does == does).count();
        assert_eq!(count(Does::Remove), 3 * 2);
        assert_eq!([Does::Rename, Does::Link].map(count), [1, 1]);
        assert_eq!(count(Does::Make), 6 + 3 + 9 + 1 + 1 + 3 * 2 + 2 + 9 + 1);
    }
}
