//! `soda lab`: what leases cost and save.

use crate::commands::{print, print_json};
use crate::error::CliError;
use crate::lab_args::{LabCommand, ModelArgs};
use soda_lab::LabError;
use soda_lab::figure::{Figure, Table};
use soda_lab::model::{self, Parameters, Sweep};
use std::path::Path;

pub(crate) fn run(command: &LabCommand) -> Result<(), CliError> {
    match command {
        LabCommand::Model(arguments) => run_model(arguments),
    }
}

fn run_model(arguments: &ModelArgs) -> Result<(), CliError> {
    let parameters = Parameters {
        clients: arguments.n,
        reads: arguments.r,
        writes: arguments.w,
        term: arguments.t,
        writers: arguments.writers,
        sharers: arguments.sharers,
        files: arguments.files,
        dead: arguments.dead,
        age: arguments.age,
    };
    let Some(sweep) = &arguments.sweep else {
        let quantities = model::quantities(&parameters)?;
        return match arguments.json {
            true => print_json(&quantities),
            false => print_table(&model::table(&parameters)?, arguments),
        };
    };
    let sweep = Sweep::parse(sweep)?;
    for path in &arguments.plot {
        draw(&model::sweep_figure(&parameters, &sweep)?, path)?;
    }
    let table = model::sweep(&parameters, &sweep)?;
    match arguments.json {
        true => print_json(&table),
        false => print_table(&table, arguments),
    }
}

fn print_table(table: &Table, arguments: &ModelArgs) -> Result<(), CliError> {
    print(&if arguments.csv { table.csv() } else { table.to_string() })
}

fn draw(figure: &Figure, path: &Path) -> Result<(), CliError> {
    match path.extension().and_then(|extension| extension.to_str()) {
        Some("svg") => Ok(std::fs::write(path, soda_lab::plot::svg(figure)?).map_err(LabError::io(path))?),
        Some("png") => Ok(soda_lab::plot::png(figure, path)?),
        _ => Err(CliError::Usage(format!("--plot {}: the name has to end in .svg or .png", path.display()))),
    }
}
