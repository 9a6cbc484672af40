//! What is lost for good, and what is said of it.

use super::*;
use soda_storage::OldRecord;

/// A volume is made once: where there was one, and nothing is left of it, nothing is touched.
#[test]
fn lost_metadata_are_not_made_anew() {
    let lab = Lab::new();
    let stored = |lab: &Lab| lab.data.segments().unwrap().iter().map(|segment| segment.stored).sum::<u64>();
    let before = stored(&lab);
    for table in Table::ALL {
        let mut batch = Batch::new();
        let everything = &key::end_of_table();
        let mut delete = |key: &[u8], _| {
            batch.delete(*table, key.to_vec());
            std::ops::ControlFlow::Continue(())
        };
        lab.meta.scan(*table, &[], everything, &mut delete).unwrap();
        lab.meta.commit(batch).unwrap();
    }
    for repair in [Repair::No, Repair::Yes] {
        let options = FsckOptions { repair, data: DataCheck::CheckSums, now: NOW, branch: 0 };
        let error = fsck(Arc::new(lab.meta.clone()), Arc::new(lab.data.clone()), options, &mut |_| {});
        assert!(error.unwrap_err().to_string().contains("restore them from a copy"));
    }
    let opened =
        Volume::open(Arc::new(lab.meta.clone()), Arc::new(lab.data.clone()), VolumeConfig::default());
    assert!(opened.unwrap_err().to_string().contains("restore them from a copy"));
    assert_eq!(lab.meta.get(Table::Meta, &key::superblock(ID)).unwrap(), None);
    // Not even with a store that says that it is new.
    let volume = open(&MemoryMeta::new(), &lab.data);
    volume.reclaim_all().unwrap();
    assert_eq!(stored(&lab), before);
}

fn paths(report: &Report, is_it: impl Fn(&Problem) -> bool) -> String {
    let problem = report.problems.iter().find(|problem| is_it(problem)).unwrap();
    report.paths(problem).join(" ")
}

#[test]
fn all_names_of_a_file_are_told() {
    let lab = Lab::new();
    lab.change(lab.small, |inode| inode.nlink = 9);
    let report = lab.check(Repair::No);
    let wrong = |problem: &Problem| matches!(problem, Problem::WrongLinkCount { .. });
    assert_eq!(paths(&report, wrong), "/hard /directory/small");
}

/// A name that leads nowhere is told by itself, whatever other names lead there.
#[test]
fn a_name_of_what_is_lost_is_told_with_its_directory() {
    let lab = Lab::new();
    lab.delete(Table::Inode, key::inode(ID, lab.small));
    lab.delete(Table::Extent, key::extent(ID, lab.small.0, 1000));
    let report = lab.check(Repair::No);
    let of = |parent: Ino| move |problem: &Problem| matches!(problem, Problem::DanglingName { parent: of, .. } if *of == parent);
    assert_eq!(paths(&report, of(lab.directory)), "/directory/small");
    assert_eq!(paths(&report, of(Ino::ROOT)), "/hard");
}

/// Its data and its names are not given up for a lost inode.
#[test]
fn a_file_whose_inode_is_lost_keeps_its_data_and_all_its_names() {
    let lab = spoiled(
        |lab| {
            lab.delete(Table::Inode, key::inode(ID, lab.large));
            lab.delete(Table::Inode, key::inode(ID, lab.small));
            let report = lab.check(Repair::No);
            let of = |ino| move |problem: &Problem| matches!(problem, Problem::LostFile { ino: of, .. } if *of == ino);
            assert_eq!(paths(&report, of(lab.large)), "/large");
            assert_eq!(paths(&report, of(lab.small)), "/hard /directory/small");
        },
        |problem| matches!(problem, Problem::LostFile { .. }),
    );
    let volume = open(&lab.meta, &lab.data);
    let (large, small) = (Fid::new(ID, lab.large), Fid::new(ID, lab.small));
    assert_eq!(volume.read(large, 0, 1 << 20).unwrap(), vec![7; 500_000]);
    assert_eq!(volume.read(small, 0, 1 << 20).unwrap(), vec![7; 1000]);
    let attr = volume.getattr(small).unwrap();
    assert_eq!((attr.nlink, attr.perm, attr.uid), (2, 0o600, 0));
    for (parent, name) in [(Ino::ROOT, "hard"), (lab.directory, "small")] {
        assert_eq!(volume.lookup(Fid::new(ID, parent), &entry(name)).unwrap().unwrap().fid, small);
    }
}

/// Who has seen the newer one must not take this for it.
#[test]
fn an_old_record_is_named_and_its_version_is_new() {
    let lab = Lab::new();
    let version = |lab: &Lab| {
        let attr = open(&lab.meta, &lab.data).getattr(Fid::new(ID, lab.large)).unwrap();
        (attr.version, attr.data_version)
    };
    let before = version(&lab);
    let old = |table, key: Vec<u8>| OldRecord { table, key: key.into() };
    let salvaged = Salvaged {
        old: vec![
            old(Table::Inode, key::inode(ID, lab.large)),
            old(Table::Extent, key::extent(ID, lab.large.0, 500_000)),
            old(Table::Inode, key::inode(ID, Ino(1 << 40))),
        ],
        ..Salvaged::default()
    };
    for repair in [Repair::No, Repair::Discarding] {
        let options = FsckOptions { repair, data: DataCheck::CheckSums, now: NOW, branch: 0 };
        let (meta, data) = (Arc::new(lab.meta.clone()), Arc::new(lab.data.clone()));
        let report = fsck_salvaged(meta, data, options, &salvaged, &mut |_| {}).unwrap();
        assert_eq!(report.problems.len(), 2, "{:?}", report.problems);
        assert_eq!(paths(&report, |problem| matches!(problem, Problem::Old { .. })), "/large");
        assert!(report.problems.iter().all(|problem| problem.loss().is_some()));
        assert_eq!(report.is_clean(), repair == Repair::Discarding);
    }
    let after = version(&lab);
    assert!(after.0 > before.0 && after.1 > before.1, "{before:?} {after:?}");
}
