//! What strace(1) prints, as calls: `PID SECONDS.MICROS name(argument, ...) = result`, with `-f -ttt -y`. A call in which others
//! came between is in two lines, `... <unfinished ...>` and `<... name resumed> ...`.

use std::collections::BTreeMap;

/// A system call that has returned.
#[derive(Clone, PartialEq, Debug)]
pub(super) struct Call {
    /// When it began, seconds.
    pub(super) at: f64,
    pub(super) thread: u32,
    pub(super) name: String,
    pub(super) arguments: Vec<String>,
    /// As printed: `3</path>`, `0`, `-1 ENOENT (No such file or directory)`.
    pub(super) result: String,
}

/// Puts the two lines of a call together.
#[derive(Debug, Default)]
pub(super) struct Lines {
    /// Of each thread in a call: when it began, and what was printed.
    begun: BTreeMap<u32, (f64, String)>,
}

impl Lines {
    /// `None`: no call, or none that has returned yet.
    pub(super) fn next(&mut self, line: &str) -> Option<Call> {
        let (thread, rest) = line.trim_start().split_once(' ')?;
        let (at, text) = rest.trim_start().split_once(' ')?;
        let (thread, at) = (thread.parse().ok()?, at.parse().ok()?);
        if let Some(head) = text.strip_suffix("<unfinished ...>") {
            self.begun.insert(thread, (at, head.to_owned()));
            return None;
        }
        if let Some(resumed) = text.strip_prefix("<... ") {
            let (at, head) = self.begun.remove(&thread)?;
            let (_, tail) = resumed.split_once(" resumed>")?;
            return parse(at, thread, &format!("{head}{tail}"));
        }
        parse(at, thread, text)
    }

    /// A thread that has begun to start another, which is not known yet.
    pub(super) fn starting(&self) -> Option<u32> {
        let starts = |text: &str| is_start(text.split('(').next().unwrap_or_default());
        self.begun.iter().find(|(_, (_, text))| starts(text)).map(|(thread, _)| *thread)
    }
}

/// Whether the call makes a thread or a process, whose number it returns.
pub(super) fn is_start(name: &str) -> bool {
    matches!(name, "clone" | "clone3" | "fork" | "vfork")
}

impl Call {
    pub(super) fn argument(&self, number: usize) -> &str {
        self.arguments.get(number).map_or("", String::as_str)
    }

    /// What it returned, where that is a number and no error.
    pub(super) fn value(&self) -> Option<u64> {
        let number = self.result.split(['<', ' ']).next()?;
        match number.strip_prefix("0x") {
            Some(hexadecimal) => u64::from_str_radix(hexadecimal, 16).ok(),
            None => number.parse().ok(),
        }
    }

    /// `ENOENT`, of a call that failed.
    pub(super) fn error(&self) -> Option<&str> {
        self.result.strip_prefix("-1 ")?.split(' ').next()
    }
}

fn parse(at: f64, thread: u32, text: &str) -> Option<Call> {
    let (name, rest) = text.split_once('(')?;
    if !name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_') {
        return None;
    }
    let (arguments, rest) = arguments(rest)?;
    let result = rest.trim_start().strip_prefix('=')?.trim().to_owned();
    Some(Call { at, thread, name: name.to_owned(), arguments, result })
}

/// Up to the bracket that closes the call, and what comes after it.
fn arguments(text: &str) -> Option<(Vec<String>, &str)> {
    let (mut all, mut depth, mut from) = (Vec::new(), 0_u32, 0);
    let mut within: Option<u8> = None;
    let bytes = text.as_bytes();
    let mut at = 0;
    while at < bytes.len() {
        let byte = bytes[at];
        match (within, byte) {
            (Some(_), b'\\') => at += 1,
            (Some(end), _) if byte == end => within = None,
            (Some(_), _) => {}
            (None, b'"') => within = Some(b'"'),
            // A shift in a number; anything else is the path of a descriptor.
            (None, b'<') if bytes.get(at + 1) == Some(&b'<') => at += 1,
            (None, b'<') => within = Some(b'>'),
            (None, b'(' | b'[' | b'{') => depth += 1,
            (None, b')') if depth == 0 => {
                all.push(text[from..at].trim().to_owned());
                return Some((all, &text[at + 1..]));
            }
            (None, b')' | b']' | b'}') => depth = depth.saturating_sub(1),
            (None, b',') if depth == 0 => {
                all.push(text[from..at].trim().to_owned());
                from = at + 1;
            }
            (None, _) => {}
        }
        at += 1;
    }
    None
}

/// The text in quotation marks; `None`: it is none, such as NULL.
pub(super) fn quoted(argument: &str) -> Option<String> {
    Some(unescaped(argument.strip_prefix('"')?.trim_end_matches("...").strip_suffix('"')?))
}

