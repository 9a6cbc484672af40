//! All protocols beside each other.

use super::leases::{Setting, Use};
use super::{Kind, Outcome, System, replay};
use crate::figure::Table;
use crate::trace::Trace;
use soda_model::load::Network;

/// What each protocol is called, and what it is.
pub(crate) fn systems() -> Vec<(&'static str, System)> {
    let behind = Use::Behind { age: 1.0 };
    vec![
        ("leases of 10 s (paper)", System::Leases(Setting::paper(10.0, Network::Unicast))),
        ("leases, by multicast", System::Leases(Setting::paper(10.0, Network::Multicast))),
        ("Soda, write=through", System::Leases(Setting::soda(Use::Through))),
        ("Soda, write=behind", System::Leases(Setting::soda(behind))),
        ("Soda, through, no eq. 8", System::Leases(Setting::soda(Use::Through).without_policy())),
        ("Soda, behind, no eq. 8", System::Leases(Setting::soda(behind).without_policy())),
        ("Soda, behind, deep leases", System::Leases(Setting::soda(behind).deep(f64::INFINITY))),
        ("Sprite", System::Sprite),
        ("asking at each read", System::CheckEachRead),
        ("AFS v1", System::AfsV1),
        ("AFS v2", System::AfsV2),
        // Linux's acregmin and acdirmin; and what the SODA paper has of NFS.
        ("NFS, 3 s, names 30 s", System::Nfs { files: 3.0, directories: 30.0 }),
        ("NFS, 6 s, names 60 s", System::Nfs { files: 6.0, directories: 60.0 }),
    ]
}

/// For how many seconds NFS believes attributes of files and of directories; infinite: for good.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Believed {
    files: f64,
    directories: f64,
}

impl Believed {
    /// Neither is negative, or no number.
    pub fn new(files: f64, directories: f64) -> Option<Believed> {
        (files >= 0.0 && directories >= 0.0).then_some(Believed { files, directories })
    }

    fn named(self) -> (String, System) {
        let Believed { files, directories } = self;
        let name = format!("NFS, {files} s, names {directories} s");
        (name.replace("inf s", "for good"), System::Nfs { files, directories })
    }
}

/// What each protocol has counted under one workload.
#[derive(Debug)]
pub struct Compared {
    title: String,
    rows: Vec<(String, Outcome)>,
}

/// All protocols under a trace, with so many seconds of a round trip; NFS with these times, if there are any, else with those of
/// Linux and of the SODA paper.
pub fn under_trace(title: &str, trace: &Trace, round_trip: f64, nfs: &[Believed]) -> Compared {
    let recorded = trace.replay();
    let known = systems().into_iter().map(|(name, system)| (name.to_owned(), system));
    let known = known.filter(|(_, system)| nfs.is_empty() || !matches!(system, System::Nfs { .. }));
    let all = known.chain(nfs.iter().map(|believed| believed.named()));
    let rows = all.map(|(name, system)| (name, replay(system, &recorded, round_trip))).collect();
    Compared { title: title.to_owned(), rows }
}

impl Compared {
    pub(crate) fn new(title: &str, rows: Vec<(String, Outcome)>) -> Compared {
        Compared { title: title.to_owned(), rows }
    }

    /// Stale reads of protocols that promise that there is none.
    pub(crate) fn stale_where_none_may_be(&self) -> u64 {
        let promise = |name: &str| !(name.starts_with("AFS") || name.starts_with("NFS"));
        self.rows.iter().filter(|(name, _)| promise(name)).map(|(_, outcome)| outcome.stale_reads).sum()
    }

    /// Sums of all, and messages by kind.
    pub fn totals(&self) -> [Table; 2] {
        [self.sums(), self.kinds(&self.title, |_| 1.0)]
    }

    /// The same in one table, for programs.
    pub fn whole(&self) -> Table {
        let [mut whole, kinds] = self.totals();
        whole.head.extend(kinds.head.into_iter().skip(1));
        for (row, more) in whole.rows.iter_mut().zip(kinds.rows) {
            row.extend(more.into_iter().skip(1));
        }
        whole
    }

    /// Per second, and messages by kind.
    pub(crate) fn rates(&self) -> [Table; 2] {
        let head = [
            "protocol",
            "messages/s",
            "+- (99 %)",
            "kB/s",
            "hits %",
            "open, close (us)",
            "read (us)",
            "write (us)",
            "stale reads",
            "of reads",
        ];
        let mut table = Table::new(&self.title, head);
        for (name, outcome) in &self.rows {
            let (load, margin) = outcome.server_load();
            table.row([
                name.clone().into(),
                load.into(),
                margin.into(),
                (outcome.bytes as f64 / outcome.duration / 1000.0).into(),
                (100.0 * outcome.hit_ratio()).into(),
                (1e6 * outcome.mean_open_delay()).into(),
                (1e6 * outcome.mean_read_delay()).into(),
                (1e6 * outcome.mean_write_delay()).into(),
                outcome.stale_reads.into(),
                outcome.reads.into(),
            ]);
        }
        [table, self.kinds(&format!("{}: messages/s by kind", self.title), |outcome| outcome.duration)]
    }

