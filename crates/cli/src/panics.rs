//! A panic ends the process: see ARCHITECTURE, "When something is wrong in here". The profile for releases says so
//! (`panic = "abort"`); this does it in every build, and has the log say why.

use crate::log;

/// From now on a panic of any thread ends the process.
pub(crate) fn end_the_process() {
    let usual = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        tracing::error!("{panic}: this is a mistake of Soda's, and ends the process");
        log::finish();
        usual(panic);
        std::process::abort();
    }));
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::process::ExitStatusExt;
    use std::process::Command;

    /// Says that this process is the one to panic.
    const VICTIM: &str = "SODA_TEST_PANICS";

    fn panics() {
        panic!("of the test");
    }

    #[test]
    fn a_panic_of_any_thread_ends_the_process() {
        if std::env::var_os(VICTIM).is_some() {
            end_the_process();
            let _ = std::thread::spawn(panics).join();
            std::process::exit(0);
        }
        let name = "panics::tests::a_panic_of_any_thread_ends_the_process";
        let mut victim = Command::new(std::env::current_exe().unwrap());
        let ended = victim.args([name, "--exact", "--nocapture"]).env(VICTIM, "1").output().unwrap();
        assert_eq!(ended.status.signal(), Some(6), "SIGABRT: {ended:?}");
        let said = String::from_utf8_lossy(&ended.stderr);
        assert!(said.contains("of the test"), "{said}");
    }
}