/// The path of a descriptor, `3</path>`, whether or not its name is still there; `None`: it has none, as a pipe.
pub(super) fn of_descriptor(argument: &str) -> Option<String> {
    let (_, rest) = argument.split_once('<')?;
    let (path, _) = rest.rsplit_once('>')?;
    path.starts_with('/').then(|| unescaped(path))
}

/// As C writes bytes that are not printed.
fn unescaped(text: &str) -> String {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let [first, more @ ..] = rest {
        rest = more;
        let [next, after @ ..] = more else {
            bytes.push(*first);
            break;
        };
        if *first != b'\\' {
            bytes.push(*first);
            continue;
        }
        let digits = more.iter().take(3).take_while(|byte| (b'0'..=b'7').contains(*byte)).count();
        if digits > 0 {
            let value = more[..digits].iter().fold(0_u32, |value, digit| value * 8 + u32::from(digit - b'0'));
            bytes.push(u8::try_from(value).unwrap_or(b'?'));
            rest = &more[digits..];
            continue;
        }
        rest = after;
        bytes.push(match next {
            b'n' => b'\n',
            b't' => b'\t',
            b'r' => b'\r',
            b'v' => 0x0b,
            b'f' => 0x0c,
            other => *other,
        });
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn one(line: &str) -> Call {
        Lines::default().next(line).unwrap_or_else(|| panic!("no call: {line}"))
    }

    #[test]
    fn a_line_is_a_call_with_its_arguments_and_result() {
        let call = one(r#"20 17.25 openat(AT_FDCWD</t>, "a, (b", O_WRONLY|O_CREAT, 0666) = 3</t/a, (b>"#);
        assert_eq!((call.at, call.thread, call.name.as_str()), (17.25, 20, "openat"));
        assert_eq!(call.arguments, ["AT_FDCWD</t>", r#""a, (b""#, "O_WRONLY|O_CREAT", "0666"]);
        assert_eq!((call.value(), call.error()), (Some(3), None));
        assert_eq!(of_descriptor(&call.result).as_deref(), Some("/t/a, (b"));
        let call = one(
            r#"20 1.5 newfstatat(3</t/a>, "", {st_mode=S_IFREG|0644, st_size=3, ...}, AT_EMPTY_PATH) = 0"#,
        );
        assert_eq!(call.arguments.len(), 4);
        let call = one(r#"20 1.5 rmdir("d")      = -1 ENOTEMPTY (Directory not empty)"#);
        assert_eq!((call.value(), call.error()), (None, Some("ENOTEMPTY")));
        let call = one("20 1.5 mmap(NULL, 8192, PROT_READ, MAP_PRIVATE|21<<26, 3</t/a>, 0) = 0x7f0c");
        assert_eq!((call.argument(4), call.value()), ("3</t/a>", Some(0x7f0c)));
        assert_eq!(call.argument(9), "");
        let call = one(r#"20 1.5 link("a\", (b", "c") = 0"#);
        assert_eq!(call.arguments.len(), 2, "a quotation mark in a name ends nothing");
    }

    #[test]
    fn what_is_no_call_is_passed_over() {
        let said = [
            "20 1.5 +++ exited with 0 +++",
            "20 1.5 --- SIGCHLD {si_signo=SIGCHLD, si_code=CLD_EXITED} ---",
            "20 1.5 <... read resumed>\"\"..., 10) = 3",
            "20 1.5 exit_group(0",
            "strace: something",
            "",
        ];
        let mut lines = Lines::default();
        assert!(said.iter().all(|line| lines.next(line).is_none()));
    }

    #[test]
    fn a_call_that_others_interrupt_is_put_together_and_began_when_it_began() {
        let mut lines = Lines::default();
        assert_eq!(lines.next("20 1.5 vfork( <unfinished ...>"), None);
        assert_eq!(lines.starting(), Some(20));
        let other = lines.next(r#"21 1.6 chdir("/x") = 0"#).expect("a call");
        assert_eq!((other.thread, other.name.as_str()), (21, "chdir"));
        let call = lines.next("20 1.7 <... vfork resumed>) = 21").expect("a call");
        assert_eq!((call.at, call.name.as_str(), call.value()), (1.5, "vfork", Some(21)));
        assert_eq!(lines.starting(), None);
    }

    #[test]
    fn paths_are_those_of_the_file_system_whatever_is_in_them() {
        assert_eq!(quoted(r#""/t/\303\244<x>,y \"q\"\n""#).as_deref(), Some("/t/ä<x>,y \"q\"\n"));
        assert_eq!(quoted(r#"""..."#).as_deref(), Some(""));
        assert_eq!(quoted("NULL"), None);
        assert_eq!(of_descriptor(r"3</t/\303\244\74x\76>").as_deref(), Some("/t/ä<x>"));
        assert_eq!(of_descriptor("3</t/gone>(deleted)").as_deref(), Some("/t/gone"));
        assert_eq!((of_descriptor("4<pipe:[7]>"), of_descriptor("4")), (None, None));
        assert_eq!(unescaped("\\"), "\\");
    }
}
