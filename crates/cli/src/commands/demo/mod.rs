//! `soda demo`: a server and two mounts of its volume, three processes as on three machines, and what happens between them.

mod act;
mod cell;
mod story;

use crate::args::DemoArgs;
use crate::commands::{EndRequests, print, runtime};
use crate::error::CliError;
use cell::Cell;

pub(crate) fn run(arguments: DemoArgs) -> Result<(), CliError> {
    let mut cell = Cell::start(arguments.data.as_deref())?;
    let told = introduction(&cell).and_then(|()| story::tell(&mut cell));
    let ended = match (told, arguments.once) {
        (Ok(()), false) => print(&invitation(&cell)).and_then(|()| until_asked()),
        (told, _) => told,
    };
    print("\nUnmounting, stopping the server, removing the directories.\n")?;
    cell.end();
    ended
}

fn until_asked() -> Result<(), CliError> {
    runtime()?.block_on(async {
        EndRequests::listen()?.next().await;
        Ok(())
    })
}

fn introduction(cell: &Cell) -> Result<(), CliError> {
    let [a, b] = &cell.machines;
    print(&format!(
        "A server and two mounts of its volume: three processes that share nothing but TCP, as on three machines.\n\n  \
         server  {}  data in {}\n  A       {}\n  B       {}\n\n",
        cell.address(),
        cell.data().display(),
        a.dir.display(),
        b.dir.display()
    ))
}

fn invitation(cell: &Cell) -> String {
    let [a, b] = &cell.machines;
    let soda = std::env::current_exe().map_or_else(|_| "soda".into(), |path| path.display().to_string());
    format!(
        "\nNow you. Both mounts can be used; in another terminal, for example\n\n  \
         cp -r /etc/init.d {a}/ && diff -r /etc/init.d {b}/init.d && echo the same\n  \
         {soda} lease why {a}/init.d\n  \
         {soda} status\n  \
         {soda} stats\n\n\
         Ctrl-C ends it, and takes everything away.\n",
        a = a.dir.display(),
        b = b.dir.display(),
    )
}
