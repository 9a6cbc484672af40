//! Debian's source of openssh is unpacked, configured and built: SSH-Build as it is today. Where the source or a compiler cannot
//! be had, that is said, and everything else goes on.

use crate::LabError;
use crate::setup::{Lab, STARTED_FOR};
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

/// How sources are had from Debian's mirrors: see tests/external.
const LIBRARY: &str = include_str!("../../../../tests/external/lib.sh");
/// Nothing is installed for an experiment: what is missing is named.
const FETCH: &str = "install_packages() {
  dpkg -s \"$@\" >/dev/null 2>&1 || die \"it takes the packages $*\"
}
install_packages dpkg-dev gcc make libc6-dev zlib1g-dev libssl-dev
ls \"$(debian_source openssh)\"/openssh_*.orig.tar.gz
";
/// Seconds that the mirrors, or a phase of the build, may take.
const PATIENCE: &str = "1200";

/// What is built.
#[derive(Clone, Debug)]
pub(super) struct Openssh {
    archive: PathBuf,
}

impl Openssh {
    /// From the mirrors, unless it is there from an earlier run.
    ///
    /// # Errors
    /// Why it cannot be had, in words for a table.
    pub(super) fn fetch(lab: &Lab<'_>) -> Result<Openssh, String> {
        (lab.progress)("openssh's source is fetched");
        let script = format!("{LIBRARY}\n{FETCH}");
        let mut command = Command::new("timeout");
        command.args([PATIENCE, "bash", "-c", &script]).env(STARTED_FOR, lab.scratch).stdin(Stdio::null());
        let output = command.output();
        let output = output.map_err(|error| format!("openssh cannot be fetched: {error}"))?;
        Openssh::of(&output)
    }

    /// What the script says last is where the source is, or why it is not there.
    fn of(output: &Output) -> Result<Openssh, String> {
        let said = String::from_utf8_lossy(&output.stdout);
        let archive = said.lines().last().map(PathBuf::from).filter(|archive| archive.is_file());
        match archive.filter(|_| output.status.success()) {
            Some(archive) => Ok(Openssh { archive }),
            None => {
                let errors = String::from_utf8_lossy(&output.stderr);
                let last = errors.lines().last().unwrap_or("no reason is given");
                Err(format!("openssh cannot be fetched: {last}"))
            }
        }
    }

    /// In a new directory of `root`: the time of each of [`super::build::PHASES`].
    pub(super) fn run(&self, lab: &Lab<'_>, root: &Path) -> Result<[Duration; 3], LabError> {
        let tree = root.join("openssh");
        std::fs::create_dir(&tree).map_err(LabError::io(&tree))?;
        let archive = self.archive.as_os_str();
        let unpack = ["tar", "--no-same-owner", "--strip-components=1", "-xf"];
        let unpack: Vec<_> = unpack.iter().map(std::ffi::OsStr::new).chain([archive]).collect();
        let words = |line: &'static str| line.split(' ').map(std::ffi::OsStr::new).collect::<Vec<_>>();
        let configure = words(
            "./configure CFLAGS=-O0 --without-hardening --without-stackprotect --without-pam --without-selinux \
             --disable-pkcs11 --disable-security-key",
        );
        let mut times = [Duration::ZERO; 3];
        for (time, phase) in times.iter_mut().zip([unpack, configure, words("make -j2 ssh")]) {
            *time = timed(lab, &tree, &phase)?;
        }
        Ok(times)
    }
}

