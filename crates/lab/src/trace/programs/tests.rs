//! Lines of strace, and what a trace has of them.

use super::*;
use Does::{Link, List, Make, Miss, Read, Remove, Rename, Stat, Write};

/// What is made of such lines of strace, each a second after the other, by one thread in /t/work that finds `old`.
fn told(lines: &[&str]) -> Vec<(Does, String, Option<u64>)> {
    let numbered = lines.iter().enumerate().map(|(at, line)| format!("7 {}.0 {line}", 100 + at));
    heard(numbered).steps.into_iter().map(|step| (step.does, step.path, step.bytes)).collect()
}

fn heard(lines: impl Iterator<Item = String>) -> Trace {
    let names = BTreeSet::from(["old".to_owned(), "dir".to_owned()]);
    let mut programs = Programs::new("/t/work".into(), "/t/work".into(), names);
    lines.for_each(|line| programs.hear(&line));
    programs.end()
}

fn step(does: Does, path: &str, bytes: Option<u64>) -> (Does, String, Option<u64>) {
    (does, path.to_owned(), bytes)
}

#[test]
fn all_that_is_read_or_written_between_open_and_close_is_one_step() {
    let lines = [
        r#"openat(AT_FDCWD</t/work>, "old", O_RDONLY) = 3</t/work/old>"#,
        r#"newfstatat(3</t/work/old>, "", {st_size=3, ...}, AT_EMPTY_PATH) = 0"#,
        r#"read(3</t/work/old>, ""..., 4096) = 3000"#,
        r#"read(3</t/work/old>, "", 4096) = 0"#,
        r#"mmap(NULL, 500, PROT_READ, MAP_PRIVATE, 3</t/work/old>, 0) = 0x7f0000"#,
        r#"close(3</t/work/old>) = 0"#,
        r#"openat(AT_FDCWD</t/work>, "new", O_WRONLY|O_CREAT|O_TRUNC, 0666) = 3</t/work/new>"#,
        r#"dup2(3</t/work/new>, 1) = 1</t/work/new>"#,
        r#"write(1</t/work/new>, ""..., 10) = 10"#,
        r#"copy_file_range(4</t/work/old>, NULL, 1</t/work/new>, NULL, 100, 0) = 20"#,
        r#"openat(AT_FDCWD</t/work>, "old", O_RDWR) = 3</t/work/old>"#,
        r#"openat(AT_FDCWD</t/work>, "old", O_WRONLY|O_CREAT|O_APPEND, 0666) = 3</t/work/old>"#,
    ];
    let steps = [
        step(Read, "old", Some(3520)),
        step(Make, "new", None),
        step(Write, "new", Some(30)),
        step(Read, "old", Some(0)),
    ];
    assert_eq!(told(&lines), steps, "what is opened for writing and not written changes nothing");
}

#[test]
fn names_are_found_or_missed_made_removed_and_moved() {
    let lines = [
        r#"access("old", R_OK) = 0"#,
        r#"newfstatat(AT_FDCWD</t/work>, "none", 0x7ff, 0) = -1 ENOENT (No such file or directory)"#,
        r#"openat(AT_FDCWD</t/work>, "none", O_RDONLY) = -1 ENOENT (No such file or directory)"#,
        r#"readlink("/t/work/old", 0x7ff, 1023) = -1 EINVAL (Invalid argument)"#,
        r#"mkdir("dir/sub", 0777) = 0"#,
        r#"mkdir("dir/sub", 0777) = -1 EEXIST (File exists)"#,
        r#"symlinkat("old", AT_FDCWD</t/work>, "link") = 0"#,
        r#"renameat2(AT_FDCWD</t/work>, "old", 5</t/work/dir>, "../new", 0) = 0"#,
        r#"linkat(AT_FDCWD</t/work>, "new", AT_FDCWD</t/work>, "second", 0) = 0"#,
        r#"unlink("link") = 0"#,
        r#"unlinkat(5</t/work/dir>, "sub", AT_REMOVEDIR) = 0"#,
        r#"unlink("link") = -1 ENOENT (No such file or directory)"#,
        r#"chmod("new", 0600) = 0"#,
        r#"utimensat(0</t/work/new>, NULL, NULL, 0) = 0"#,
        r#"openat(AT_FDCWD</t/work>, ".", O_RDONLY|O_DIRECTORY) = 3</t/work>"#,
        r#"getdents64(3</t/work>, 0x55 /* 3 entries */, 32768) = 72"#,
        r#"rename("/t/elsewhere", "came") = 0"#,
        r#"rename("came", "/t/elsewhere") = 0"#,
        r#"stat("/t/workshop", {...}) = 0"#,
    ];
    let steps = [
        step(Stat, "old", None),
        step(Miss, "none", None),
        step(Miss, "none", None),
        step(Stat, "old", None),
        step(Make, "dir/sub", None),
        step(Make, "link", None),
        step(Rename, "old", None),
        step(Link, "new", None),
        step(Remove, "link", None),
        step(Remove, "dir/sub", None),
        step(Miss, "link", None),
        step(Write, "new", Some(0)),
        step(Write, "new", Some(0)),
        step(List, "", None),
        step(Make, "came", None),
        step(Remove, "came", None),
    ];
    assert_eq!(told(&lines), steps);
}

