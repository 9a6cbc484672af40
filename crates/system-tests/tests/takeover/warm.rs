//! What was warm under one daemon is warm under the next.

use super::*;
use crate::semantics::Python;

fn list(top: &Path) -> String {
    let output = wait::run(Command::new("ls").arg("-lR").current_dir(top), PATIENCE)
        .expect_success("ls of a whole tree");
    String::from_utf8(output.stdout).unwrap()
}

// SEMANTICS 57
#[test]
fn a_tree_that_was_warm_costs_no_message_after_a_take_over() {
    const DIRS: usize = 10;
    const FILES: usize = 30;
    if !prerequisites() {
        return;
    }
    let mut cell = Cell::unhurried(2);
    let (top, theirs) = (cell.root(0).join("top"), cell.root(1).join("top"));
    for dir in (0..DIRS).map(|dir| top.join(dir.to_string())) {
        fs::create_dir_all(&dir).unwrap();
        (0..FILES).for_each(|file| fs::write(dir.join(file.to_string()), b"x").unwrap());
    }
    let warm = list(&top);
    assert_eq!(list(&top), warm);
    for _ in 0..2 {
        cell.mounts[0].take_over();
        assert_eq!(list(&top), warm);
        assert!(!top.join("absent").exists());
        assert_eq!(cell.mounts[0].questions(), 0, "for {} inodes", DIRS * (FILES + 1));
    }
    fs::write(theirs.join("3").join("4"), b"longer").unwrap();
    fs::remove_file(theirs.join("5").join("6")).unwrap();
    fs::rename(theirs.join("7"), theirs.join("absent")).unwrap();
    assert_eq!(fs::metadata(top.join("3").join("4")).unwrap().len(), 6);
    assert!(!top.join("5").join("6").exists() && !top.join("7").exists());
    assert_eq!(fs::read_dir(top.join("absent")).unwrap().count(), FILES);
    assert_eq!(list(&top), list(&theirs));
}

/// In a mapping nobody looks at attributes before a page is used.
// SEMANTICS 1, 57
#[test]
fn pages_stay_that_a_lease_covers_and_go_when_another_machine_writes() {
    const LEN: usize = 300_000;
    if !prerequisites() {
        return;
    }
    let mut cell = Cell::unhurried(2);
    let (here, there) = (cell.root(0).join("file"), cell.root(1).join("file"));
    let content = |byte: u8| vec![byte; LEN];
    let write =
        |byte| File::options().write(true).open(&there).unwrap().write_all_at(&content(byte), 0).unwrap();
    fs::write(&there, content(b'0')).unwrap();
    let mut program = Python::start();
    program.ask(&format!("file = open({here:?})"));
    program.ask(&format!("mapped = mmap.mmap(file.fileno(), {LEN}, prot=mmap.PROT_READ)"));
    for byte in b'0'..b'3' {
        assert!(fs::read(&here).unwrap() == content(byte));
        cell.mounts[0].take_over();
        assert!(fs::read(&here).unwrap() == content(byte));
        assert_eq!(cell.mounts[0].counter("op_read"), 0, "the kernel has all of it");
        let ends = |byte| format!("({byte}, {byte})");
        assert_eq!(program.ask("(mapped[0], mapped[-1])"), ends(byte));
        write(byte + 1);
        assert_eq!(program.ask("(mapped[0], mapped[-1])"), ends(byte + 1));
    }
}