fn timed(lab: &Lab<'_>, dir: &Path, words: &[&std::ffi::OsStr]) -> Result<Duration, LabError> {
    let log = lab.scratch.join("openssh.log");
    let out = File::create(&log).map_err(LabError::io(&log))?;
    let err = out.try_clone().map_err(LabError::io(&log))?;
    let mut command = Command::new("timeout");
    command.arg(PATIENCE).args(words).current_dir(dir).env(STARTED_FOR, lab.scratch);
    command.stdin(Stdio::null()).stdout(out).stderr(err);
    let start = Instant::now();
    let status = command.status().map_err(LabError::io("timeout"))?;
    let took = start.elapsed();
    if status.success() {
        return Ok(took);
    }
    let said = std::fs::read_to_string(&log).unwrap_or_default();
    let last: Vec<&str> = said.lines().rev().take(5).collect();
    let last = last.into_iter().rev().collect::<Vec<_>>().join("; ");
    Err(LabError::Failed(format!("openssh: {}: {last}", words[0].display())))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::setup::Extent;
    use std::ffi::OsStr;

    fn lab(scratch: &Path) -> Lab<'_> {
        Lab { program: Path::new("soda"), scratch, extent: Extent::Quick, progress: &|_| {} }
    }

    fn shell(script: &str) -> Output {
        Command::new("sh").args(["-c", script]).output().expect("sh runs")
    }

    #[test]
    fn the_source_is_where_the_script_says_last() {
        let dir = tempfile::tempdir().expect("a directory");
        let archive = dir.path().join("openssh_9.2p1.orig.tar.gz");
        std::fs::write(&archive, "").expect("written");
        let script = |status: u8| format!("echo fetching; echo {}; exit {status}", archive.display());
        assert_eq!(Openssh::of(&shell(&script(0))).map(|found| found.archive), Ok(archive.clone()));
        let why = |script: &str| Openssh::of(&shell(script)).expect_err("not there");
        assert_eq!(why(&script(1)), "openssh cannot be fetched: no reason is given");
        let missing = "echo first >&2; echo it takes the packages gcc >&2; exit 1";
        assert_eq!(why(missing), "openssh cannot be fetched: it takes the packages gcc");
        assert_eq!(why("echo /not/there"), "openssh cannot be fetched: no reason is given");
    }

    #[test]
    fn a_phase_takes_its_time_and_one_that_fails_says_its_last_words() {
        let dir = tempfile::tempdir().expect("a directory");
        let (lab, at) = (lab(dir.path()), dir.path().join("tree"));
        std::fs::create_dir(&at).expect("made");
        let timed = |script: &str| timed(&lab, &at, &["sh", "-c", script].map(OsStr::new));
        let took = timed("touch made-here").expect("done");
        assert!(took > Duration::ZERO, "{took:?}");
        assert!(at.join("made-here").is_file());
        let error = timed("seq 7; exit 1").expect_err("it failed").to_string();
        assert!(error.ends_with("openssh: sh: 3; 4; 5; 6; 7"), "{error}");
    }

    #[test]
    fn a_source_that_cannot_be_configured_fails_in_that_phase() {
        let dir = tempfile::tempdir().expect("a directory");
        let source = dir.path().join("openssh-9.2p1");
        std::fs::create_dir(&source).expect("made");
        let script = "#!/bin/sh\necho no C compiler is found\nexit 77\n";
        std::fs::write(source.join("configure"), script).expect("written");
        let archive = dir.path().join("source.tar");
        let made = shell(&format!(
            "cd {} && chmod +x */configure && tar -cf source.tar openssh-9.2p1",
            dir.path().display()
        ));
        assert!(made.status.success(), "{made:?}");
        let run = |archive: &Path, root: &str| {
            let root = dir.path().join(root);
            std::fs::create_dir(&root).expect("made");
            let error = Openssh { archive: archive.to_owned() }.run(&lab(dir.path()), &root);
            error.expect_err("it cannot be built").to_string()
        };
        let error = run(&archive, "one");
        assert!(error.ends_with("openssh: ./configure: no C compiler is found"), "{error}");
        // Without the directory that the archive has around everything.
        assert!(dir.path().join("one/openssh/configure").is_file());
        let error = run(&source.join("configure"), "two");
        assert!(error.contains("openssh: tar: "), "{error}");
    }
}