#[test]
fn data_of_a_file_that_is_renamed_while_it_is_open_is_its_own() {
    let lines = [
        r#"openat(AT_FDCWD</t/work>, "old.new", O_WRONLY|O_CREAT|O_EXCL, 0600) = 3</t/work/old.new>"#,
        r#"rename("old.new", "old") = 0"#,
        r#"write(3</t/work/old>, ""..., 10) = 10"#,
        r#"openat(AT_FDCWD</t/work>, "old", O_WRONLY|O_CREAT, 0600) = 4</t/work/old>"#,
        r#"ftruncate(4</t/work/old>, 0) = 0"#,
    ];
    let steps = [
        step(Make, "old.new", None),
        step(Write, "old.new", Some(10)),
        step(Rename, "old.new", None),
        step(Write, "old", Some(0)),
    ];
    assert_eq!(told(&lines), steps);
}

#[test]
fn what_a_file_is_written_that_took_anothers_name_is_its_own() {
    let lines = [
        r#"openat(AT_FDCWD</t/work>, "a.new", O_WRONLY|O_CREAT, 0600) = 3</t/work/a.new>"#,
        r#"openat(AT_FDCWD</t/work>, "old", O_WRONLY|O_TRUNC) = 4</t/work/old>"#,
        r#"rename("a.new", "old") = 0"#,
        r#"write(3</t/work/old>, ""..., 10) = 10"#,
    ];
    let steps = [
        step(Make, "a.new", None),
        step(Write, "a.new", Some(10)),
        step(Write, "old", Some(0)),
        step(Rename, "a.new", None),
    ];
    assert_eq!(told(&lines), steps);
}

#[test]
fn each_process_is_where_it_or_its_parent_has_gone() {
    let lines = [
        "7 1.0 chdir(\"dir\") = 0",
        "7 2.0 vfork( <unfinished ...>",
        "8 3.0 access(\"a\", F_OK) = 0",
        "8 4.0 chdir(\"/t/work/other\") = 0",
        "7 5.0 <... vfork resumed>) = 8",
        "8 6.0 access(\"b\", F_OK) = 0",
        "7 7.0 access(\"c\", F_OK) = 0",
        "7 8.0 clone(child_stack=NULL, flags=SIGCHLD) = 9",
        "9 9.0 access(\"../d\", F_OK) = 0",
        "9 9.5 fchdir(3</t/work/x>) = 0",
        "9 9.6 execve(\"./e\", [...], 0x55 /* 9 vars */) = 0",
    ];
    let trace = heard(lines.into_iter().map(str::to_owned));
    let paths: Vec<&str> = trace.steps.iter().map(|step| step.path.as_str()).collect();
    assert_eq!(paths, ["dir/a", "other/b", "dir/c", "d", "x/e"]);
    assert_eq!(trace.steps.last().map(|step| step.does), Some(Read), "a program is read");
    assert_eq!(trace.steps[0].at, 2.0, "from the first call on");
    Trace::parse(&trace.csv()).expect("a trace");
}
