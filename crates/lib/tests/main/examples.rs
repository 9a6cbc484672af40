//! The example, run.

use crate::Cell;

#[path = "../../examples/notes.rs"]
#[allow(dead_code, reason = "its main reads the command line")]
mod notes;

#[tokio::test(flavor = "multi_thread")]
async fn notes_are_kept_by_two_machines() {
    let cell = Cell::start();
    let told = notes::run(&cell.address(), "main").await.unwrap();
    assert_eq!(
        told,
        [
            "20 notes there",
            "log: b\"from here\\nfrom there\\n\"",
            "locked for others: true",
            "cannot open notes/none: No such file or directory (os error 2)",
            "gone there: true",
        ]
    );
}
