//! Whose program this is: the machine's root, or anybody else, also one who is root in a user namespace of their own
//! (user_namespaces(7)).

const MAP: &str = "/proc/self/uid_map";

/// Whether what belongs to the machine, such as /run, is this program's to use.
pub(crate) fn is_machines_root() -> bool {
    outside() == 0
}

/// The effective user as the namespace around this one numbers it; in the machine's own namespace just the effective user.
pub(crate) fn outside() -> u32 {
    let user = rustix::process::geteuid().as_raw();
    outside_of(user, &std::fs::read_to_string(MAP).unwrap_or_default())
}

fn outside_of(user: u32, map: &str) -> u32 {
    let translated = |line: &str| {
        let mut numbers = line.split_whitespace().map(|word| word.parse::<u32>().ok());
        let (inside, outside, count) = (numbers.next()??, numbers.next()??, numbers.next()??);
        user.checked_sub(inside).filter(|at| *at < count).map(|at| outside + at)
    };
    map.lines().find_map(translated).unwrap_or(user)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_user_is_known_by_the_number_outside_of_the_namespace() {
        let (machine, own, container) =
            ("         0          0 4294967295\n", "         0       1000          1\n", "0 100000 65536\n");
        assert_eq!([0, 1000].map(|user| outside_of(user, machine)), [0, 1000]);
        assert_eq!(outside_of(0, own), 1000);
        assert_eq!([0, 7].map(|user| outside_of(user, container)), [100_000, 100_007]);
        assert_eq!([outside_of(65_534, own), outside_of(5, "")], [65_534, 5], "not mapped, no /proc");
    }
}