    fn sums(&self) -> Table {
        let head = [
            "protocol",
            "messages",
            "for consistency",
            "writes and digests",
            "kB",
            "hits %",
            "waited (s)",
            "stale reads",
            "of reads",
        ];
        let mut table = Table::new(&self.title, head);
        for (name, outcome) in &self.rows {
            table.row([
                name.clone().into(),
                outcome.all().into(),
                (outcome.all() - outcome.changes()).into(),
                outcome.changes().into(),
                (outcome.bytes as f64 / 1000.0).into(),
                (100.0 * outcome.hit_ratio()).into(),
                (outcome.read_delay + outcome.write_delay + outcome.open_delay).into(),
                outcome.stale_reads.into(),
                outcome.reads.into(),
            ]);
        }
        table
    }

    /// Messages of each kind, divided by something; only kinds that somebody sent.
    fn kinds(&self, title: &str, by: impl Fn(&Outcome) -> f64) -> Table {
        let sent = |kind: &Kind| self.rows.iter().any(|(_, outcome)| outcome.messages.contains_key(kind));
        let kinds: Vec<Kind> = Kind::ALL.into_iter().filter(sent).collect();
        let mut table = Table::new(title, ["protocol"]);
        table.head.extend(kinds.iter().map(|kind| kind.name().to_owned()));
        for (name, outcome) in &self.rows {
            let count = |kind| outcome.messages.get(kind).copied().unwrap_or(0) as f64 / by(outcome);
            let cells = kinds.iter().map(|kind| count(kind).into());
            table.rows.push(std::iter::once(name.clone().into()).chain(cells).collect());
        }
        table
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::figure::Value;

    #[test]
    fn kinds_add_up_to_all_messages_and_stand_beside_them_for_programs() {
        let trace =
            Trace::parse("0,0,write,a\n1,1,read,a\n2,0,write,a\n3,1,stat,a\n4,1,read,a").expect("a trace");
        let compared = under_trace("t", &trace, 0.0, &[]);
        let [sums, kinds] = compared.totals();
        let whole = compared.whole();
        assert_eq!(sums.rows.len(), systems().len());
        for ((sums, kinds), whole) in sums.rows.iter().zip(&kinds.rows).zip(&whole.rows) {
            let count = |cell: &Value| if let Value::Number(count) = cell { *count } else { f64::NAN };
            let counts: f64 = kinds[1..].iter().map(count).sum();
            assert_eq!((counts, &kinds[0]), (count(&sums[1]), &sums[0]));
            assert!(counts > 0.0, "{sums:?}");
            assert_eq!(whole[..], [&sums[..], &kinds[1..]].concat());
        }
        assert_eq!(whole.head.len(), whole.rows[0].len());
        assert!(kinds.head.contains(&"validate".to_owned()) && !kinds.head.contains(&"heartbeat".to_owned()));
    }

    #[test]
    fn nfs_believes_attributes_as_long_as_it_is_told() {
        let of_a_file = "0,0,stat,d/a\n1,1,write,d/a\n2,0,stat,d/a\n20,0,stat,d/a\n";
        let of_a_directory = "21,0,list,d\n22,1,make,d/b\n23,0,list,d\n60,0,list,d\n";
        let trace = Trace::parse(&format!("{of_a_file}{of_a_directory}")).expect("a trace");
        let nfs = [(0.0, 0.0), (3.0, 30.0), (3.0, 0.5), (100.0, 30.0), (f64::INFINITY, f64::INFINITY)];
        let nfs = nfs.map(|(files, directories)| Believed::new(files, directories).expect("times"));
        let compared = under_trace("t", &trace, 0.0, &nfs);
        let rows: Vec<(&str, u64)> = (compared.rows.iter())
            .filter(|(name, _)| name.starts_with("NFS"))
            .map(|(name, outcome)| (name.as_str(), outcome.stale_reads))
            .collect();
        let expected = [
            ("NFS, 0 s, names 0 s", 0),
            ("NFS, 3 s, names 30 s", 2),
            ("NFS, 3 s, names 0.5 s", 1),
            ("NFS, 100 s, names 30 s", 3),
            ("NFS, for good, names for good", 4),
        ];
        assert_eq!(rows, expected);
        assert_eq!(compared.rows.len(), systems().len() + 3, "in place of the two that are usual");
        assert!(compared.stale_where_none_may_be() == 0);
        assert_eq!([Believed::new(-1.0, 0.0), Believed::new(0.0, f64::NAN)], [None, None]);
    }
}
