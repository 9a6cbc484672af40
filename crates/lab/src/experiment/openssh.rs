//! Debian's source of openssh is unpacked, configured and built: SSH-Build as it is today. Where the source or a compiler cannot
//! be had, that is said, and everything else goes on.

use super::{Lab, STARTED_FOR};
use crate::LabError;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
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
