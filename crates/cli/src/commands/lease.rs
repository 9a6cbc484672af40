//! `soda lease ls` and `soda lease why`: who holds what, who waits for whom.

use crate::admin::Admin;
use crate::args::{LeaseCommand, LeaseLsArgs, LeaseWhyArgs};
use crate::commands::status::server_address;
use crate::commands::{print, print_json};
use crate::error::CliError;
use crate::spec::Spec;
use crate::table::Table;
use crate::units::show_duration;
use soda_protocol::{AdminAnswer, AdminCall, LeaseInfo, ObjectRef, WhyInfo};
use soda_types::Name;
use std::os::unix::ffi::OsStrExt;
use std::path::{Component, Path};

pub(crate) fn run(command: &LeaseCommand) -> Result<(), CliError> {
    match command {
        LeaseCommand::Ls(arguments) => ls(arguments),
        LeaseCommand::Why(arguments) => why(arguments),
    }
}

fn ls(arguments: &LeaseLsArgs) -> Result<(), CliError> {
    let (server, object) = match &arguments.path {
        Some(path) => {
            let (server, object) = resolve(path)?;
            (server, Some(object))
        }
        None => (default_server(arguments.server.server.as_deref())?, None),
    };
    let question = AdminCall::Leases { of: object, limit: arguments.limit };
    let AdminAnswer::Leases(leases) = Admin::connect(&server)?.ask(question)? else {
        return Err(CliError::Refused(format!("{server} gave an answer that does not fit")));
    };
    match arguments.json {
        true => print_json(&leases),
        false if leases.is_empty() => print("No leases.\n"),
        false => print(&lease_table(&leases).to_string()),
    }
}

fn why(arguments: &LeaseWhyArgs) -> Result<(), CliError> {
    let (server, object) = resolve(&arguments.path)?;
    let AdminAnswer::Why(info) = Admin::connect(&server)?.ask(AdminCall::Why(object))? else {
        return Err(CliError::Refused(format!("{server} gave an answer that does not fit")));
    };
    match arguments.json {
        true => print_json(&info),
        false => print(&why_text(&info)),
    }
}

/// The server that is named, or that of the only mount, or the usual one.
fn default_server(named: Option<&str>) -> Result<String, CliError> {
    if named.is_some() {
        return server_address(named);
    }
    let mounts = soda_fuse::list_mounts().map_err(CliError::io("/proc/self/mountinfo"))?;
    server_address(mounts.last().and_then(|mount| mount.source.split('/').next()))
}

/// A path in a mount of this machine, or `HOST:PORT/VOLUME/PATH`.
fn resolve(path: &Path) -> Result<(String, ObjectRef), CliError> {
    let absolute = match path.canonicalize() {
        Ok(path) => path,
        Err(_) => std::path::absolute(path).map_err(CliError::io(path.display().to_string()))?,
    };
    let mounts = soda_fuse::list_mounts().map_err(CliError::io("/proc/self/mountinfo"))?;
    let inside = mounts
        .iter()
        .filter_map(|mount| Some((mount, absolute.strip_prefix(&mount.dir).ok()?)))
        .max_by_key(|(mount, _)| mount.dir.as_os_str().len());
    if let Some((mount, rest)) = inside {
        let spec: Spec = mount.source.parse().map_err(CliError::Usage)?;
        return Ok((spec.server, ObjectRef::Path { volume: spec.volume, names: names(rest)? }));
    }
    from_spec(path).ok_or_else(|| {
        CliError::Usage(format!("{} is neither in a Soda mount nor HOST:PORT/VOLUME/PATH", path.display()))
    })
}

fn from_spec(path: &Path) -> Option<(String, ObjectRef)> {
    let text = path.to_str()?;
    let mut parts = text.splitn(3, '/');
    let spec: Spec = format!("{}/{}", parts.next()?, parts.next()?).parse().ok()?;
    let names = names(Path::new(parts.next().unwrap_or(""))).ok()?;
    Some((spec.server, ObjectRef::Path { volume: spec.volume, names }))
}

fn names(path: &Path) -> Result<Vec<Name>, CliError> {
    path.components()
        .filter(|component| !matches!(component, Component::CurDir | Component::RootDir))
        .map(|component| {
            Name::new(component.as_os_str().as_bytes())
                .map_err(|error| CliError::Usage(format!("{}: {error}", path.display())))
        })
        .collect()
}

fn lease_table(leases: &[LeaseInfo]) -> Table {
    let mut table = Table::new(["object", "lease", "held for", "session", "holder", "recall", "path"]);
    for lease in leases {
        table.row([
            lease.grant.fid.to_string(),
            format!("{} {}", lease.grant.mode, lease.grant.epoch),
            show_duration(lease.held_for),
            lease.session.to_string(),
            lease.holder.clone(),
            lease.recalled_for.map_or_else(|| "-".into(), |time| format!("waits {}", show_duration(time))),
            lease.path.clone().unwrap_or_else(|| "-".into()),
        ]);
    }
    table
}

fn why_text(info: &WhyInfo) -> String {
    let mut out =
        format!("{} ({})\n", info.path.as_deref().unwrap_or("object without a known path"), info.fid);
    out.push_str(&format!(
        "  {:.2} reads/s and {:.2} writes/s lately, by {} clients\n  policy: {}\n",
        info.reads_per_s, info.writes_per_s, info.clients, info.policy
    ));
    match info.holders.is_empty() {
        true => out.push_str("\nNobody holds a lease on it.\n"),
        false => out.push_str(&format!("\n{}", lease_table(&info.holders))),
    }
    if info.waiting.is_empty() {
        out.push_str("\nNobody waits for it.\n");
    }
    for wait in &info.waiting {
        let blockers: Vec<_> = wait.blocked_by.iter().map(ToString::to_string).collect();
        out.push_str(&format!(
            "\n{} ({}) waits {} to {} (wants {}), for {}{}\n",
            wait.session,
            wait.name,
            show_duration(wait.waited),
            wait.operation,
            wait.wants,
            if blockers.is_empty() { "its turn".to_string() } else { blockers.join(", ") },
            wait.at_most
                .map_or_else(String::new, |time| format!("; at most another {}", show_duration(time))),
        ));
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_can_be_named_with_its_server() {
        let (server, object) = resolve(Path::new("h:1/main/a/b")).unwrap();
        assert_eq!(server, "h:1");
        let names = vec![Name::try_from("a").unwrap(), Name::try_from("b").unwrap()];
        assert_eq!(object, ObjectRef::Path { volume: "main".into(), names });
        assert!(resolve(Path::new("/etc/hostname")).is_err());
    }
}
